"""What is told of batches in parts, and of metrics that an evaluation takes in batches, and what is refused."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from raygpu import Mean, Splits, Sum
from raygpu.config import TrainConfig
from raygpu.config.source import Source
from raygpu.errors import BadInput
from raygpu.training.distributed import loss_check
from raygpu.training.distributed.batch_split import checked, spread
from raygpu.training.distributed.micro_batch_check import (
    evaluation_lines,
    inexact_metrics,
    lines_of_parts,
    metric_lines,
)
from raygpu.training.distributed.torch_loss_check import TorchLossEvaluator
from raygpu.training.random_outputs import SEEDS
from tests.models import few
from tests.training.distributed.parallel_cases import Plain, Sparse

HERE = Source("torch", "here:Experiment", str(Path.cwd()))


class Third(Plain):
    """The share of hits among the samples of one digit."""

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        return {"third": (outputs.argmax(1) == targets)[targets == 3].float().mean()}


def with_test_data(num_validation: int, num_test: int) -> Splits:
    part = few(90, 16)
    inputs, targets = np.asarray(part.train_inputs), np.asarray(part.train_targets)
    rows, others = np.arange(num_validation) % 90, np.arange(num_test) % 90
    return Splits(inputs, targets, inputs[rows], targets[rows], inputs[others], targets[others])


@pytest.mark.parametrize(
    ("num_validation", "num_test", "beginning"),
    [
        (300, 5200, "test/third, of 5,200 samples, is the mean of batches of 1,024, as it is no mean over samples: "),
        (1200, 90, "validation/third, of 1,200 samples, is the mean of batches of 1,024, as it is no mean"),
        (1200, 5200, "validation/third, of 1,200 samples, and test/third, of 5,200 samples, are the mean of batches"),
    ],
)
def test_a_metric_of_batches_of_the_test_data_is_told(num_validation: int, num_test: int, beginning: str) -> None:
    (line,) = inexact_metrics(HERE, Third(), {}, with_test_data(num_validation, num_test))
    assert line.startswith(beginning)


class Ranked(Plain):
    """The area under the curve of each class, which needs a sample of each; with it a mean and a sum."""

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        labels, scores = targets.numpy(), outputs.softmax(1).double().numpy()
        area = roc_auc_score(labels, scores / scores.sum(1, keepdims=True), multi_class="ovr")
        hits = outputs.argmax(1) == targets
        return {"accuracy": hits.float().mean(), "area": area, "hits": Sum(hits.sum())}


class OfLarge(Plain):
    """Its metrics need more samples than are looked at."""

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        if len(targets) < 1000:
            raise ValueError("too few samples")
        return {"accuracy": (outputs.argmax(1) == targets).float().mean()}


def test_a_metric_that_few_samples_do_not_have_is_compared_by_larger_parts() -> None:
    (line,) = metric_lines(HERE, Ranked(), {}, with_test_data(1200, 90))
    assert line.startswith("validation/area, of 1,200 samples, is the mean of batches of 1,024, as it is no mean")


def test_a_metric_that_cannot_be_looked_at_is_told_and_not_refused() -> None:
    values = {"experiment": "a:B", "epochs": 2, "hyperparameters": {"batch_size": 8}}
    config, splits = TrainConfig.model_validate(values), with_test_data(1200, 90)
    for devices in (1, 2):
        plan = spread(config, devices, 90)
        (line,) = set(checked(config, plan, devices, HERE, OfLarge(), splits).lines) - {*plan.lines}
        assert "whether its metrics are means over samples is not known" in line
        assert "too few samples" in line
        assert metric_lines(HERE, OfLarge(), {}, splits) == [line]
    assert metric_lines(HERE, OfLarge(), {}, with_test_data(300, 900)) == []


class Weighted(Plain):
    """Its loss takes float32 alone, and its metrics more than two samples."""

    def __init__(self) -> None:
        self.evaluated: list[tuple[torch.dtype, int]] = []
        self.seconds, self.smallest = 0.0, 3

    def loss(self, outputs: Any, targets: Any) -> Any:
        self.evaluated.append((outputs.dtype, len(outputs)))
        return torch.nn.functional.cross_entropy(outputs, targets, weight=torch.ones(10))

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        time.sleep(self.seconds * len(targets))
        if len(targets) < self.smallest:
            raise ValueError("too few samples")
        return {"accuracy": (outputs.argmax(1) == targets).float().mean()}


def test_a_loss_in_float32_alone_is_tried_in_float64_with_two_samples() -> None:
    experiment = Weighted()
    assert inexact_metrics(HERE, experiment, {}, with_test_data(1200, 90)) == []
    assert {count for dtype, count in experiment.evaluated if dtype == torch.float64} == {2}


def test_metrics_that_fail_on_few_samples_are_tried_with_as_many_as_time_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loss_check, "BUDGET_S", 0.1)
    experiment = Weighted()
    experiment.seconds, experiment.smallest = 0.002, 300
    (line,) = metric_lines(HERE, experiment, {}, with_test_data(1200, 90))
    assert "too few samples" in line
    assert max(count for _, count in experiment.evaluated) <= 32


def test_metrics_of_one_batch_need_no_word() -> None:
    assert inexact_metrics(HERE, Third(), {}, with_test_data(300, 900)) == []


class Unseen(Plain):
    """Scores of one digit, which the untrained model predicts for none; its loss takes probabilities alone."""

    def model(self, hp: Any) -> Any:
        model = torch.nn.Sequential(torch.nn.Linear(64, 1), torch.nn.Sigmoid())
        torch.nn.init.constant_(model[0].bias, -9)  # type: ignore[arg-type]
        return model

    def loss(self, outputs: Any, targets: Any) -> Any:
        return torch.nn.functional.binary_cross_entropy(outputs[:, 0], (targets == 3).to(outputs))

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        found, wanted = outputs[:, 0] > 0.5, targets == 3
        hits = (found & wanted).sum()
        return {
            "f1": 2 * hits / (found.sum() + wanted.sum()).clamp(min=1),
            "precision": hits / found.sum(),
            "accuracy": (found == wanted).double().mean(),
            "share": Mean(hits, found.sum()),
        }


def test_a_metric_is_told_where_the_untrained_model_hides_it() -> None:
    lines = inexact_metrics(HERE, Unseen(), {}, with_test_data(1200, 90))
    assert sorted(line.partition(",")[0] for line in lines) == ["validation/f1", "validation/precision"]
    assert all(": tried with random numbers for outputs: " in line and " samples together, " in line for line in lines)


class Counted(Unseen):
    """Scores that are means, whose calls are counted."""

    calls = 0

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        type(self).calls += 1
        hits = ((outputs[:, 0] > 0.5) == (targets == 3)).double()
        return {"accuracy": hits.mean(), "hits": Sum(hits.sum()), "share": Mean(hits.sum(), len(hits))}


def test_several_metrics_of_random_outputs_are_evaluated_together_and_while_time_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    splits = with_test_data(1200, 90)
    look = TorchLossEvaluator(Counted(), {}, splits.train_inputs, splits.train_targets, with_metrics=True)
    rows, calls_of_cuts = np.arange(90), sum(map(len, loss_check.cuts(90)))
    Counted.calls = 0
    assert loss_check._random_differences(look, rows, []) == []
    assert Counted.calls == len(SEEDS) * (2 + calls_of_cuts)
    monkeypatch.setattr(loss_check, "BUDGET_S", 0.0)
    Counted.calls = 0
    assert loss_check._random_differences(look, rows, []) == []
    assert Counted.calls == len(SEEDS) * 2


class Lazy(Sparse):
    """Its optimizer takes sparse gradients alone."""

    def model(self, hp: Any) -> Any:
        model = super().model(hp)
        model.last.requires_grad_(False)
        return model

    def optimizer(self, model: Any, hp: Any) -> Any:
        return torch.optim.SparseAdam([*model.tokens.parameters()], lr=0.01)


SPARSE = r"optimizer\(\) returned SparseAdam, which takes sparse gradients"


@pytest.mark.parametrize(
    ("devices", "accumulate", "fault"), [(2, 1, f"^workers: {SPARSE}.* train on one device"), (1, 2, "^accumulate: ")]
)
def test_an_optimizer_of_sparse_gradients_takes_whole_batches(devices: int, accumulate: int, fault: str) -> None:
    values = {"experiment": "a:B", "epochs": 2, "hyperparameters": {"batch_size": 8}, "accumulate": accumulate}
    config, own = TrainConfig.model_validate(values), Lazy()
    plan, one = spread(config, devices, 90), spread(config.model_copy(update={"accumulate": 1}), 1, 90)
    with pytest.raises(BadInput, match=fault):
        checked(config, plan, devices, HERE, own, own.data())
    with pytest.raises(BadInput, match=f"^micro_batch_size: {SPARSE}.* leave it out"):
        lines_of_parts(HERE, own, {"batch_size": 8, "micro_batch_size": 4}, own.data())
    assert checked(config, one, 1, HERE, own, own.data()).lines == one.lines
    own_sgd = Sparse()
    assert checked(config, plan, devices, HERE, own_sgd, own_sgd.data()).lines == plan.lines


class Easing(Plain):
    """An evaluation lowers the margin of its loss."""

    margin = 1.0

    def loss(self, outputs: Any, targets: Any) -> Any:
        return torch.nn.functional.cross_entropy(outputs, targets) + self.margin

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        self.margin = 0.9 * self.margin
        return {"accuracy": (outputs.argmax(1) == targets).float().mean()}


class _Cooling(torch.nn.Linear):
    """Its temperature falls in each evaluation, as an attribute, and its scale as a buffer."""

    def __init__(self) -> None:
        super().__init__(64, 10)
        self.temperature, self.outputs = 1.0, torch.zeros(())
        self.register_buffer("scale", torch.ones(()))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if not self.training:
            self.temperature *= 0.9
            self.scale *= 0.9
        self.outputs = super().forward(inputs) * self.scale / self.temperature
        return self.outputs


class Cooling(Plain):
    def model(self, hp: Any) -> Any:
        return torch.nn.Sequential(_Cooling())


class Counts(Plain):
    """Counts its losses, in a training too."""

    count = 0

    def loss(self, outputs: Any, targets: Any) -> Any:
        self.count += 1
        return super().loss(outputs, targets)


def lines_of_evaluation(kind: type[Plain]) -> list[str]:
    splits = kind().data()
    return evaluation_lines(
        TorchLossEvaluator(kind(), {}, splits.train_inputs, splits.train_targets, with_metrics=False)
    )


@pytest.mark.parametrize(("kind", "name"), [(Easing, "Easing.margin"), (Cooling, "_Cooling.0.temperature")])
def test_state_that_only_the_evaluating_device_changes_is_told(kind: type[Plain], name: str) -> None:
    (line,) = lines_of_evaluation(kind)
    assert line.startswith(f"{name} changes in an evaluation, which the first device alone runs: ")


@pytest.mark.parametrize("kind", [Plain, Counts])
def test_state_that_a_training_changes_too_is_told_elsewhere(kind: type[Plain]) -> None:
    assert lines_of_evaluation(kind) == []


@pytest.mark.parametrize(
    ("devices", "sharding", "is_told"), [(1, "auto", False), (2, "auto", True), (2, "full", False)]
)
def test_state_of_evaluations_is_told_where_one_of_several_devices_evaluates(
    devices: int, sharding: str, is_told: bool
) -> None:
    values = {"experiment": "a:B", "epochs": 2, "hyperparameters": {"batch_size": 8}, "sharding": sharding}
    config = TrainConfig.model_validate(values)
    lines = checked(config, spread(config, devices, 90), devices, HERE, Easing(), few(90, 16)).lines
    assert any(line.startswith("Easing.margin changes in an evaluation") for line in lines) == is_told
