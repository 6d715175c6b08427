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
