"""The first step of an experiment: a loss that compares each sample with each is told from one that is random."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss, poisson_nll_loss

from raygpu import Splits, TorchExperiment
from raygpu.training.torch import first_step
from raygpu.training.torch.first_step import first_result
from raygpu.training.torch.random_outputs import substitutes as all_substitutes

X = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)


class Regression(TorchExperiment):
    """Its targets are (batch,), and its outputs (batch, 1)."""

    missing = 0

    def data(self) -> Splits:
        targets = X[:, 0].copy()
        targets[: self.missing] = np.nan
        return Splits(X, targets, X[:8], targets[:8])

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return nn.Linear(4, 1)

    def loss(self, outputs: Any, targets: Any) -> Any:
        return ((outputs.squeeze(-1) - targets.reshape(-1)) ** 2).mean()

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        return {}


class Noisy(Regression):
    def loss(self, outputs: Any, targets: Any) -> Any:
        return super().loss(outputs, targets.reshape(-1) + 0.1 * torch.randn(len(targets)))


class Missing(Regression):
    missing = 2


class EachWithEach(Regression):
    def loss(self, outputs: Any, targets: Any) -> Any:
        return (outputs - targets).square().mean()


class Squeezed(Regression):
    def loss(self, outputs: Any, targets: Any) -> Any:
        return mse_loss(outputs.squeeze(-1), targets)

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        return {"mae": (outputs[:, 0] - targets).abs().mean(), "bias": outputs.mean() - targets.mean()}


class Binary(Regression):
    def loss(self, outputs: Any, targets: Any) -> Any:
        return binary_cross_entropy_with_logits(outputs.squeeze(1), (targets > 0).float())


class SquaredSum(Squeezed):
    def loss(self, outputs: Any, targets: Any) -> Any:
        return (outputs - targets).square().sum()


class WrongMetric(Squeezed):
    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        return {"rmse": (outputs - targets).square().mean().sqrt()}


class WrongStep(Squeezed):
    def training_step(self, model: nn.Module, inputs: Any, targets: Any, hp: Mapping[str, Any]) -> Any:
        return (model(inputs) - targets).square().mean()


class WholeTargets(Squeezed):
    def data(self) -> Splits:
        counts = np.arange(len(X)) % 5
        return Splits(X, counts, X[:8], counts[:8])

    def loss(self, outputs: Any, targets: Any) -> Any:
        return poisson_nll_loss(outputs, targets)

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        return {}


class TrainsWithoutReturn(Squeezed):
    """`train()` returns nothing, and so does `eval()`."""

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        class Model(nn.Linear):
            def train(self, mode: bool = True) -> None:  # type: ignore[override]
                super().train(mode)

        return Model(4, 1)


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 1), nn.Linear(4, 1)

    def forward(self, inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"first": self.first(inputs), "second": self.second(inputs)}


class SeveralTargets(Squeezed):
    def data(self) -> Splits:
        targets = {"first": X[:, 0], "second": X[:, 1]}
        return Splits(X, targets, X[:8], {name: each[:8] for name, each in targets.items()})

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return Pair()

    def loss(self, outputs: Any, targets: Any) -> Any:
        return sum((outputs[name] - targets[name]).square().mean() for name in targets)

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        return {}


class Sparse(Squeezed):
    """Outputs that NumPy has no arrays for, beside the one that counts."""

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        class Model(nn.Linear):
            def forward(self, inputs: torch.Tensor) -> Any:
                rows = super().forward(inputs)
                return rows, rows.to_sparse(), rows.bfloat16(), torch.complex(rows, rows).conj()

        return Model(4, 1)

    def loss(self, outputs: Any, targets: Any) -> Any:
        return super().loss(outputs[0], targets)

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        return super().metrics(outputs[0], targets)


class Gaussian(Squeezed):
    """A mean and a variance for each sample, whose likelihood is that of targets (batch, 1)."""

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return nn.Linear(4, 2)

    def loss(self, outputs: Any, targets: Any) -> Any:
        return self.likelihood(*outputs.chunk(2, -1), targets.reshape(-1, 1))

    def likelihood(self, mean: Any, log_variance: Any, targets: Any) -> Any:
        return ((targets - mean).square() * (-log_variance).exp() + log_variance).mean()


class GaussianColumns(Gaussian):
    """Its columns have the shape of its targets."""

    def loss(self, outputs: Any, targets: Any) -> Any:
        return self.likelihood(*outputs.unbind(-1), targets)


class EachGaussian(Gaussian):
    def loss(self, outputs: Any, targets: Any) -> Any:
        return self.likelihood(*outputs.chunk(2, -1), targets)


class Classes(Squeezed):
    """Class indices in a column."""

    def data(self) -> Splits:
        labels = np.arange(len(X))[:, None] % 3
        return Splits(X, labels, X[:8], labels[:8])

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return nn.Linear(4, 3)

    def loss(self, outputs: Any, targets: Any) -> Any:
        return cross_entropy(outputs, targets.squeeze(1))

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        return {"accuracy": (outputs.argmax(1) == targets.squeeze(1)).float().mean()}


class EachClass(Classes):
    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        return {"accuracy": (outputs.argmax(1) == targets).float().mean()}


class Rare(Squeezed):
    """Its untrained model predicts the same for all samples, which in most of them is right."""

    def data(self) -> Splits:
        labels = (np.arange(len(X)) == 5).astype(np.float32)
        return Splits(X, labels, X[:8], labels[:8])

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        model = nn.Linear(4, 1)
        nn.init.constant_(model.bias, -9)
        return model

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        return {"accuracy": ((outputs.squeeze(1) > 0).float() == targets).float().mean()}


class EachRare(Rare):
    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        return {"accuracy": ((outputs > 0).float() == targets).float().mean()}


@pytest.mark.parametrize(
    ("kind", "shapes"),
    [
        (EachGaussian, r"loss\(\) gets outputs \(8, 2\) and targets \(8,\)"),
        (EachRare, r"the metric .accuracy. gets outputs \(8, 1\) and targets \(8,\)"),
        (EachClass, r"the metric .accuracy. gets outputs \(8, 3\) and targets \(8, 1\)"),
    ],
)
def test_what_the_outputs_of_an_untrained_model_may_hide(kind: type[Regression], shapes: str) -> None:
    with pytest.raises(ValueError, match=f"{shapes}, and compares each with each: .* targets.reshape"):
        first_result(kind(), kind().data(), {})


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (EachWithEach, r"loss\(\)"),
        (SquaredSum, r"loss\(\)"),
        (WholeTargets, r"loss\(\)"),
        (SeveralTargets, r"loss\(\)"),
        (WrongMetric, "the metric .rmse."),
        (WrongStep, r"training_step\(\)"),
    ],
)
def test_what_compares_each_with_each_is_refused(kind: type[Regression], name: str) -> None:
    with pytest.raises(ValueError, match=rf"{name} gets outputs \(8, 1\) and targets \(8,\), and compares each"):
        first_result(kind(), kind().data(), {})


class Counted:
    """The mean of all values so far, as a metric object's `update` and `compute`."""

    def __init__(self) -> None:
        self.values: list[torch.Tensor] = []

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        self.values.append(values)
        return torch.cat(self.values).mean()


