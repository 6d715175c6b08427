"""Each member of an array equals the same trial trained alone."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from torch import nn

from raygpu.experiment import Experiment, Mean, Splits, Sum, TorchExperiment
from raygpu.search.trials import EpochResult, Trial
from raygpu.training.base import ARRAY_CHECKPOINT, NotAsAlone, Settings
from raygpu.training.fused import model_array
from raygpu.training.fused.audit import same_steps
from raygpu.training.fused.model_array import TorchArray, save_saved_members
from raygpu.training.torch.solo import CHECKPOINT, TorchSolo
from tests.models import MODELS, NUM_TRAIN, Cnn, Mlp, few

CPU = torch.device("cpu")
EPOCHS = 5
EXACT = 1e-9
"""In float64, over five epochs."""
SGD: list[dict[str, Any]] = [
    {"lr": 0.1},
    {"lr": 0.05, "momentum": 0.9, "weight_decay": 1e-3},
    {"lr": 0.02, "momentum": 0.8, "nesterov": True, "schedule": "cosine", "warmup_epochs": 1},
    {"lr": 0.1, "momentum": 0.5, "weight_decay": 1e-2, "schedule": "step", "step_epochs": 2, "gamma": 0.5},
    {"lr": 0.03, "clip_norm": 0.5, "schedule": "cosine"},
]
ADAM: list[dict[str, Any]] = [
    {"lr": 0.01},
    {"lr": 0.003, "weight_decay": 0.1, "schedule": "cosine"},
    {"lr": 0.01, "betas": (0.8, 0.99), "eps": 1e-4, "warmup_epochs": 1},
    {"lr": 0.02, "clip_norm": 0.5, "schedule": "step", "step_epochs": 2},
]


def members(shape: Mapping[str, Any], own: Sequence[Mapping[str, Any]], **common: Any) -> list[Trial]:
    """Trials that differ in their numbers and their seeds."""
    return [
        Trial(Trial.name(i), 10 + i, {"batch_size": 25, **shape, **common, **values}) for i, values in enumerate(own)
    ]


def settings(epochs: int = EPOCHS) -> Settings:
    return Settings(epochs, 1, "float32", Path())


def solo(experiment: Experiment, trial: Trial, dtype: torch.dtype | None, epochs: int = EPOCHS) -> TorchSolo:
    return TorchSolo(experiment, experiment.data(), trial, settings(epochs), CPU, dtype)


def new_array(
    experiment: Experiment,
    trials: Sequence[Trial],
    dtype: torch.dtype | None = torch.float64,
    epochs: int = EPOCHS,
    width: int | None = None,
) -> TorchArray:
    return TorchArray(experiment, experiment.data(), trials, settings(epochs), width=width, device=CPU, dtype=dtype)


def run(training: TorchArray | TorchSolo, epochs: int = EPOCHS) -> list[Any]:
    return [training.run_epoch() for _ in range(epochs)]


def parameters(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def difference(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> float:
    """The largest relative norm of the difference over the tensors of `other`; infinite where one is not finite."""
    largest = 0.0
    for name, tensor in other.items():
        assert one[name].dtype == tensor.dtype, name
        assert one[name].shape == tensor.shape, name
        apart, size = (one[name].double() - tensor.double()).norm(), tensor.double().norm()
        relative = (apart / size if size > 0 else apart).item()
        largest = max(largest, relative if math.isfinite(relative) else math.inf)
    return largest


def member_difference(array: TorchArray, trial: Trial, alone: Mapping[str, torch.Tensor]) -> float:
    return difference(array.member_state(trial.trial_id)["model"], alone)


def assert_members_equal(
    array: TorchArray, trials: Sequence[Trial], alone: Sequence[Mapping[str, torch.Tensor]], tolerance: float = EXACT
) -> None:
    for trial, expected in zip(trials, alone, strict=True):
        found = member_difference(array, trial, expected)
        assert found <= tolerance, f"{trial.trial_id}: {found}"


@cache
def sgd_alone(name: str) -> tuple[dict[str, torch.Tensor], ...]:
    """The parameters of the members of `SGD` after five epochs alone in float64."""
    kind, shape = MODELS[name]
    found = []
    for trial in members(shape, SGD):
        training = solo(kind(), trial, torch.float64)
        run(training)
        found.append(parameters(training.model))
    return tuple(found)


@pytest.fixture(params=MODELS)
def model_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.parametrize("width", [None, 2])
def test_members_equal_trainings_alone(model_name: str, width: int | None) -> None:
    kind, shape = MODELS[model_name]
    trials = members(shape, SGD)
    array = new_array(kind(), trials, width=width)
    assert [tile.width for tile in array.tiles] == ([5] if width is None else [2, 2, 1])
    before = array.member_state("t0000")["model"]
    run(array)
    alone = sgd_alone(model_name)
    assert_members_equal(array, trials, alone)
    assert difference(before, alone[0]) > 0.01
    assert min(difference(alone[0], other) for other in alone[1:]) > 0.01


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
@pytest.mark.parametrize("name", ["mlp", "text"])
def test_members_of_adam_equal_trainings_alone(name: str, optimizer: str) -> None:
    kind, shape = MODELS[name]
    trials = members(shape, ADAM, optimizer=optimizer)
    array = new_array(kind(), trials, width=3)
    run(array)
    for trial in trials:
        training = solo(kind(), trial, torch.float64)
        run(training)
        assert member_difference(array, trial, parameters(training.model)) <= EXACT


@pytest.mark.parametrize("width", [None, 2])
def test_those_left_after_a_drop_equal_trainings_alone(model_name: str, width: int | None) -> None:
    kind, shape = MODELS[model_name]
    trials = members(shape, SGD)
    array = new_array(kind(), trials, width=width)
    run(array, 2)
    array.drop({"t0001"})
    run(array, 1)
    array.drop({"t0000", "t0003", "never a member"})
    assert [trial.trial_id for trial in array.trials] == ["t0002", "t0004"]
    assert [tile.width for tile in array.tiles] == [2]
    results = run(array, 2)
    assert set(results[-1]) == {"t0002", "t0004"}
    alone = sgd_alone(model_name)
    assert_members_equal(array, [trials[2], trials[4]], [alone[2], alone[4]])


@pytest.mark.parametrize("dropped", [(), ("t0000", "t0003")])
def test_going_on_in_a_new_array_changes_nothing(model_name: str, dropped: Collection[str], tmp_path: Path) -> None:
    kind, shape = MODELS[model_name]
    trials = members(shape, SGD)
    first = new_array(kind(), trials, width=2)
    run(first, 2)
    first.drop(dropped)
    first.save(tmp_path)
    first.close()
    second = new_array(kind(), trials, width=3)
    second.load(tmp_path)
    assert second.epoch == 2
    results = run(second, 3)
    assert [set(result) for result in results] == [{t.trial_id for t in trials} - set(dropped)] * 3
    assert [{one.epoch for one in result.values()} for result in results] == [{3}, {4}, {5}]
    assert second.run_epoch() is None
    left = [i for i, trial in enumerate(trials) if trial.trial_id not in dropped]
    assert_members_equal(second, [trials[i] for i in left], [sgd_alone(model_name)[i] for i in left])


def test_going_on_with_adam(tmp_path: Path) -> None:
    kind, shape = MODELS["mlp"]
    trials = members(shape, ADAM, optimizer="adam")
    whole, first, second = (new_array(kind(), trials) for _ in range(3))
    run(whole)
    run(first, 3)
    first.save(tmp_path)
    second.load(tmp_path)
    run(second, 2)
    for trial in trials:
        assert member_difference(second, trial, whole.member_state(trial.trial_id)["model"]) == 0


def test_the_first_ten_steps_in_float32(model_name: str) -> None:
    kind, shape = MODELS[model_name]
    trials = members(shape, SGD, batch_size=NUM_TRAIN // 5)
    array = new_array(kind(), trials, torch.float32, epochs=2)
    run(array, 2)
    for trial in trials:
        training = solo(kind(), trial, torch.float32, epochs=2)
        run(training, 2)
        assert training.optimizer.num_steps == 10
        assert member_difference(array, trial, parameters(training.model)) <= 1e-5


@pytest.mark.parametrize(
    ("optimizer", "own"), [("sgd", SGD), ("adam", ADAM), ("adamw", ADAM)], ids=["sgd", "adam", "adamw"]
)
def test_five_epochs_of_the_mlp_in_float32(optimizer: str, own: list[dict[str, Any]]) -> None:
    kind, shape = MODELS["mlp"]
    trials = members(shape, own, optimizer=optimizer)
    array = new_array(kind(), trials, torch.float32)
    run(array)
    for trial in trials:
        training = solo(kind(), trial, torch.float32)
        run(training)
        assert member_difference(array, trial, parameters(training.model)) <= 1e-5


@pytest.mark.parametrize("name", ["cnn", "resnet"])
def test_batchnorm_in_float32_differs_as_rounding_does(name: str) -> None:
    """Rounding grows from step to step in these models: an array is as far from a training alone as that training is
    from itself with the last bit of its initial parameters changed."""
    kind, shape = MODELS[name]
    experiment = kind()
    trials = members(shape, [{"lr": 0.1, "momentum": 0.9}] * 4)
    array = new_array(experiment, trials, torch.float32)
    results = run(array)[-1]
    differences, by_rounding, scores = [], [], []
    for trial in trials:
        training = solo(experiment, trial, torch.float32)
        scores.append(run(training)[-1].metrics["validation/loss"])
        moved = solo(experiment, trial, torch.float32)
        with torch.no_grad():
            for p in moved.model.parameters():
                p.copy_(torch.nextafter(p, torch.full_like(p, math.inf)))
        run(moved)
        alone = parameters(training.model)
        differences.append(member_difference(array, trial, alone))
        by_rounding.append(difference(parameters(moved.model), alone))
    assert max(differences) <= 10 * max(by_rounding)
    spread = max(scores) - min(scores)
    for trial, score in zip(trials, scores, strict=True):
        assert abs(results[trial.trial_id].metrics["validation/loss"] - score) <= spread / 2


@pytest.mark.parametrize("name", ["mlp", "text"])  # BatchNorm has no rule for bfloat16: see test_fusion
def test_bf16_is_as_rough_as_it_is_alone(name: str) -> None:
    kind, shape = MODELS[name]
    experiment = kind()
    trials = members(shape, SGD[:3])
    rough = Settings(2, 1, "bf16", Path())
    array = TorchArray(experiment, experiment.data(), trials, rough, device=CPU)
    run(array, 2)
    for trial in trials:
        training, exact = TorchSolo(experiment, experiment.data(), trial, rough, CPU), solo(experiment, trial, None, 2)
        run(training, 2)
        alone = parameters(training.model)
        run(exact, 2)
        assert member_difference(array, trial, alone) <= 0.05
        assert member_difference(array, trial, parameters(exact.model)) > 1e-5


@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_divergence_leaves_neighbours_alone_to_the_bit(model_name: str, optimizer: str, dropped: bool) -> None:
    kind, shape = MODELS[model_name]
    experiment = kind()
    common = {"optimizer": optimizer, "weight_decay": 1e-3, "clip_norm": 1.0} | (
        {"momentum": 0.9} if optimizer == "sgd" else {}
    )

    def train(lr: float) -> tuple[TorchArray, list[dict[str, EpochResult]]]:
        array = new_array(experiment, members(shape, [{"lr": 0.01}, {"lr": lr}, {"lr": 0.02}], **common), None)
        results = run(array, 2)
        if dropped:
            array.drop({"t0001"})
        return array, [*results, *run(array, 1)]

    (sane, expected), (wild, results) = train(0.01), train(1e30)
    assert not math.isfinite(results[1]["t0001"].metrics["train/loss"])
    assert math.isfinite(expected[1]["t0001"].metrics["train/loss"])
    assert ("t0001" in results[-1]) is not dropped
    for trial_id in ("t0000", "t0002"):
        state, reference = wild.member_state(trial_id), sane.member_state(trial_id)
        assert all(torch.equal(state["model"][name], tensor) for name, tensor in reference["model"].items())
        for buffers, others in zip(state["optimizer"]["buffers"], reference["optimizer"]["buffers"], strict=True):
            assert all(torch.equal(a, b) for a, b in zip(buffers, others, strict=True))
        for result, other in zip(results, expected, strict=True):
            assert result[trial_id].metrics == other[trial_id].metrics
            assert math.isfinite(result[trial_id].metrics["validation/loss"])


@pytest.mark.parametrize("width", [None, 2])
def test_results_equal_those_of_trainings_alone(width: int | None) -> None:
    kind, shape = MODELS["cnn"]
    trials = members(shape, SGD, batch_size=32)
    array = new_array(kind(), trials, epochs=3, width=width)
    results = run(array, 3)
    assert array.run_epoch() is None
    assert array.run_epoch() is None
    assert array.epoch == 3
    for trial in trials:
        own = [result[trial.trial_id] for result in results]
        alone = run(solo(kind(), trial, torch.float64, epochs=3), 3)
        assert [result.epoch for result in own] == [1, 2, 3]
        for result, expected in zip(own, alone, strict=True):
            assert list(result.metrics) == list(expected.metrics)
            assert dict(result.metrics) == pytest.approx(dict(expected.metrics), rel=1e-6)
            assert all(type(value) is float for value in result.metrics.values())
            assert result.num_samples == expected.num_samples
            assert result.train_s is not None


def test_no_epoch_without_members() -> None:
    array = new_array(Mlp(), members({"hidden": 4}, SGD[:2]))
    array.drop({"t0000", "t0001"})
    assert array.trials == []
    assert array.run_epoch() is None


@pytest.mark.parametrize(
    ("name", "optimizer", "own"),
    [("cnn", "sgd", SGD), ("mlp", "sgd", SGD), ("mlp", "adam", ADAM), ("text", "adamw", ADAM)],
    ids=["cnn-sgd", "mlp-sgd", "mlp-adam", "text-adamw"],
)
def test_a_member_goes_on_alone(name: str, optimizer: str, own: list[dict[str, Any]], tmp_path: Path) -> None:
    """Its optimizer has the buffers of its own settings: none for SGD without momentum, whatever its neighbours use."""
    kind, shape = MODELS[name]
    experiment = kind()
    trials = members(shape, own, optimizer=optimizer)
    array = new_array(experiment, trials, width=3)
    run(array, 2)
    array.save(tmp_path)
    for trial in trials:
        save_saved_members(tmp_path, {trial.trial_id: tmp_path})
        taken_out = torch.load(tmp_path / CHECKPOINT, weights_only=True)
        array.save_member(trial.trial_id, tmp_path)
        saved = torch.load(tmp_path / CHECKPOINT, weights_only=True)
        assert str(taken_out) == str(saved)
        reference = solo(experiment, trial, torch.float64)
        results = run(reference)
        assert list(saved["model"]) == list(reference.model.state_dict())
        experiment.model(trial.hyperparameters).load_state_dict(saved["model"], strict=True)
        training = solo(experiment, trial, torch.float64)
        training.load(tmp_path)
        assert training.epoch == 2
        assert [result.metrics for result in run(training, 3)] == [
            pytest.approx(result.metrics, rel=1e-6) for result in results[2:]
        ]
        assert difference(training.model.state_dict(), reference.model.state_dict()) <= EXACT
        assert training.run_epoch() is None


def test_a_state_belongs_to_its_member_alone() -> None:
    array = new_array(Mlp(), members({"hidden": 4}, SGD[:2]))
    state = array.member_state("t0000")
    before = {name: tensor.clone() for name, tensor in state["model"].items()}
    run(array, 1)
    assert all(torch.equal(state["model"][name], tensor) for name, tensor in before.items())
    array.drop({"t0000"})
    with pytest.raises(KeyError, match="t0000"):
        array.member_state("t0000")


class Parts(TorchExperiment):
    """A model with a frozen, an unused and a tied parameter, and buffers that are saved and that are not."""

    def data(self) -> Splits:
        return few()

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return PartsModel()


class PartsModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.unused = nn.Linear(64, 16), nn.Linear(3, 3)
        self.frozen.requires_grad_(False)
        self.inner, self.tied, self.last = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 10)
        self.tied.weight = self.inner.weight
        self.register_buffer("scale", torch.rand(16))
        self.register_buffer("steps", torch.zeros(()), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.steps.add_(1)
        hidden = torch.tanh(self.frozen(x)) * self.scale
        return self.last(torch.tanh(self.tied(torch.tanh(self.inner(hidden)))))


@pytest.mark.parametrize(
    ("optimizer", "own"), [("sgd", SGD), ("adam", ADAM), ("adamw", ADAM)], ids=["sgd", "adam", "adamw"]
)
def test_frozen_unused_and_tied_parameters(optimizer: str, own: list[dict[str, Any]], tmp_path: Path) -> None:
    experiment = Parts()
    trials = members({}, own, optimizer=optimizer)
    array = new_array(experiment, trials)
    before = {trial.trial_id: array.member_state(trial.trial_id)["model"] for trial in trials}
    run(array)
    for trial in trials:
        training = solo(experiment, trial, torch.float64)
        run(training)
        state = array.member_state(trial.trial_id)["model"]
        assert list(state) == list(training.model.state_dict())
        assert difference(state, training.model.state_dict()) <= EXACT
        for name in ("frozen.weight", "frozen.bias", "unused.weight", "unused.bias", "scale"):
            assert torch.equal(state[name], before[trial.trial_id][name])
        assert torch.equal(state["tied.weight"], state["inner.weight"])
        assert difference(before[trial.trial_id], {"inner.weight": state["inner.weight"]}) > 0.01
        array.save_member(trial.trial_id, tmp_path)
        going_on = solo(experiment, trial, torch.float64)
        going_on.load(tmp_path)
        for buffers, others in zip(going_on.optimizer.buffers, training.optimizer.buffers, strict=True):
            assert [b.shape for b in buffers] == [b.shape for b in others]
            assert difference(dict(enumerate(buffers)), dict(enumerate(others))) <= 1e-8  # type: ignore[arg-type]
    assert array.tiles[0].buffers["steps"].tolist() == [40.0] * len(trials)


class Halves(TorchExperiment):
    """Named inputs and named targets, outputs of two kinds."""

    def data(self) -> Splits:
        whole = few()

        def cut(pixels: Any) -> dict[str, np.ndarray]:
            return {"top": pixels[:, :32], "bottom": pixels[:, 32:]}

        def named(labels: Any) -> dict[str, np.ndarray]:
            return {"digit": labels, "odd": (labels % 2).astype(np.float32)}

        return Splits(
            cut(whole.train_inputs),
            named(whole.train_targets),
            cut(whole.validation_inputs),
            named(whole.validation_targets),
        )

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return HalvesModel()

    def augment(self, inputs: Any, hp: Mapping[str, Any]) -> Any:
        return {name: half * hp["gain"] for name, half in inputs.items()}

    def loss(self, outputs: Any, targets: Any) -> Any:
        digit = nn.functional.cross_entropy(outputs["digit"], targets["digit"])
        return digit + nn.functional.binary_cross_entropy_with_logits(outputs["odd"], targets["odd"])

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        return {"accuracy": (outputs["digit"].argmax(-1) == targets["digit"]).double().mean()}


class HalvesModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.top, self.bottom, self.last = nn.Linear(32, 8), nn.Linear(32, 8), nn.Linear(16, 11)

    def forward(self, *, top: torch.Tensor, bottom: torch.Tensor) -> dict[str, torch.Tensor]:
        both = self.last(torch.tanh(torch.cat([self.top(top), self.bottom(bottom)], 1)))
        return {"digit": both[:, :10], "odd": both[:, 10]}


class HostMetrics(Halves):
    """Metrics that leave torch: not to be had for all members at once."""

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        found = outputs["digit"].argmax(-1).cpu().numpy()
        return {
            "accuracy": float(np.mean(found == targets["digit"].cpu().numpy())),
            "largest": outputs["odd"].max().item(),
            "first": outputs["digit"][0, 0],
        }


@pytest.mark.parametrize("kind", [Halves, HostMetrics])
def test_named_inputs_and_metrics_off_the_device(kind: type[TorchExperiment]) -> None:
    experiment = kind()
    trials = members({"gain": 1.5}, SGD)
    array = new_array(experiment, trials, epochs=3, width=3)
    results = run(array, 3)
    for trial in trials:
        training = solo(experiment, trial, torch.float64, epochs=3)
        for result, expected in zip(results, run(training, 3), strict=True):
            assert dict(result[trial.trial_id].metrics) == pytest.approx(dict(expected.metrics), rel=1e-6)
        assert member_difference(array, trial, parameters(training.model)) <= EXACT


class Pair(NamedTuple):
    logits: torch.Tensor
    hidden: torch.Tensor


class PairModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 8), nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> Pair:
        hidden = torch.tanh(self.first(x))
        return Pair(self.last(hidden), hidden)


class Pairs(TorchExperiment):
    """Outputs as a named tuple, a metric in numpy."""

    def data(self) -> Splits:
        return few()

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return PairModel()

    def loss(self, outputs: Any, targets: Any) -> Any:
        return nn.functional.cross_entropy(outputs.logits, targets) + outputs.hidden.square().mean()

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        return {"largest": outputs.hidden.max().item()}


def test_outputs_as_a_named_tuple() -> None:
    trials = members({}, SGD[:2])
    array = new_array(Pairs(), trials, epochs=1)
    (results,) = run(array, 1)
    for trial in trials:
        (expected,) = run(solo(Pairs(), trial, torch.float64, epochs=1), 1)
        assert dict(results[trial.trial_id].metrics) == pytest.approx(dict(expected.metrics), rel=1e-6)


class ManyToValidate(Mlp):
    """More than an evaluation takes at once, in parts of unequal size."""

    def data(self) -> Splits:
        part = few(60, 64)
        times = 20
        return Splits(
            part.train_inputs,
            part.train_targets,
            np.concatenate([part.validation_inputs] * times)[:1100],  # type: ignore[list-item]
            np.concatenate([part.validation_targets] * times)[:1100],  # type: ignore[list-item]
        )


@pytest.mark.parametrize("kind", [ManyToValidate, Mlp])
def test_means_over_validation_data(kind: type[TorchExperiment]) -> None:
    trials = members({"hidden": 8}, SGD[:3])
    (results,) = run(new_array(kind(), trials, epochs=1, width=2), 1)
    for trial in trials:
        (expected,) = run(solo(kind(), trial, torch.float64, epochs=1), 1)
        assert dict(results[trial.trial_id].metrics) == pytest.approx(dict(expected.metrics), rel=1e-6)


class OneLeftOver(Mlp):
    def data(self) -> Splits:
        return few(51, 16)


def test_a_last_batch_of_one_sample() -> None:
    trials = members({"hidden": 8}, SGD[:3])
    array = new_array(OneLeftOver(), trials, epochs=2)
    run(array, 2)
    for trial in trials:
        training = solo(OneLeftOver(), trial, torch.float64, epochs=2)
        run(training, 2)
        assert training.optimizer.num_steps == 4
        assert member_difference(array, trial, parameters(training.model)) <= EXACT


class Dropping(Mlp):
    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(hp["dropout"]), nn.Linear(32, 10))


class Encoder(Mlp):
    """Dropout in attention too, whose result lies in memory in another order in an array."""

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=hp["dropout"], batch_first=True)
        return nn.Sequential(nn.Unflatten(1, (8, 8)), layer, nn.Flatten(), nn.Linear(64, 10))


class StochasticDepth(Mlp):
    """Fills a tensor of its own with random numbers in place."""

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.first, self.last = nn.Linear(64, 16), nn.Linear(16, 10)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                kept = torch.empty(len(x), 1, dtype=x.dtype).bernoulli_(1 - hp["dropout"])
                return self.last(self.first(x) * kept + torch.rand_like(kept))  # in evaluation too

        return Model()


@pytest.mark.parametrize("kind", [Dropping, Encoder, StochasticDepth])
def test_random_numbers_are_those_of_the_training_alone(kind: type[Mlp]) -> None:
    """Whatever the width, and whoever leaves: each member draws from generators of its own."""
    trials = members({"dropout": 0.3}, [{"lr": 0.1}, {"lr": 0.05, "momentum": 0.9}, {"lr": 0.1}, {"lr": 0.02}])
    for width in (None, 1, 3):
        array = new_array(kind(), trials, width=width)
        first = array.run_epoch()
        array.drop([trials[0].trial_id])
        last = run(array, 1)[-1]
        assert first is not None
        for trial in trials[1:]:
            training = solo(kind(), trial, torch.float64, epochs=2)
            ends = run(training, 2)
            assert member_difference(array, trial, parameters(training.model)) <= EXACT
            for name, value in ends[-1].metrics.items():
                assert last[trial.trial_id].metrics[name] == pytest.approx(value, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("kind", [Dropping, Encoder, StochasticDepth])
def test_a_compiled_step_draws_the_same_random_numbers(kind: type[Mlp], monkeypatch: pytest.MonkeyPatch) -> None:
    """The operators that are compiled, run as they are: compiling takes seconds (`tests/contracts/test_zoo.py`)."""
    monkeypatch.setattr(torch, "compile", lambda step, **_: step)
    trials = members({"dropout": 0.3}, [{"lr": 0.1}, {"lr": 0.05, "momentum": 0.9}, {"lr": 0.02}])
    array = new_array(kind(), trials, width=2)
    for width in {tile.width for tile in array.tiles}:
        array.program.compile(width, array.batch_size)
        array.compiled_s[width] = 0.0
    run(array, 2)
    for trial in trials:
        training = solo(kind(), trial, torch.float64, epochs=2)
        run(training, 2)
        assert member_difference(array, trial, parameters(training.model)) <= EXACT


def test_a_compiled_step_that_differs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled(step: Any, **_: Any) -> Any:
        def wrong(parameters: Any, fixed: Any, buffers: Any, moments: Any, *batch: Any) -> torch.Tensor:
            kept = {name: tensor.clone() for name, tensor in parameters.items()}
            losses: torch.Tensor = step(parameters, fixed, buffers, moments, *batch)
            for tensor, before in zip(parameters.values(), kept.values(), strict=True):
                tensor[1].copy_(before[1])  # the second member stays where it was
            return losses

        return wrong

    monkeypatch.setattr(torch, "compile", compiled)
    array = new_array(Mlp(), members({"hidden": 8}, [{"lr": 1e-4}, {"lr": 1e-4}, {"lr": 0.1}]))
    array.program.compile(3, array.batch_size)
    array.compiled_s[3] = 0.0
    with pytest.raises(NotAsAlone, match="the compiled step differs from the eager one"):
        run(array, 1)


def adam_array() -> TorchArray:
    return new_array(Mlp(), members({"hidden": 8, "optimizer": "adam"}, [{"lr": 0.01}, {"lr": 0.02}, {"lr": 0.03}]))


@pytest.mark.parametrize("epochs", [0, 1])
def test_steps_are_compared_before_the_first_epoch_and_later(epochs: int) -> None:
    array = adam_array()
    run(array, epochs)
    [tile] = array.tiles
    assert same_steps(array, tile, array.program.step)

    def half(tile: Any, inputs: Any, targets: Any, numbers: Any) -> torch.Tensor:
        before = {name: value.clone() for name, value in tile.parameters.items()}
        losses = array.program.eager_step(tile, inputs, targets, numbers)
        for name, value in tile.parameters.items():
            value[2].sub_((value[2] - before[name][2]) / 2)
        return losses

    assert not same_steps(array, tile, half), "one member's step is half as large"


def test_a_member_that_diverged_hides_no_other_and_accuses_none() -> None:
    array = adam_array()
    [tile] = array.tiles
    for value in tile.parameters.values():
        value[0] = math.nan
    assert same_steps(array, tile, array.program.step)

    def still(tile: Any, inputs: Any, targets: Any, numbers: Any) -> torch.Tensor:
        before = {name: value.clone() for name, value in tile.parameters.items()}
        losses = array.program.eager_step(tile, inputs, targets, numbers)
        for name, value in tile.parameters.items():
            value[1].copy_(before[name][1])
        return losses

    assert not same_steps(array, tile, still)


class ByNumpy(Dropping):
    """Draws in evaluation too, and has a metric that vmap cannot map: the first evaluation is begun twice."""

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        class Model(nn.Linear):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return super().forward(nn.functional.dropout(x, 0.3, training=True))

        return Model(64, 10)

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        return {"accuracy": float((outputs.detach().numpy().argmax(1) == targets.numpy()).mean())}


def test_an_evaluation_that_is_begun_twice_draws_once() -> None:
    trials = members({}, [{"lr": 0.1}, {"lr": 0.05}])
    found = run(new_array(ByNumpy(), trials), 2)
    for trial in trials:
        ends = run(solo(ByNumpy(), trial, torch.float64, epochs=2), 2)
        for epoch, end in enumerate(ends):
            assert found[epoch][trial.trial_id].metrics == pytest.approx(end.metrics, rel=1e-9)


@pytest.mark.parametrize("width", [None, 1])
def test_members_of_one_seed_have_the_same_masks(width: int | None) -> None:
    hp = {"dropout": 0.5, "batch_size": 200, "lr": 0.1}
    array = new_array(Dropping(), [Trial(f"t{i}", seed, hp) for i, seed in enumerate((3, 3, 4))], width=width)
    run(array, 1)
    one, other, third = [array.member_state(trial.trial_id)["model"] for trial in array.trials]
    assert difference(one, other) == 0
    assert difference(one, third) > 1e-3


class Padded(Mlp):
    """The first samples have no padding, which a look at them would not show."""

    def data(self) -> Splits:
        words = np.random.default_rng(0).integers(1, 12, size=(60, 5))
        words[30:, 3:] = 0
        return Splits.of(words, words[:, 0] % 3)

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(nn.Embedding(12, 4, padding_idx=0), nn.Flatten(), nn.Linear(20, 3))


def test_rows_of_padding_are_trained_by_no_member() -> None:
    trials = members({}, [{"lr": 0.1}, {"lr": 0.5}, {"lr": 0.2}])
    array = new_array(Padded(), trials)
    run(array, 2)
    for trial in trials:
        training = solo(Padded(), trial, torch.float64, epochs=2)
        run(training, 2)
        assert member_difference(array, trial, parameters(training.model)) <= EXACT


class InPlace(Mlp):
    """A forward pass, a loss and a metric that change what they are given."""

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        class Model(nn.Linear):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return super().forward(x.mul_(0.5))

        return Model(64, 10)

    def loss(self, outputs: Any, targets: Any) -> Any:
        return super().loss(outputs, targets.remainder_(7))

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        return super().metrics(outputs, targets.add_(1))


def test_data_stays_as_it_is_whatever_a_model_does_to_its_arguments() -> None:
    data = InPlace().data()
    before = [np.array(part) for part in (data.train_inputs, data.validation_inputs, data.validation_targets)]
    trials = members({}, [{"lr": 0.1}, {"lr": 0.05}])
    settings_of_two = settings(2)
    ends = []
    for _ in range(2):
        training = TorchSolo(InPlace(), data, trials[0], settings_of_two, CPU, torch.float64)
        ends.append(run(training, 2)[-1].metrics)
    array = TorchArray(InPlace(), data, trials, settings_of_two, device=CPU, dtype=torch.float64)
    fused = run(array, 2)[-1][trials[0].trial_id].metrics
    assert ends[0] == ends[1]
    assert fused == pytest.approx(ends[0], rel=1e-9)
    after = (data.train_inputs, data.validation_inputs, data.validation_targets)
    assert all(np.array_equal(one, other) for one, other in zip(before, after, strict=True))


class Negating(Mlp):
    """A loss that changes the outputs, which metrics see as the model gave them."""

    in_place = True

    def loss(self, outputs: Any, targets: Any) -> Any:
        return super().loss((outputs.neg_() if self.in_place else -outputs).neg() * 1.0, targets)


class NegatingCopies(Negating):
    in_place = False


def test_metrics_see_the_outputs_and_not_what_a_loss_made_of_them() -> None:
    trials = members({"hidden": 8}, [{"lr": 0.1}, {"lr": 0.05}])
    for trial in trials:
        own, other = (run(solo(kind(), trial, torch.float64, epochs=2), 2) for kind in (Negating, NegatingCopies))
        assert own[-1].metrics == other[-1].metrics
        array = new_array(Negating(), trials)
        assert run(array, 2)[-1][trial.trial_id].metrics == pytest.approx(other[-1].metrics, rel=1e-9)


class Weighted(Mlp):
    """A loss that leaves some samples out, and a metric over the others."""

    def loss(self, outputs: Any, targets: Any) -> Any:
        counted = (targets < 7).to(outputs)
        return Mean((nn.functional.cross_entropy(outputs, targets, reduction="none") * counted).sum(), counted.sum())

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        hits = (outputs.argmax(-1) == targets) & (targets < 7)
        return {"accuracy": Mean(hits.sum(), (targets < 7).sum()), "hits": Sum(hits.sum())}


def test_weighted_losses_and_sums() -> None:
    trials = members({"hidden": 8}, [{"lr": 0.1}, {"lr": 0.05}])
    array = new_array(Weighted(), trials)
    results = run(array, 2)[-1]
    data = Weighted().data()
    for trial in trials:
        training = solo(Weighted(), trial, torch.float64, epochs=2)
        metrics = run(training, 2)[-1].metrics
        assert results[trial.trial_id].metrics == pytest.approx(metrics, rel=1e-9)
        assert member_difference(array, trial, parameters(training.model)) <= EXACT
        counted = int((np.asarray(data.validation_targets) < 7).sum())
        assert metrics["validation/hits"] == pytest.approx(metrics["validation/accuracy"] * counted)


@pytest.mark.parametrize(
    ("own", "error", "message"),
    [
        ([], ValueError, "at least one member"),
        ([{"batch_size": 8}, {"batch_size": 16}], ValueError, r"batch_size: .*\[8, 16\]"),
        ([{"optimizer": "sgd"}, {"optimizer": "adam"}], ValueError, "optimizer: .*adam, sgd"),
        ([{"hidden": 4}, {"hidden": 5}], RuntimeError, "members differ in hidden"),
        ([{"lr": -1.0}], ValueError, "lr: read -1.0"),
    ],
    ids=["none", "batch sizes", "optimizers", "shapes", "a bad number"],
)
def test_bad_arguments_are_named(own: list[dict[str, Any]], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        new_array(Mlp(), members({"hidden": 4}, own))


def test_epochs_are_wanted() -> None:
    experiment = Mlp()
    endless = Settings(None, 1, "float32", Path())
    with pytest.raises(ValueError, match="epochs: not given"):
        TorchArray(experiment, experiment.data(), members({"hidden": 4}, SGD), endless, device=CPU)


class Tiny(TorchExperiment):
    def data(self) -> Splits:
        return few(40, 10)

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(nn.Linear(64, 4), nn.Tanh(), nn.Linear(4, 10))


@cache
def tiny_alone(optimizer: str, place: int) -> dict[str, torch.Tensor]:
    training = solo(Tiny(), tiny_trials(optimizer, place + 1)[place], torch.float64, epochs=3)
    run(training, 3)
    return parameters(training.model)


def tiny_trials(optimizer: str, count: int) -> list[Trial]:
    own = SGD if optimizer == "sgd" else ADAM
    return members({}, [own[i % len(own)] for i in range(count)], optimizer=optimizer, batch_size=16)


@examples(max_examples=15, deadline=None)
@given(
    width=st.integers(1, 9),
    dropped_after=st.lists(st.integers(0, 3), min_size=1, max_size=8),
    optimizer=st.sampled_from(["sgd", "adam", "adamw"]),
)
def test_survivors_equal_trainings_alone(width: int, dropped_after: list[int], optimizer: str) -> None:
    """dropped_after: of each member, the epoch; 3 is the last one."""
    trials = tiny_trials(optimizer, len(dropped_after))
    array = new_array(Tiny(), trials, epochs=3, width=width)
    for epoch in range(3):
        left = {trial.trial_id for trial, after in zip(trials, dropped_after, strict=True) if after > epoch}
        array.drop({trial.trial_id for trial in trials} - left)
        assert {trial.trial_id for trial in array.trials} == left
        assert all(tile.width <= width for tile in array.tiles)
        assert set(array.run_epoch() or {}) == left
    for place, (trial, after) in enumerate(zip(trials, dropped_after, strict=True)):
        if after == 3:
            assert member_difference(array, trial, tiny_alone(optimizer, place)) <= EXACT


def test_cnn_buffers_equal_those_of_a_training_alone() -> None:
    kind, shape = MODELS["cnn"]
    assert kind is Cnn
    trials = members(shape, SGD[:2])
    array = new_array(kind(), trials, epochs=2)
    run(array, 2)
    for trial in trials:
        training = solo(kind(), trial, torch.float64, epochs=2)
        run(training, 2)
        state, own = array.member_state(trial.trial_id)["model"], dict(training.model.named_buffers())
        for name, buffer in own.items():
            assert torch.allclose(state[name], buffer, rtol=1e-9, atol=0), name
            assert state[name].dtype == buffer.dtype
        assert [int(state[name]) for name in own if name.endswith("num_batches_tracked")] == [16, 16]


def test_loading_without_the_members_that_had_more_state(tmp_path: Path) -> None:
    """A momentum that none of those left has, one in the checkpoint that is not wanted, and one that it lacks."""
    trials = members({"hidden": 4}, [{"lr": 0.1, "momentum": 0.9}, {"lr": 0.1}, {"lr": 0.2}, {"lr": 0.3}])
    whole = new_array(Mlp(), trials, width=2)
    run(whole, 2)
    whole.drop({"t0000"})
    whole.save(tmp_path)
    new = Trial("t0009", 1, trials[1].hyperparameters)
    second = new_array(Mlp(), [trials[1], trials[3], new])
    second.load(tmp_path)
    run(whole, EPOCHS - 2)
    run(second, EPOCHS - 2)
    assert [trial.trial_id for trial in second.trials] == ["t0001", "t0003"]
    for trial in second.trials:
        assert member_difference(second, trial, whole.member_state(trial.trial_id)["model"]) <= EXACT


def test_a_checkpoint_has_no_padding(tmp_path: Path) -> None:
    array = new_array(Mlp(), members({"hidden": 4}, SGD[:2]))
    array.save(tmp_path)
    size = (tmp_path / ARRAY_CHECKPOINT).stat().st_size
    array.tiles = [model_array.gathered_tile(array._members(), 64)]
    array.save(tmp_path)
    assert (tmp_path / ARRAY_CHECKPOINT).stat().st_size <= size + 1000
