"""The hyper-parameters of a first step: values that no optimizer takes, and names that nothing reads, or that both the
experiment and raygpu read."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from raygpu.errors import BadInput
from raygpu.experiment import Experiment
from raygpu.search.hyperparameters import ALL_NAMES
from raygpu.search.space import Space, listed
from raygpu.training.hyperparameters import IN_EVERY_STEP, OptimizerSettings, names_with_effect
from raygpu.training.torch.experiment import overrides

ALMOST = 0.85
"""Similarity of two names, 0 to 1, above which one counts as the other misspelt."""
ALIASES = {"learning_rate": "lr", "learningrate": "lr", "wd": "weight_decay", "bs": "batch_size", "optim": "optimizer"}
"""Other names of hyper-parameters that raygpu reads."""
MEANINGS = {
    "lr": "the optimizer's learning rate",
    "momentum": "SGD's momentum",
    "nesterov": "SGD's switch for Nesterov momentum",
    "weight_decay": "the optimizer's weight decay",
    "betas": "Adam's betas",
    "eps": "Adam's eps",
    "clip_norm": "the bound on the gradient's norm",
    "ema_decay": "the decay of the average of the parameters",
    "schedule": "the schedule of the learning rate",
    "warmup_epochs": "the warm-up of the learning rate",
    "step_epochs": "the interval of the step schedule",
    "gamma": "the factor of the step schedule",
}
"""Meaning for raygpu of the names that an experiment may well use for something else. `batch_size` and `optimizer` mean
the same to both."""


def require_known_values(space: Space) -> None:
    """Raise BadInput for values of the space that the optimizer settings do not take."""
    faults = []
    settings = {each.name for each in dataclasses.fields(OptimizerSettings)} - {"nesterov"}  # which needs another one
    for parameter in space.parameters:
        for value in parameter.ends() if parameter.name in settings else ():
            try:
                OptimizerSettings.of({parameter.name: value})
            except ValueError as error:
                hint = f"; {advice}" if (advice := listed(value)) else ""
                faults.append(f"space.{str(error).removeprefix('hyper-parameter ')}{hint}")
    if faults:
        raise BadInput(faults)


def used_by_raygpu(code: Experiment, kind: str, given: Mapping[str, Any], space: Space | None) -> frozenset[str]:
    """Return the hyper-parameters that raygpu itself uses in an experiment's trainings.

    kind: the experiment's framework. given: the hyper-parameters of a training. space: of a sweep's trainings.
    """
    if kind == "torch" and overrides(code, "optimizer"):
        return IN_EVERY_STEP
    drawn = {} if space is None else {each.name: each.options() or () for each in space.parameters}
    defaults = OptimizerSettings()
    names = [
        [value for value in drawn.get(name, [given.get(name, default)]) if isinstance(value, str)]
        for name, default in (("optimizer", defaults.optimizer), ("schedule", defaults.schedule))
    ]
    return names_with_effect(*names)


def space_lines(code: Experiment, kind: str, hp: Mapping[str, Any], space: Space, read: frozenset[str]) -> list[str]:
    """Return lines on the names in a sweep's space. hp: of the first step. read: the names that the experiment read."""
    names, used = [each.name for each in space.parameters], used_by_raygpu(code, kind, hp, space)
    return [*(misspelt(names, hp, read | used) or unread(hp, read | used)), *read_by_both(names, read, used)]


def training_lines(
    code: Experiment, kind: str, hp: Mapping[str, Any], changes: Sequence[Mapping[str, Any]], read: frozenset[str]
) -> list[str]:
    """Return lines on the names in a training's table. changes: see `OptimizerSettings.of`. read: the names that the
    experiment read."""
    used = frozenset[str]().union(*(used_by_raygpu(code, kind, {**hp, **change}, None) for change in ({}, *changes)))
    names = {*hp, *(name for change in changes for name in change)}
    return [*(misspelt(hp, hp, read) or unread(hp, read | used)), *read_by_both(names, read, used)]


def read_by_both(given: Collection[str], read: frozenset[str], used: frozenset[str]) -> list[str]:
    """Return a line for each hyper-parameter that the experiment reads and that is a number of raygpu's own too.

    given: all hyper-parameters there are. used: those that raygpu uses. An experiment that loops over all of them is
    told nothing, since it need not use each.
    """
    if ALL_NAMES in read:
        return []
    advice = "unless both are meant, give the experiment's another name"
    return [
        f"the experiment reads {name}, which is {meaning} too: {advice}"
        for name, meaning in MEANINGS.items()
        if name in read & used and name in given
    ]


def misspelt(given: Collection[str], hp: Mapping[str, Any], read: Collection[str]) -> list[str]:
    """Return a line for each hyper-parameter that resembles one that is missing.

    given: all hyper-parameters there are. hp: those of the first step. read: the names that it or raygpu reads.
    """
    if ALL_NAMES in read:
        return []
    wanted = {*(each.name for each in dataclasses.fields(OptimizerSettings)), *read}
    near = {
        name: [ALIASES[name]]
        if name in ALIASES and ALIASES[name] not in given
        else difflib.get_close_matches(name, wanted - set(given), 1, ALMOST)
        for name in set(hp) - wanted
    }
    return [
        f"a first step does not read {name}: if nothing does, did you mean {matches[0]}?"
        for name, matches in sorted(near.items())
        if matches
    ]


def unread(hp: Mapping[str, Any], read: Collection[str]) -> list[str]:
    """Return a line on the hyper-parameters that neither a first step nor raygpu reads, if there are any."""
    names = sorted(set(hp).difference(read)) if ALL_NAMES not in read else []
    return [f"a first step does not read {', '.join(names)}: what nothing reads changes nothing"] if names else []
