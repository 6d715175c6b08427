"""Trials of one worker: each begins with the experiment as it was made."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from torch import nn

from raygpu.config.source import Source
from raygpu.training.base import Settings
from raygpu.training.own_copy import LARGE, MANY, own_copy
from raygpu.training.start import start
from tests.contracts.zoo import ZOO, Entry

KEEPING = ["loss-with-running-mean", "annealed-loss", "loss-with-a-module-of-its-own", "counts-steps"]


def metrics(entry: Entry, code: Any) -> list[Any]:
    source, trial = Source("torch", "here", str(Path.cwd())), entry.trials()[1]
    training = start(source, code, entry.data(), trial, Settings(entry.epochs, 1, "float32", Path()))
    return [result.metrics for result in iter(training.run_epoch, None)]


@pytest.mark.parametrize("name", KEEPING)
def test_the_second_trial_of_a_worker_is_the_first_one_again(name: str) -> None:
    code = ZOO[name]()
    first = metrics(ZOO[name](), code)
    assert metrics(ZOO[name](), code) == first


def test_parameters_that_train_and_large_arrays_are_shared() -> None:
    class Kept:
        pass

    code: Any = Kept()
    code.data = {"x": np.empty(LARGE + 1, np.uint8)}
    code.table = pandas.DataFrame({"x": np.empty(LARGE // 8 + 1)})
    code.rows = [{"x": number} for number in range(MANY + 1)]
    code.layers = [nn.BatchNorm1d(3)]
    code.mean = torch.zeros(2)
    found = own_copy(code)
    assert found.data["x"] is code.data["x"]
    assert found.table is code.table
    assert found.rows is code.rows
    assert found.layers[0] is not code.layers[0]
    assert found.layers[0].weight is code.layers[0].weight
    assert found.layers[0].running_mean is not code.layers[0].running_mean
    assert found.mean is not code.mean


def test_an_experiment_without_attributes_has_none_of_another_trial() -> None:
    class Plain:
        def step(self) -> None:
            self.count = 1

    code = Plain()
    copy = own_copy(code)
    copy.step()
    assert vars(code) == {}
    assert own_copy(metrics) is metrics


def test_an_experiment_that_cannot_be_copied_is_taken_as_it_is() -> None:
    class Locked:
        def __init__(self) -> None:
            self.lock = threading.Lock()

    code = Locked()
    assert own_copy(code) is code