class AddsUp(Squeezed):
    def __init__(self) -> None:
        self.mean = Counted()

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        return {"mae": self.mean((outputs[:, 0] - targets).abs())}


def test_a_metric_that_adds_up_what_it_has_seen_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"the metric .mae. of some samples is .* it depends on what was evaluated before: compute"
    ):
        first_result(AddsUp(), AddsUp().data(), {})


class AddsUpHits(Classes):
    """Its untrained model is wrong for all samples; `num_classes` of them are never right by chance."""

    num_classes = 1000

    def __init__(self) -> None:
        self.mean = Counted()

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        model = nn.Linear(4, self.num_classes)
        nn.init.constant_(model.bias[-1:], 99)
        return model

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        return {"accuracy": self.mean((outputs.argmax(1) == targets.squeeze(1)).float())}


class AddsUpFew(AddsUpHits):
    num_classes = 5


class AddsUpSigns(Rare):
    """Its untrained model predicts the same for all samples."""

    def __init__(self) -> None:
        self.mean = Counted()

    def data(self) -> Splits:
        labels = (np.arange(len(X)) % 2).astype(np.float32)
        return Splits(X, labels, X[:8], labels[:8])

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        return {"accuracy": self.mean(((outputs.squeeze(1) > 0).float() == targets).float())}


@pytest.mark.parametrize("kind", [AddsUpHits, AddsUpFew, AddsUpSigns])
def test_a_metric_that_adds_up_hits_is_refused(kind: type[Regression]) -> None:
    with pytest.raises(
        ValueError, match=r"the metric .accuracy. of some samples is .*: it depends on what was evaluated before"
    ):
        first_result(kind(), kind().data(), {})


