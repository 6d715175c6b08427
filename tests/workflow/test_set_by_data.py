"""What data() sets and other methods read, which workers do not have; and what only looks like it."""

from __future__ import annotations

from argparse import Namespace
from functools import cached_property, partial
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from sklearn.preprocessing import StandardScaler
from torch import nn

from raygpu import Splits, TorchExperiment
from raygpu.workflow.set_by_data import SetByData
from tests.training.data import rows

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


class Stats:
    """An object of the user's own, with a memo and a counter of its calls."""

    kind = "none"

    def __init__(self) -> None:
        self.std: Any = 1.0
        self.memo: dict[str, int] = {}
        self.calls = 0

    def fit(self, values: Any) -> None:
        self.std = float(values.std()) + 3

    def scaled(self, outputs: Any) -> Any:
        self.memo["one"] = 1
        return outputs / self.std

    def __call__(self) -> int:
        self.calls += 1
        return 2

    @cached_property
    def lazy(self) -> int:
        return 1


MEAN = np.zeros(3)
CENTRE = torch.zeros(3)
CFG = Namespace(vocabulary=0, rows=0)
BACKBONE = nn.BatchNorm1d(3)


class OfClass:
    mean = 0.0


class ChangesArray(Base):
    def data(self) -> Splits:
        MEAN[:] = 2
        return splits()

    def loss(self, outputs: Any, targets: Any) -> Any:
        return (outputs - MEAN.mean()).mean()


class ChangesTensor(Base):
    def data(self) -> Splits:
        CENTRE.add_(1)
        return splits()

    def loss(self, outputs: Any, targets: Any) -> Any:
        return (outputs - CENTRE.mean()).mean()


class ChangesOwnObject(Base):
    def __init__(self) -> None:
        super().__init__()
        self.stats = Stats()

    def data(self) -> Splits:
        self.stats.std = 3.0
        return splits()

    def loss(self, outputs: Any, targets: Any) -> Any:
        return outputs.mean() / self.stats.std


class FitsOwnObject(ChangesOwnObject):
    def data(self) -> Splits:
        self.stats.fit(np.arange(3))
        return splits()

    def loss(self, outputs: Any, targets: Any) -> Any:
        return self.stats.scaled(outputs).mean()


class FitsScaler(Base):
    def __init__(self) -> None:
        super().__init__()
        self.scaler = StandardScaler()

    def data(self) -> Splits:
        self.scaler.fit(np.arange(6.0).reshape(3, 2))
        return splits()

    def metrics(self, outputs: Any, targets: Any) -> Any:
        return {"mean": self.scaler.inverse_transform(outputs).mean()}


class ChangesNested(Base):
    def __init__(self) -> None:
        super().__init__()
        self.nested = {"a": {"b": [1]}}

    def data(self) -> Splits:
        self.nested["a"]["b"][0] = 5
        return splits()

    def model(self, hp: Any) -> nn.Module:
        return nn.Linear(2, self.nested["a"]["b"][0])


class ChangesNamespace(Base):
    def data(self) -> Splits:
        CFG.vocabulary = 7
        return splits()

    def model(self, hp: Any) -> nn.Module:
        return nn.Embedding(CFG.vocabulary, 2)


class ChangesModule(Base):
    def data(self) -> Splits:
        rows.EPOCHS_READ = 4
        return splits()

    def model(self, hp: Any) -> nn.Module:
        return nn.Linear(2, rows.EPOCHS_READ)


class ChangesClass(Base):
    def data(self) -> Splits:
        OfClass.mean = 4.0
        return splits()

    def loss(self, outputs: Any, targets: Any) -> Any:
        return outputs.mean() - OfClass.mean


class SwitchesNetwork(Base):
    def data(self) -> Splits:
        BACKBONE(torch.randn(4, 3))
        return splits()

    def model(self, hp: Any) -> nn.Module:
        return nn.Sequential(BACKBONE, nn.Linear(3, 2))


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (ChangesArray, "the global MEAN, which loss() reads"),
        (ChangesTensor, "the global CENTRE, which loss() reads"),
        (ChangesOwnObject, "self.stats.std, which loss() reads"),
        (FitsOwnObject, "self.stats, which loss() reads"),
        (FitsScaler, "self.scaler, which metrics() reads"),
        (ChangesNested, "self.nested, which model() reads"),
        (ChangesNamespace, "the global CFG.vocabulary, which model() reads"),
        (ChangesModule, "the global rows.EPOCHS_READ, which model() reads"),
        (ChangesClass, "the global OfClass.mean, which loss() reads"),
        (SwitchesNetwork, "the global BACKBONE, which model() reads"),
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


class UsesWhatItReads(ChangesOwnObject):
    """Parts that nobody else reads, memos and counters of an object, and what only stays in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.counter = Stats()
        self.table = pandas.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0]})

    def data(self) -> Splits:
        CFG.rows = 5
        OfClass.other = 3  # type: ignore[attr-defined]
        self.stats.scaled(self.table["a"].to_numpy())
        self.stats.memo["two"] = self.stats.lazy
        self.counter()
        return splits()

    def model(self, hp: Any) -> nn.Module:
        return nn.Linear(self.table.shape[0], len(self.table["a"]))

    def loss(self, outputs: Any, targets: Any) -> Any:
        return outputs.mean() / self.stats.std * CFG.vocabulary * OfClass.mean * len(Stats.kind)

    def augment(self, inputs: Any, hp: Any) -> Any:
        return self.stats.scaled(inputs)

    def metrics(self, outputs: Any, targets: Any) -> Any:
        return {"calls": self.counter() * 0.0}


class Adapts(Base):
    def __init__(self) -> None:
        super().__init__()
        self.vectorizer: Any = partial(int)

    def data(self) -> Splits:
        self.vectorizer.adapt([1])
        return splits()

    def model(self, hp: Any) -> nn.Module:
        return nn.Linear(2, self.vectorizer.size)


def test_a_call_on_an_object_that_cannot_be_looked_into_has_a_line() -> None:
    experiment = Adapts()
    experiment.vectorizer.adapt = len
    before = SetByData(experiment)
    assert before.changed() is None
    assert before.doubt() == "self.vectorizer.adapt(), and model() reads self.vectorizer"
    assert SetByData(FitsScaler()).doubt() is None


def test_large_values_are_compared_in_part() -> None:
    experiment = ChangesNested()
    experiment.nested = {"a": {"b": [np.zeros(2**22)]}, "c": dict.fromkeys(range(10**6))}  # type: ignore[dict-item]
    before = SetByData(experiment)
    assert before.changed() is None
    experiment.nested["a"]["b"][0] *= 2
    experiment.nested["a"]["b"][0] += 1
    assert before.changed() == "self.nested, which model() reads"


@pytest.mark.parametrize(
    "kind", [Base, OnlyForItself, MadeWhereNeeded, Memo, SetsEqual, HasAnotherSelf, UsesWhatItReads]
)
def test_what_workers_have_or_do_not_need(kind: type[Base]) -> None:
    experiment = kind()
    before = SetByData(experiment)
    experiment.data()
    assert before.changed() is None
