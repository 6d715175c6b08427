"""The architectures of a search space: how many its trials can have, and what that costs arrays."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from raygpu.search.hyperparameters import ALL_NAMES
from raygpu.search.signature import Group
from raygpu.search.space import Parameter, Space

MOST = 100_000
"""Number of signatures from which they are no longer counted."""


@dataclass(frozen=True, slots=True)
class Architectures:
    """The signatures of a sweep's trials."""

    names: tuple[str, ...]
    """Hyper-parameters of the signature that vary."""
    num_signatures: int
    """Number of signatures among the trials at hand."""
    num_trials: int
    """Number of these trials."""
    possible: int | None
    """Number of signatures that the space can make; None if there is no end of them."""
    endless: tuple[str, ...]
    """Hyper-parameters of the signature that have no end of values."""

    @property
    def mean_width(self) -> float:
        """Mean number of trials of one signature: members of an array, if one place trains them all."""
        return self.num_trials / self.num_signatures


def architectures(space: Space, groups: Sequence[Group]) -> Architectures | None:
    """Return the signatures of these groups' trials; None if nothing that varies is part of a signature."""
    names = {name for group in groups for name, _ in group.signature.values if name != ALL_NAMES}
    parameters = [p for p in space.parameters if p.name in names and p.kind != "constant"]
    if not parameters or not groups:
        return None
    endless = tuple(parameter.name for parameter in parameters if parameter.options() is None)
    signatures = {group.signature for group in groups}
    num_trials = sum(len(group.trials) for group in groups)
    possible = None if endless else num_signatures(space, names)
    return Architectures(tuple(p.name for p in parameters), len(signatures), num_trials, possible, endless)


def num_signatures(space: Space, names: Collection[str]) -> int | None:
    """Return the number of combinations of these hyper-parameters, each with what it depends on; None for no end, or
    for more than MOST."""
    wanted = _with_parents(space, names)
    if any(parameter.options() is None for parameter in wanted):
        return None
    signatures: set[tuple[tuple[str, str], ...]] = set()
    for values in Space(wanted).grid():
        signatures.add(tuple((name, repr(value)) for name, value in values.items() if name in names))
        if len(signatures) > MOST:
            return None
    return len(signatures)


def _with_parents(space: Space, names: Collection[str]) -> tuple[Parameter, ...]:
    by_name = {parameter.name: parameter for parameter in space.parameters}
    wanted, stack = set[str](), list(names)
    while stack:
        name = stack.pop()
        if name in by_name and name not in wanted:
            wanted.add(name)
            stack += by_name[name].when
    return tuple(parameter for parameter in space.parameters if parameter.name in wanted)
