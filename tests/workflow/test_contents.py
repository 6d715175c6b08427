"""What data() changes in place, of arrays, containers, objects, classes and modules."""

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

from raygpu import Splits
from raygpu.workflow.set_by_data import SetByData
from tests.training.data import rows
from tests.workflow.test_set_by_data import Base, splits


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
        (FitsOwnObject, "self.stats.std, which scaled() reads"),
        (ChangesNested, "self.nested, which model() reads"),
        (ChangesNamespace, "the global CFG.vocabulary, which model() reads"),
        (ChangesModule, "the global rows.EPOCHS_READ, which model() reads"),
        (ChangesClass, "the global OfClass.mean, which loss() reads"),
        (SwitchesNetwork, "the global BACKBONE, which model() reads"),
    ],
)
def test_what_is_changed_in_place_is_told(kind: type[Base], name: str) -> None:
    experiment = kind()
    before = SetByData(experiment)
    assert before.changed() is None
    experiment.data()
    assert before.changed() == name


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
    assert before.doubt() == "calls self.vectorizer.adapt(), and model() reads self.vectorizer"
    assert SetByData(FitsScaler()).doubt() is None


def test_large_values_are_compared_in_part() -> None:
    experiment = ChangesNested()
    experiment.nested = {"a": {"b": [np.zeros(2**22)]}, "c": dict.fromkeys(range(10**6))}  # type: ignore[dict-item]
    before = SetByData(experiment)
    assert before.changed() is None
    experiment.nested["a"]["b"][0] *= 2
    experiment.nested["a"]["b"][0] += 1
    assert before.changed() == "self.nested, which model() reads"


def test_parts_that_nobody_else_reads_and_memos_are_no_change() -> None:
    experiment = UsesWhatItReads()
    before = SetByData(experiment)
    experiment.data()
    assert before.changed() is None
