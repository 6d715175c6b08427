"""The rules of population based training (Jaderberg et al., 2017), as Ray Tune's PopulationBasedTraining applies them.

Pure: who takes over whose parameters, and which values it goes on with.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from raygpu.config.population_section import CHANGEABLE, OF_RATE, OF_STEPS, PopulationSection
from raygpu.errors import BadInput
from raygpu.search.space import Parameter, Space, quantized
from raygpu.search.trials import Trial

FACTORS = (1.2, 0.8)
"""Factors on a number that is not drawn anew."""
BOUNDED = ("momentum",)
"""Numbers that stay within their range in [space]: beyond it, an optimizer may not take them."""


def changing(section: PopulationSection, space: Space) -> tuple[Parameter, ...]:
    """Return the parameters of a space that may change while a trial trains. Raises BadInput if there are none, or if
    one that is named is not there."""
    by_name = {parameter.name: parameter for parameter in space.parameters}
    if section.chosen is None:
        parameters = [p for p in space.parameters if p.name in CHANGEABLE and p.kind != "constant"]
        if not parameters:
            raise BadInput(
                f"population: [space] draws nothing that may change while a trial trains: {', '.join(CHANGEABLE)}"
            )
        return tuple(parameters)
    if missing := [name for name in section.chosen if name not in by_name]:
        raise BadInput(f"population.change: read {missing[0]!r}, which [space] does not have")
    chosen = tuple(by_name[name] for name in section.chosen)
    if fixed := [p for p in chosen if p.kind == "constant" and not _moves(p.arguments[0])]:
        raise BadInput(
            f"population.change: {fixed[0].name} is {fixed[0].arguments[0]!r} in every trial, from which no factor"
            " leads away; give a distribution, or a number other than 0"
        )
    return chosen


def _moves(value: Any) -> bool:
    """Return whether exploring a constant may change it."""
    if isinstance(value, list | tuple):
        return all(_is_number(each) for each in value)
    return _is_number(value) and value != 0


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def taken_over(parameters: Iterable[Parameter], space: Space, kind: str, read: Collection[str] = ()) -> tuple[str, ...]:
    """Return the names of the hyper-parameters that a trial takes over with another one's parameters: those that
    change, and all others of a step in which trials may differ.

    Ray Tune's rule: the donor's whole configuration is copied, then some of it is explored. parameters: those that
    change. kind: of the user's code. A Keras trial's steps are traced with all numbers but the learning rate. read:
    names that the user's code reads, whose values stay a trial's own.
    """
    names = [parameter.name for parameter in parameters]
    allowed = set(OF_RATE if kind == "keras" else OF_STEPS).difference(read, names)
    others = (p for p in space.parameters if p.name in allowed)
    # A constant nesterov is no difference, but exploring a momentum looks at it.
    return *names, *(p.name for p in others if p.kind != "constant" or p.name == "nesterov")


def populations(trials: Iterable[Trial], names: Iterable[str]) -> dict[str, str]:
    """Return the population of each trial, by trial id: trials that are alike in all that is not taken over.

    names: of the hyper-parameters that are taken over, in any value; all trials of a population have them, or none. A
    network cannot take over the parameters of one of another shape.
    """
    taken = frozenset(names)
    return {trial.trial_id: repr(sorted(in_common(trial, taken).items())) for trial in trials}


def in_common(trial: Trial, names: Collection[str]) -> dict[str, str]:
    """Return what trials of one population have in common, as text by name of the hyper-parameter. names: of those that
    are taken over."""
    return {name: "" if name in names else repr(value) for name, value in trial.hyperparameters.items()}


def quantiles(scores: Sequence[tuple[str, float]], fraction: float) -> tuple[list[str], list[str]]:
    """Return the trials with the lowest and with the highest scores, each this share of all; of two trials, one each.

    scores: by trial id, a higher one is better. Equal scores keep their order.
    """
    ranked = [name for name, _ in sorted(scores, key=lambda pair: pair[1])]
    if len(ranked) <= 1:
        return [], []
    count = min(math.ceil(len(ranked) * fraction), len(ranked) // 2)
    return ranked[:count], ranked[len(ranked) - count :]


def explore(
    rng: random.Random, values: Mapping[str, Any], parameters: Sequence[Parameter], resample: float
) -> dict[str, Any]:
    """Return a trial's values with new ones of the parameters; a parameter that it does not have is left out.

    With probability `resample` a value is drawn from the parameter's distribution. Otherwise a number is multiplied by
    one of FACTORS, or becomes the next of its steps where that would change nothing, and of a choice the value before
    or after it is taken. Adam's betas are two numbers below 1: of each its distance to 1 is multiplied. Beside
    nesterov, which needs one, a momentum does not become 0.
    """
    new = {p.name: _explored(rng, values[p.name], p, resample) for p in parameters if p.name in values}
    if values.get("nesterov") and new.get("momentum") == 0:
        del new["momentum"]
    return {**values, **new}


def _explored(rng: random.Random, value: Any, parameter: Parameter, resample: float) -> Any:
    if parameter.kind in ("choice", "grid_search"):
        options = list(parameter.arguments)
        if rng.random() < resample or value not in options:
            return rng.choice(options)
        place = options.index(value) + rng.choice([-1, 1])
        return options[min(max(place, 0), len(options) - 1)]
    if parameter.kind != "constant" and rng.random() < resample:
        return parameter.draw(rng.getrandbits(32), 0)
    if isinstance(value, list | tuple):
        return [max(0.0, 1 - (1 - each) * rng.choice(FACTORS)) for each in value]
    return _within(rng.choice(FACTORS), value, parameter)


def _within(factor: float, old: Any, parameter: Parameter) -> Any:
    """Return a multiplied number on its parameter's steps, and within its range where that binds."""
    kind, arguments = parameter.kind, parameter.arguments
    new = old * factor
    if kind.startswith("q") or "int" in kind:
        new = _stepped(new, old, parameter, arguments[2] if kind.startswith("q") else 1, up=(factor > 1) == (old >= 0))
    if parameter.name in BOUNDED:
        low, high = parameter.ends()[:2] if kind != "constant" and parameter.ends() else (0.0, max(old, 0.999))
        new = min(max(new, low), high)
    return round(new) if "int" in kind else new


def _stepped(new: float, old: float, parameter: Parameter, step: float, *, up: bool) -> float:
    """Return the step that lies nearest to a changed number; the next one in the direction of the change where that is
    no change, and the old number where that is 0 or outside the range."""
    new = quantized(new, step)
    if new and (new > old if up else new < old):
        return new
    further = quantized(old + step if up else old - step, step)
    low, high = parameter.ends() or (-math.inf, math.inf)
    highest = high - 1 if parameter.kind in ("randint", "lograndint") else high  # there it is excluded
    return further if further and low <= further <= highest else old


def draws(seed: int, epoch: int, trial_id: str) -> random.Random:
    """Return the random numbers of a trial's decision after an epoch: the same in every mode and order of arrival."""
    return random.Random(f"{seed} {epoch} {trial_id}")