def test_few_of_many_numbers_tell_that_a_metric_adds_up_hits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs of a language model have 10**8 numbers."""
    substitutes = Mock(side_effect=all_substitutes)
    monkeypatch.setattr(first_step, "substitutes", substitutes)
    monkeypatch.setattr(first_step, "MANY_NUMBERS", 100)
    with pytest.raises(ValueError, match=r"the metric .accuracy. of some samples is "):
        first_result(AddsUpHits(), AddsUpHits().data(), {})
    assert [call.args[0].shape for call in substitutes.call_args_list] == [(1, 1000)]


class OwnDraws(Squeezed):
    """A metric by chance, with a generator of its own, and one that takes time."""

    def __init__(self) -> None:
        self.draw = np.random.default_rng(0)

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        chosen = self.draw.integers(len(outputs), size=4)
        return {"mae": (outputs[:, 0] - targets)[chosen].abs().mean(), "at": time.perf_counter()}


class Outputs(Squeezed):
    """A model whose outputs are no tensor."""

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        class Model(nn.Linear):
            def forward(self, inputs: torch.Tensor) -> Any:
                return torch.distributions.Normal(super().forward(inputs).squeeze(-1), 1.0), None

        return Model(4, 1)

    def loss(self, outputs: Any, targets: Any) -> Any:
        return -outputs[0].log_prob(targets).mean()

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        return {"mae": (outputs[0].mean - targets).abs().mean()}


@pytest.mark.parametrize(
    "kind",
    [
        Regression,
        Sparse,
        Noisy,
        Missing,
        Squeezed,
        TrainsWithoutReturn,
        Binary,
        OwnDraws,
        Outputs,
        Gaussian,
        GaussianColumns,
        Classes,
        Rare,
    ],
)
def test_losses_that_compare_sample_by_sample(kind: type[Regression]) -> None:
    result, *_ = first_result(kind(), kind().data(), {})
    assert "train/loss" in result.metrics


class OwnParameter(Squeezed):
    """Weighs its loss by a number that is to be learned."""

    def __init__(self) -> None:
        self.weight = nn.Parameter(torch.zeros(()))

    def loss(self, outputs: Any, targets: Any) -> Any:
        return super().loss(outputs, targets) * self.weight.exp()


class OwnModule(Squeezed):
    """Compares what another network says of outputs and targets."""

    def __init__(self) -> None:
        self.features = nn.Linear(1, 3)

    def loss(self, outputs: Any, targets: Any) -> Any:
        return mse_loss(self.features(outputs), self.features(targets.reshape(-1, 1)))


class Listed(OwnModule):
    """Keeps its network in a list."""

    def __init__(self) -> None:
        self.features = [nn.Linear(1, 3)]  # type: ignore[assignment]

    def loss(self, outputs: Any, targets: Any) -> Any:
        [features] = self.features  # type: ignore[misc]
        return mse_loss(features(outputs), features(targets.reshape(-1, 1)))  # type: ignore[has-type]


class Taught(Squeezed):
    """Learns from a part of the model that is in evaluation mode."""

    def __init__(self, *, frozen: bool, learns: bool = False) -> None:
        self.frozen, self.learns = frozen, learns

    def model(self, hp: Any) -> nn.Module:
        model = super().model(hp)
        model.teacher = nn.Sequential(nn.Linear(4, 1), nn.Dropout()).eval().requires_grad_(not self.frozen)
        return model

    def training_step(self, model: Any, inputs: Any, targets: Any, hp: Any) -> Any:
        with torch.set_grad_enabled(self.learns):
            wanted = model.teacher(inputs)
        return mse_loss(model(inputs).reshape(-1, 1), wanted)


def test_a_part_in_evaluation_mode_that_nothing_trains_is_told() -> None:
    [line] = first_result(Taught(frozen=False), Taught(frozen=False).data(), {})[2]
    assert line.startswith("teacher of the model is in evaluation mode and gets no gradient")
    for quiet in (Taught(frozen=True), Taught(frozen=False, learns=True)):
        assert first_result(quiet, quiet.data(), {})[2] == []


CENTER = nn.Sequential(nn.Linear(1, 3))
SCALES = {"one": nn.Parameter(torch.ones(()))}


class OfGlobal(Squeezed):
    """Its training step has a loss with parameters in a variable of the module."""

    def training_step(self, model: nn.Module, inputs: Any, targets: Any, hp: Any) -> Any:
        return compared(model(inputs), targets.reshape(-1, 1))


class OfGlobalParameter(Squeezed):
    def training_step(self, model: nn.Module, inputs: Any, targets: Any, hp: Any) -> Any:
        return mse_loss(model(inputs) * SCALES["one"], targets.reshape(-1, 1))


def compared(outputs: Any, targets: Any) -> Any:
    return mse_loss(CENTER(outputs), targets.expand(-1, 3))


def test_what_is_trained_in_a_variable_of_the_module_is_told() -> None:
    [line] = first_result(OfGlobal(), OfGlobal().data(), {})[2]
    assert line.startswith("the global CENTER.0.weight gets a gradient and is no part of the model")
    [line] = first_result(OfGlobalParameter(), OfGlobalParameter().data(), {})[2]
    assert line.startswith("the global SCALES['one'] gets a gradient and is no part of the model")


def test_what_is_trained_outside_the_model_is_told() -> None:
    [line] = first_result(OwnParameter(), OwnParameter().data(), {})[2]
    assert line.startswith("self.weight gets a gradient and is no part of the model, so that no optimizer changes it")
    frozen = OwnParameter()
    frozen.weight.requires_grad = False
    assert first_result(frozen, frozen.data(), {})[2] == []
    [line] = first_result(Listed(), Listed().data(), {})[2]
    assert line.startswith("self.features gets a gradient")
    [line] = first_result(OwnModule(), OwnModule().data(), {})[2]
    assert line.startswith("self.features gets a gradient and is no part of the model, so that no optimizer changes it")
    frozen_module = OwnModule()
    frozen_module.features.requires_grad_(False)
    assert first_result(frozen_module, frozen_module.data(), {})[2] == []
