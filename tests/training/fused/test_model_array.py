"""Each member of an array equals the same trial trained alone."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from torch import nn

from raygpu import Splits, TorchExperiment
from raygpu.search.trials import EpochResult, Trial
from raygpu.training.base import ARRAY_CHECKPOINT, Settings
from raygpu.training.fused import model_array
from raygpu.training.fused.model_array import TorchArray
from raygpu.training.torch.solo import TorchSolo
from tests.models import MODELS, NUM_TRAIN, Cnn, Mlp, few
from tests.torch_device import DEVICE
from tests.training.fused.alike import (
    ADAM,
    EPOCHS,
    EXACT,
    SGD,
    assert_members_equal,
    difference,
    member_difference,
    members,
    new_array,
    parameters,
    run,
    sgd_alone,
    solo,
)


def in_turns(*values: Any) -> list[Any]:
    """The models with both of two values; `make test` has one of them for each model."""
    return [
        pytest.param(name, value, marks=pytest.mark.slow if (place + turn) % 2 else ())
        for place, name in enumerate(MODELS)
        for turn, value in enumerate(values)
    ]


@pytest.mark.parametrize(("model_name", "width"), in_turns(None, 2))
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


@pytest.mark.parametrize(("model_name", "width"), in_turns(2, None))
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


@pytest.mark.parametrize(("model_name", "dropped"), in_turns((), ("t0000", "t0003")))
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


@pytest.mark.parametrize("name", ["cnn", pytest.param("resnet", marks=pytest.mark.slow)])
def test_batchnorm_in_float32_differs_as_rounding_does(name: str) -> None:
    """Rounding grows from step to step in these models: an array is as far from a training alone as that training is
    from itself with the last bits of its initial parameters changed. They are changed at random, and twice, so that an
    activation that is zero but for rounding shows."""
    kind, shape = MODELS[name]
    experiment = kind()
    trials = members(shape, [{"lr": 0.1, "momentum": 0.9}] * 4)
    array = new_array(experiment, trials, torch.float32)
    results = run(array)[-1]
    differences, by_rounding, scores = [], [], []
    for trial in trials:
        training = solo(experiment, trial, torch.float32)
        scores.append(run(training)[-1].metrics["validation/loss"])
        alone = parameters(training.model)
        differences.append(member_difference(array, trial, alone))
        for seed in range(2):
            generator = torch.Generator().manual_seed(seed)
            moved = solo(experiment, trial, torch.float32)
            with torch.no_grad():
                for p in moved.model.parameters():
                    upwards = torch.rand(p.shape, generator=generator) < 0.5
                    p.copy_(torch.nextafter(p, torch.where(upwards, math.inf, -math.inf)))
            run(moved)
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
    array = TorchArray(experiment, experiment.data(), trials, rough, device=DEVICE)
    run(array, 2)
    for trial in trials:
        training, exact = (
            TorchSolo(experiment, experiment.data(), trial, rough, DEVICE),
            solo(experiment, trial, None, 2),
        )
        run(training, 2)
        alone = parameters(training.model)
        run(exact, 2)
        assert member_difference(array, trial, alone) <= 0.05
        assert member_difference(array, trial, parameters(exact.model)) > 1e-5


@pytest.mark.parametrize(
    ("optimizer", "dropped"),
    [
        ("sgd", True),
        ("adamw", False),
        pytest.param("sgd", False, marks=pytest.mark.slow),
        pytest.param("adamw", True, marks=pytest.mark.slow),
    ],
)
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
            assert (result.validate_s or 0.0) > 0 < (expected.validate_s or 0.0)


def test_no_epoch_without_members() -> None:
    array = new_array(Mlp(), members({"hidden": 4}, SGD[:2]))
    array.drop({"t0000", "t0001"})
    assert array.trials == []
    assert array.run_epoch() is None


def test_a_state_belongs_to_its_member_alone() -> None:
    array = new_array(Mlp(), members({"hidden": 4}, SGD[:2]))
    state = array.member_state("t0000")
    before = {name: tensor.clone() for name, tensor in state["model"].items()}
    run(array, 1)
    assert all(torch.equal(state["model"][name], tensor) for name, tensor in before.items())
    array.drop({"t0000"})
    with pytest.raises(KeyError, match="t0000"):
        array.member_state("t0000")


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
        TorchArray(experiment, experiment.data(), members({"hidden": 4}, SGD), endless, device=DEVICE)


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


@examples(max_examples=6, deadline=None)
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
