"""The hyper-parameters of a first step: values that no optimizer takes, and names that nothing reads."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Collection, Mapping
from typing import Any

from raygpu.errors import BadInput
from raygpu.experiment import (
    ALL_NAMES,
)
from raygpu.search.space import Space, listed
from raygpu.training.hyperparameters import OptimizerSettings

ALMOST = 0.85
"""Similarity of two names, 0 to 1, above which one counts as the other misspelt."""
ALIASES = {"learning_rate": "lr", "learningrate": "lr", "wd": "weight_decay", "bs": "batch_size", "optim": "optimizer"}
"""Other names of hyper-parameters that raygpu reads."""


def require_known_values(space: Space) -> None:
    """Raise BadInput for values of the space that the optimizer settings do not take."""
    faults = []
    known = {each.name for each in dataclasses.fields(OptimizerSettings)} - {"nesterov"}  # which needs another one
    for parameter in space.parameters:
        for value in parameter.ends() if parameter.name in known else ():
            try:
                OptimizerSettings.of({parameter.name: value})
            except ValueError as error:
                hint = f"; {told}" if (told := listed(value)) else ""
                faults.append(f"space.{str(error).removeprefix('hyper-parameter ')}{hint}")
    if faults:
        raise BadInput(faults)


def misspelt(given: Mapping[str, Any], hp: Mapping[str, Any], read: Collection[str]) -> list[str]:
    """Return a line for each hyper-parameter that resembles one that is missing.

    given: all hyper-parameters there are. hp: those of the first step. read: the names that it read.
    """
    if ALL_NAMES in read:
        return []
    wanted = _known(read)
    near = {
        name: [ALIASES[name]]
        if name in ALIASES and ALIASES[name] not in given
        else difflib.get_close_matches(name, wanted - set(given), 1, ALMOST)
        for name in set(hp) - wanted
    }
    return [
        f"a first step does not read {name}: if nothing does, did you mean {found[0]}?"
        for name, found in sorted(near.items())
        if found
    ]


def unread(hp: Mapping[str, Any], read: Collection[str]) -> list[str]:
    """Return a line on the hyper-parameters that a first step did not read, if there are any."""
    names = sorted(set(hp) - _known(read)) if ALL_NAMES not in read else []
    return [f"a first step does not read {', '.join(names)}: what nothing reads changes nothing"] if names else []


def _known(read: Collection[str]) -> set[str]:
    """Return the names that raygpu or the experiment reads."""
    return {*(each.name for each in dataclasses.fields(OptimizerSettings)), *read}
