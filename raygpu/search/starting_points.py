"""Starting points of a search: sets of hyper-parameters that are tried first, complete or not.

    [[start]]
    lr = 0.1
    momentum = 0.9

Each value has to lie in the search space. What a set leaves open is drawn by the search algorithm; of a grid, the
combinations with these values come first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from raygpu.errors import BadInput, suggestion
from raygpu.search.space import Parameter, Space, quantized, stepped

NEAR = 1e-9
"""Relative distance within which a number counts as a multiple of a step."""


def starting_points(space: Space, tables: Sequence[Mapping[str, Any]], trials: int | None) -> list[dict[str, Any]]:
    """Return the sets as the space has them, each once. trials: number of trials of the search; None if unknown.

    Raises BadInput with a line for each value outside the space.
    """
    faults: list[str] = []
    points: list[dict[str, Any]] = []
    for number, table in enumerate(tables, start=1):
        point, start_faults = _read(space, table)
        faults += [f"start {number}: {fault}" for fault in start_faults]
        if point not in points:
            points.append(point)
    if not faults and trials is not None and len(points) > trials:
        faults = [f"start: read {len(points)} sets; trials = {trials} has no place for all of them"]
    if faults:
        raise BadInput(faults)
    return points


def fitting(space: Space, values: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a set of another search as far as this space has its hyper-parameters; None if a value lies outside, or
    if the two have none in common."""
    names = {parameter.name for parameter in space.parameters}
    point, faults = _read(space, {name: value for name, value in values.items() if name in names})
    varied = {parameter.name for parameter in space.parameters if parameter.kind != "constant"}
    return point if not faults and varied & point.keys() else None


def _read(space: Space, table: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return a set's values as the space has them, and the faults."""
    parameters = {parameter.name: parameter for parameter in space.parameters}
    faults = [
        f"no hyper-parameter {name!r} in [space]{suggestion(name, list(parameters))}"
        for name in table
        if name not in parameters
    ]
    point: dict[str, Any] = {}
    for name, parameter in parameters.items():
        if name not in table:
            continue
        try:
            point[name] = value_in(parameter, table[name])
        except ValueError as error:
            faults.append(f"{name}: {error}")
    for name in point:
        if not parameters[name].active({**_constants(space), **point}):
            needed = " and ".join(f"{parent} = {_any_of(allowed)}" for parent, allowed in parameters[name].when.items())
            faults.append(f"{name}: exists with {needed} alone; give that, too, or leave {name} out")
    return point, faults


def _constants(space: Space) -> dict[str, Any]:
    return {p.name: p.arguments[0] for p in space.parameters if p.kind == "constant" and not p.when}


def _any_of(values: Sequence[Any]) -> str:
    return " or ".join(map(repr, values))


def value_in(parameter: Parameter, value: Any) -> Any:
    """Return the value as the parameter's distribution has it. Raises ValueError if it does not."""
    kind, a = parameter.kind, parameter.arguments
    if kind in ("constant", "choice", "grid_search"):
        equal = [option for option in a if option == value and isinstance(option, bool) == isinstance(value, bool)]
        equal = equal or [option for option in a if str(option) == str(value)]  # a run's file keeps text
        if not equal:
            raise ValueError(f"read {value!r}; [space] has {', '.join(map(repr, a))}")
        return next((option for option in equal if type(option) is type(value)), equal[0])
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"read {value!r}; a finite number is wanted")
    is_whole = "int" in kind
    if is_whole and value != int(value):
        raise ValueError(f"read {value!r}; a whole number is wanted")
    if kind.startswith("q"):
        drawn = quantized(value, a[2]) if kind == "qrandn" else stepped(value, *a)
        if abs(drawn - value) <= NEAR * max(a[2], abs(value)):
            return int(drawn) if is_whole else drawn  # steps of whole numbers give whole numbers
    if "randn" not in kind:
        low, high = a[0], a[1] - 1 if kind in ("randint", "lograndint") else a[1]
        if not low <= value <= high:
            raise ValueError(f"read {value!r}; [space] has {low!r} to {high!r}")
    if kind.startswith("q"):
        raise ValueError(f"read {value!r}; [space] has multiples of {a[2]!r}")
    return int(value) if is_whole else float(value)
