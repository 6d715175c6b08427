"""A trial's hyper-parameters, with a record of those that its code reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


class MissingHyperparameter(KeyError):
    """The experiment read a hyper-parameter that the trial does not have."""

    def __init__(self, name: str, known: Mapping[str, Any]) -> None:
        super().__init__(f"no hyper-parameter {name!r}; this trial has: {', '.join(sorted(known)) or 'none'}")
        self.name = name

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError itself would show quotes within quotes


ALL_NAMES = "*"
"""Entry of `names_read` for code that loops over the hyper-parameters or counts them."""


class Hyperparameters(Mapping[str, Any]):
    """A trial's hyper-parameters: read-only; `names_read` records every name that is read.

    The values that `model()`, one `forward` and `augment()` read shape the trial's program: the record finds them
    without a declaration. A list or dict is a copy, which code may change. A subclass of `Mapping`, not of `dict`,
    because `**hp` and `.get` of a dict subclass record nothing.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)
        self.names_read: set[str] = set()

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Hyperparameters:
        """Convert a mapping; return a `Hyperparameters` object as it is, so that its record goes on."""
        return values if isinstance(values, cls) else cls(values)

    def __getitem__(self, name: str) -> Any:
        self.names_read.add(name)
        if name not in self._values:
            raise MissingHyperparameter(name, self._values)
        return _own(self._values[name])

    def get(self, name: str, default: Any = None) -> Any:
        """Return a hyper-parameter, or `default` if the trial does not have it; the name is recorded in either case."""
        self.names_read.add(name)
        return _own(self._values.get(name, default))

    def __contains__(self, name: object) -> bool:
        self.names_read.add(str(name))
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        self.names_read.add(ALL_NAMES)
        return iter(self._values)

    def __len__(self) -> int:
        self.names_read.add(ALL_NAMES)
        return len(self._values)

    def __repr__(self) -> str:
        return f"Hyperparameters({self._values!r})"


def _own(value: Any) -> Any:
    """Return a value whose lists and dicts are copies."""
    if isinstance(value, list):
        return [_own(each) for each in value]
    return {name: _own(each) for name, each in value.items()} if isinstance(value, dict) else value
