"""Trials of one worker: each begins with the experiment as it was made."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from torch import nn

from raygpu.config.source import Source
from raygpu.experiment import Splits
from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from raygpu.training.fused.model_array import TorchArray
from raygpu.training.own_copy import LARGE, MANY, own_copy, shared_lines
from raygpu.training.start import start
from raygpu.training.torch.experiment import TorchExperiment
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


def test_parameters_are_copied_and_large_arrays_are_shared() -> None:
    class Kept:
        pass

    code: Any = Kept()
    code.data = {"x": np.empty(LARGE + 1, np.uint8)}
    code.table = pandas.DataFrame({"x": np.empty(LARGE // 8 + 1)})
    code.rows = [{"x": number} for number in range(MANY + 1)]
    code.tensor = torch.from_numpy(code.data["x"])
    code.layers = [nn.BatchNorm1d(3)]
    code.mean = torch.zeros(2)
    found = own_copy(code)
    assert found.data["x"] is code.data["x"]
    assert found.table is code.table
    assert found.rows is code.rows
    assert found.tensor is code.tensor
    assert found.layers[0] is not code.layers[0]
    assert found.layers[0].weight is not code.layers[0].weight
    assert found.layers[0].running_mean is not code.layers[0].running_mean
    assert found.mean is not code.mean


@pytest.mark.parametrize("frozen", [False, True])
def test_a_large_parameter_takes_memory_once_it_is_written_to(frozen: bool) -> None:
    class Kept:
        def __init__(self) -> None:
            self.table = nn.Embedding(LARGE // 64 + 1, 16).requires_grad_(not frozen)
            self.tied = self.table.weight

    code = Kept()
    first = code.table.weight[0].detach().clone()
    copy = own_copy(code)
    assert isinstance(copy.tied, nn.Parameter)
    assert copy.tied is copy.table.weight
    assert copy.tied.requires_grad is not frozen
    assert torch._C._is_cow_tensor(copy.tied)
    with torch.no_grad():
        copy.table.weight[0].add_(1)
    assert torch.equal(code.table.weight[0], first)
    assert torch.equal(copy.table.weight[0], first + 1)


def test_an_experiment_without_attributes_has_none_of_another_trial() -> None:
    class Plain:
        def step(self) -> None:
            self.count = 1

    code = Plain()
    copy = own_copy(code)
    copy.step()
    assert vars(code) == {}
    assert own_copy(metrics) is metrics


def test_what_cannot_be_copied_is_shared_and_the_rest_is_copied() -> None:
    class Log:
        def __init__(self) -> None:
            self.lock, self.lines = threading.Lock(), ["begun"]

    class Kept:
        def __init__(self) -> None:
            self.log, self.counts = Log(), [0]
            self.product = torch.ones(1, requires_grad=True) * 2

    code = Kept()
    copy = own_copy(code)
    assert copy.counts == [0]
    assert copy.counts is not code.counts
    assert copy.log.lines is not code.log.lines
    assert copy.log.lock is code.log.lock
    assert copy.product is code.product


def schedule() -> Iterator[float]:
    yield from itertools.count()


def test_what_cannot_be_copied_and_goes_on_is_named(tmp_path: Path) -> None:
    samples = torch.utils.data.TensorDataset(torch.zeros(8))
    (tmp_path / "rows.txt").write_text("1\n")
    with open(tmp_path / "rows.txt") as rows, open(tmp_path / "log.txt", "w") as log:

        class Kept:
            def __init__(self) -> None:
                self.weights, self.batches = schedule(), iter(torch.utils.data.DataLoader(samples))
                self.parts, self.rows = {"pairs": [zip(schedule(), schedule(), strict=True)]}, rows
                self.log, self.lock, self.product = log, threading.Lock(), torch.ones(1, requires_grad=True) * 2
                self.copied, self.loader = iter([1, 2]), torch.utils.data.DataLoader(samples)
                self.generator, self.draw = torch.Generator(), np.random.default_rng(0)

        lines = shared_lines(Kept())
    named = [line.partition(" cannot be copied")[0] for line in lines]
    kinds = {
        "weights": "generator",
        "batches": "_SingleProcessDataLoaderIter",
        "parts": "dict",
        "rows": "TextIOWrapper",
    }
    assert named == [f"self.{name} ({kind})" for name, kind in kinds.items()]
    assert shared_lines(own_copy) == []


class Yielding(TorchExperiment):
    """Has a schedule that a trial makes for itself, as the line says."""

    def data(self) -> Splits:
        return ZOO["annealed-loss"]().data()

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        self.weights = schedule()
        return nn.Linear(12, 4)

    def loss(self, outputs: Any, targets: Any) -> Any:
        return (1 + next(self.weights)) * nn.functional.cross_entropy(outputs, targets)


class Importing(TorchExperiment):
    """Its functions hold modules and classes, as where `__init__` imports them."""

    def __init__(self) -> None:
        import numpy
        import torch

        kind = torch.Tensor
        self.modules = {"numpy": numpy}
        self.act = lambda x: torch.relu(x) if isinstance(x, kind) else numpy.maximum(x, 0)

    def data(self) -> Splits:
        raise NotImplementedError

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        raise NotImplementedError


def test_functions_that_hold_modules_and_classes_are_copied() -> None:
    copied = own_copy(Importing())
    assert copied.act(-1.0) == 0
    assert shared_lines(copied) == []


def test_an_iterator_that_model_makes_is_the_trial_s_own() -> None:
    code = Yielding()
    first, again = (metrics(ZOO["annealed-loss"](), code) for _ in range(2))
    assert first == again
    assert shared_lines(code) == []


def test_an_experiment_that_refuses_to_be_copied_is_taken_as_it_is() -> None:
    class Refusing:
        def __reduce_ex__(self, protocol: Any) -> Any:
            raise TypeError("no copy")

    code = Refusing()
    assert own_copy(code) is code


class Backbone(TorchExperiment):
    """Holds pretrained layers, which a trial freezes or trains."""

    def __init__(self) -> None:
        torch.manual_seed(5)
        self.lock = threading.Lock()
        self.backbone = nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU())

    def data(self) -> Splits:
        generator = np.random.default_rng(0)
        x = 3 + generator.standard_normal((96, 12)).astype(np.float32)
        y = x[:, :4].argmax(1)
        return Splits(x[:64], y[:64], x[64:], y[64:])

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        self.backbone.requires_grad_(hp["freeze"] == "never")
        return nn.Sequential(self.backbone, nn.Linear(16, 4))


class Unfreezing(Backbone):
    """The same with layers that may be frozen in the first epoch alone."""

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        model = super().model(hp)
        model.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        return model

    def optimizer(self, model: nn.Module, hp: Mapping[str, Any]) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=hp["lr"])

    def training_step(self, model: nn.Module, inputs: Any, targets: Any, hp: Mapping[str, Any]) -> Any:
        model.seen += len(inputs)
        if hp["freeze"] == "first epoch" and model.seen > 64:
            model[0].requires_grad_(True)
        return self.loss(model(inputs), targets)


def backbone_trial(code: Backbone, freeze: str) -> list[Any]:
    trial = Trial("t0000", 3, {"lr": 0.5, "batch_size": 32, "freeze": freeze})
    source, settings = Source("torch", "here", str(Path.cwd())), Settings(3, 1, "float32", Path())
    training = start(source, code, code.data(), trial, settings)
    return [result.metrics for result in iter(training.run_epoch, None)]


@pytest.mark.parametrize("first", ["never", "always", "first epoch"])
def test_trials_of_a_worker_begin_with_the_backbone_that_was_loaded(first: str) -> None:
    code = Unfreezing()
    before = {name: value.clone() for name, value in code.backbone.state_dict().items()}
    for freeze in (first, "never", "always", "first epoch"):
        assert backbone_trial(code, freeze) == backbone_trial(Unfreezing(), freeze)
    assert all(torch.equal(value, before[name]) for name, value in code.backbone.state_dict().items())


def test_an_array_begins_with_the_backbone_that_was_loaded() -> None:
    code = Backbone()
    trials = [Trial(f"t{i}", i, {"lr": 0.1 * (i + 1), "batch_size": 32, "freeze": "never"}) for i in range(3)]
    backbone_trial(code, "never")
    for _ in range(2):
        array = TorchArray(code, code.data(), trials, Settings(2, 1, "float32", Path()), device=torch.device("cpu"))
        for name, value in Backbone().backbone.state_dict().items():
            stacked = (array.tiles[0].parameters | array.tiles[0].buffers)[f"0.{name}"]
            assert all(torch.equal(row, value) for row in stacked)
        assert array.run_epoch() is not None  # audited
