"""Changes of data() to objects: refused only where another method surely reads what was changed."""

from __future__ import annotations

from argparse import Namespace
from functools import cached_property
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from raygpu import Splits, dataset_splits
from raygpu.workflow import names_used
from raygpu.workflow.set_by_data import SetByData
from tests.workflow import shared_objects
from tests.workflow.shared_objects import LOG, STATS, Tokenizer
from tests.workflow.test_contents import FitsScaler
from tests.workflow.test_set_by_data import Base, splits

ARGS = Namespace(hidden=4, n=None)


class Rows(torch.utils.data.Dataset):
    """A data set that opens its file at the first sample, and is told epochs."""

    def __init__(self) -> None:
        self.file: Any = None
        self.epoch = 0
        self.width = 2

    def __len__(self) -> int:
        return 20

    def __getitem__(self, row: int) -> Any:
        if self.file is None:
            self.file = Holder(None)
        return np.zeros(2, np.float32), row % 2

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    @property
    def num_classes(self) -> int:
        return self.width


class OfDataset(Base):
    def __init__(self) -> None:
        super().__init__()
        self.ds = Rows()

    def data(self) -> Splits:
        return dataset_splits(self.ds, validation=self.ds)

    def model(self, hp: Any) -> nn.Module:
        assert self.ds.file.n == 0
        return nn.Linear(len(self.ds[0][0]), self.ds.num_classes)


class Logs(Base):
    def data(self) -> Splits:
        shared_objects.LOG.warn("x")
        LOG.info("x")
        shared_objects.TOKENIZER.encode("x")
        shared_objects.STATS.calls = 5
        STATS.calls += 1
        return splits()

    def model(self, hp: Any) -> nn.Module:
        shared_objects.LOG.info("y")
        shared_objects.TOKENIZER.encode("y")
        STATS.calls += 1
        return nn.Linear(2, shared_objects.STATS.hidden)


class Lazy:
    @property
    def vocabulary(self) -> list[str]:
        if not hasattr(self, "_vocabulary"):
            self._vocabulary = ["a"]
        return self._vocabulary

    @cached_property
    def words(self) -> list[str]:
        return ["a"]

    def size(self) -> int:
        return len(self.vocabulary) + len(self.words)


class Holder:
    def __init__(self, owner: Any) -> None:
        self.owner, self.tokenizer, self.n = owner, Tokenizer(), 0

    def width(self) -> int:
        return 4


class Lazily(Base):
    def __init__(self) -> None:
        super().__init__()
        self.lazy, self.holder, self.net = Lazy(), Holder(self), nn.Sequential(nn.Linear(2, 2), nn.Dropout())
        self.act, self.buffer = self.scaled, np.zeros((4, 2))

    def scaled(self, inputs: Any) -> Any:
        return inputs

    def data(self) -> Splits:
        self.raw = self.lazy.size()
        self.holder.tokenizer.encode("x")
        self.holder.n += 1
        self.net.eval()
        self.buffer[:] = 1
        return splits()

    def model(self, hp: Any) -> nn.Module:
        self.holder.n += 1
        self.act(self.holder.tokenizer.encode("x"))
        assert self.lazy.words == self.lazy.vocabulary
        return nn.Sequential(self.net, nn.Linear(self.buffer.shape[1], self.lazy.size() * self.holder.width()))


@pytest.mark.parametrize("kind", [OfDataset, Logs, Lazily])
def test_what_raygpu_and_memos_change_is_no_change(kind: type[Base]) -> None:
    experiment = kind()
    before = SetByData(experiment)
    experiment.data()
    experiment.model({})
    assert (before.changed(), before.doubt()) == (None, None)


class PassesOn(Base):
    def data(self) -> Splits:
        ARGS.n = 60
        return splits()

    def model(self, hp: Any) -> nn.Module:
        return Net(ARGS)


class Net(nn.Module):
    def __init__(self, options: Any) -> None:
        super().__init__()
        self.last = nn.Linear(2, options.hidden)


class ReadsThreeParts(Base):
    def data(self) -> Splits:
        shared_objects.STATS.hidden += 1
        return splits()

    def model(self, hp: Any) -> nn.Module:
        return nn.Linear(2, shared_objects.STATS.hidden)


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        (PassesOn, "changes the global ARGS, which model() uses as a whole"),
        (FitsScaler, "changes self.scaler, which metrics() uses as a whole"),
    ],
)
def test_an_object_that_is_passed_on_has_a_line(kind: type[Base], line: str) -> None:
    ARGS.n = None
    experiment = kind()
    before = SetByData(experiment)
    assert before.doubt() is None
    experiment.data()
    assert (before.changed(), before.doubt()) == (None, line)


def test_a_name_of_three_parts_is_compared_by_itself() -> None:
    experiment = ReadsThreeParts()
    before = SetByData(experiment)
    experiment.data()
    assert before.changed() == "the global shared_objects.STATS.hidden, which model() reads"


def test_pairs_of_variables_are_read_as_newer_pythons_write_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.13 stores one variable and loads another in one instruction, as in a comprehension."""
    pair = Namespace(opname="STORE_FAST_LOAD_FAST", argval=("word", "self"))
    monkeypatch.setattr(
        names_used.dis, "get_instructions", lambda code: [pair, Namespace(opname="LOAD_ATTR", argval="v"), pair]
    )
    accesses = names_used._accesses(test_a_name_of_three_parts_is_compared_by_itself.__code__, "self")
    assert next(accesses).path == ("v",)
