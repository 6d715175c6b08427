"""What data() sets and other methods read, which workers do not have; and what only looks like it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from torch import nn

from raygpu import Splits, TorchExperiment
from raygpu.workflow.set_by_data import SetByData

TABLE: dict[str, float] = {}
CACHE: list[int] | None = None
FACTOR = 1.0


def splits() -> Splits:
    return Splits.of(np.zeros((8, 2), np.float32), np.arange(8) % 2, validation=0.5)


def table() -> dict[str, float]:
    return TABLE


def cached() -> list[int]:
    global CACHE
    if CACHE is None:
        CACHE = [1, 2]
    return CACHE


class Base(TorchExperiment):
    scale = 1.0

    def __init__(self) -> None:
        self.words: list[str] = []
        self.mean: Any = None

    def data(self) -> Splits:
        return splits()

    def model(self, hp: Any) -> nn.Module:
        return nn.Linear(2, 2)


class SetsAttribute(Base):
    def data(self) -> Splits:
        self.scale = 2.0
        return splits()

    def loss(self, outputs: Any, targets: Any) -> Any:
        return (outputs * self.scale).mean()


class SetsNew(SetsAttribute):
    def data(self) -> Splits:
        self.hidden = 3
        return splits()

    def model(self, hp: Any) -> nn.Module:
        return self.built()

    def built(self) -> nn.Module:
        def inner() -> nn.Module:
            return nn.Linear(2, self.hidden)

        return inner()


class Appends(Base):
    def data(self) -> Splits:
        self.words.append("one")
        return splits()

    @property
    def size(self) -> int:
        return len(self.words)

    def metrics(self, outputs: Any, targets: Any) -> Any:
        return {"size": float(self.size)}


class SetsGlobal(Base):
    def data(self) -> Splits:
        TABLE["scale"] = 2.0
        return splits()

    def loss(self, outputs: Any, targets: Any) -> Any:
        return outputs.mean() * table()["scale"]


class Net(nn.Linear):
    def forward(self, input: Any) -> Any:
        return super().forward(input) * FACTOR


class SetsGlobalOfModel(Base):
    def data(self) -> Splits:
        global FACTOR
        FACTOR = 3.0
        return splits()

    def model(self, hp: Any) -> nn.Module:
        return Net(2, 2)


class SetsClassAttribute(SetsAttribute):
    def data(self) -> Splits:
        type(self).scale = 5.0
        return splits()


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (SetsAttribute, "self.scale, which loss() reads"),
        (SetsNew, "self.hidden, which inner() reads"),
        (Appends, "self.words, which size() reads"),
        (SetsGlobal, "the global TABLE, which table() reads"),
        (SetsGlobalOfModel, "the global FACTOR, which forward() reads"),
        (SetsClassAttribute, "self.scale, which loss() reads"),
    ],
)
def test_what_workers_would_lack(kind: type[Base], name: str) -> None:
    experiment = kind()
    before = SetByData(experiment)
    assert before.changed() is None
    experiment.data()
    found = before.changed()
    assert found is not None
    assert found.replace("built()", "inner()") == name


class OnlyForItself(Base):
    """A cache of data() alone, a name that others use of another object, and values that are set to what they are."""

    def data(self) -> Splits:
        self.rows = self.read()
        self.mean = self.rows.mean()
        self.scale = float("1")
        return splits()

    def read(self) -> np.ndarray:
        return np.zeros(4)

    def loss(self, outputs: Any, targets: Any) -> Any:
        return self.scaled(outputs).mean() * self.scale

    def scaled(self, outputs: Any) -> Any:
        return outputs


class MadeWhereNeeded(Base):
    """Workers make it as data() does."""

    def data(self) -> Splits:
        self.parts()
        cached()
        return splits()

    def parts(self) -> Any:
        if self.mean is None:
            self.mean = [1.0]
        return self.mean

    def loss(self, outputs: Any, targets: Any) -> Any:
        return outputs.mean() * self.parts()[0] * cached()[0]


MEMO: dict[str, int] = {}
CALLS: list[str] = []


def memo(name: str) -> int:
    if name not in MEMO:
        MEMO[name] = 3
    return MEMO[name]


def noted(function: Any) -> Any:
    def wrapped(*arguments: Any) -> Any:
        CALLS.append(function.__name__)
        return function(*arguments)

    return wrapped


class Memo(Base):
    """Workers fill it where they need it."""

    def data(self) -> Splits:
        memo("size")
        self.words.append("one")
        self.words.clear()
        return splits()

    @noted
    def model(self, hp: Any) -> nn.Module:
        return nn.Linear(2, memo("size") - 1)


class SetsEqual(Base):
    classes: Any = ("a", "b")
    names: Any = ["a", "b"]  # noqa: RUF012
    count = np.int64(2)

    def data(self) -> Splits:
        self.names, self.classes, self.count = ["a", "b"], ("a", "b"), np.int64(2)
        return splits()

    def model(self, hp: Any) -> nn.Module:
        return nn.Linear(2, len(self.classes) + len(self.names) - int(self.count))


class HasAnotherSelf(Base):
    def data(self) -> Splits:
        self.width = 4
        return splits()

    def model(self, hp: Any) -> nn.Module:
        class Inner(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.width = 2
                self.last = nn.Linear(self.width, 2)

        return Inner()


@pytest.mark.parametrize("kind", [Base, OnlyForItself, MadeWhereNeeded, Memo, SetsEqual, HasAnotherSelf])
def test_what_workers_have_or_do_not_need(kind: type[Base]) -> None:
    experiment = kind()
    before = SetByData(experiment)
    experiment.data()
    assert before.changed() is None
