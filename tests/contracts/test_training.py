"""What every `Training` of an Experiment promises, over torch and Keras: the same tests, the same numbers."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.digits import KerasMlp, Mlp
from raygpu import Splits
from raygpu.experiment import take
from raygpu.search.scoring import Scoring
from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from raygpu.training.hyperparameters import OptimizerSettings
from tests.contracts.frameworks import HP, Framework, framework_of, ramp, rest, splits_of, values

SCORING = Scoring("accuracy", maximize=True)


@pytest.fixture(params=["torch", "keras"])
def framework(request: pytest.FixtureRequest, tmp_path: Path) -> Framework:
    return framework_of(request.param, tmp_path)


def test_epochs_metrics_and_learning(framework: Framework) -> None:
    results = framework.train(framework.mlp, HP, epochs=10)
    assert [result.epoch for result in results] == list(range(1, 11))
    assert results[-1].metrics["validation/accuracy"] > 0.9
    assert results[-1].metrics["train/loss"] < results[0].metrics["train/loss"] / 2
    first, read, *_ = framework.first_result(framework.mlp(), splits_of(framework.mlp).first(8), HP)
    assert "hidden" in read
    assert set(first.metrics) == set(results[0].metrics) == {"train/loss", "validation/loss", "validation/accuracy"}
    assert all(isinstance(value, float) for value in results[0].metrics.values())
    assert results[0].num_samples == splits_of(framework.mlp).num_train
    assert results[0].train_s is not None
    assert results[0].train_s > 0


def test_no_epoch_after_the_last(framework: Framework) -> None:
    training = framework.start(framework.ramp, {"lr": 0.1}, epochs=1)
    assert training.run_epoch() is not None
    assert training.run_epoch() is None
    assert training.run_epoch() is None


def test_epochs_of_another_length_take_the_same_steps(framework: Framework, tmp_path: Path) -> None:
    """Half a pass, or three, to a report: the evaluations are those of the same steps."""
    half, triple = (replace(splits_of(framework.mlp).first(256), per_epoch=count) for count in (128, 768))
    wanted = framework.train(framework.mlp, HP, epochs=2, splits=triple)
    training = framework.start(framework.mlp, HP, epochs=12, splits=half)
    first = training.run_epoch()
    training.save(tmp_path)
    training.close()
    again = framework.start(framework.mlp, HP, epochs=12, splits=half)
    again.load(tmp_path)
    found = [first, *rest(again)]
    assert [result.num_samples for result in (*found, *wanted)] == [128] * 12 + [768] * 2
    for result, expected in zip(found[5::6], wanted, strict=True):
        for name in ("validation/loss", "validation/accuracy"):
            assert result.metrics[name] == pytest.approx(expected.metrics[name], rel=1e-6)


def test_a_seed_decides_everything(framework: Framework) -> None:
    hp = {"hidden": 8, "dropout": 0.3}
    one, again, other = (
        [result.metrics for result in framework.train(framework.halves, hp, epochs=2, seed=seed)] for seed in (5, 5, 6)
    )
    assert one == again
    assert one[0] != other[0]


@pytest.mark.parametrize(
    "hp",
    [
        {"lr": 0.1, "momentum": 0.9, "schedule": "cosine", "warmup_epochs": 1.5},
        {"lr": 0.01, "optimizer": "adam", "dropout": 0.3},
        {"lr": 0.01, "optimizer": "adamw", "weight_decay": 0.1, "schedule": "step", "step_epochs": 2},
    ],
    ids=["momentum-cosine", "adam-dropout", "adamw-step"],
)
def test_going_on_from_a_checkpoint_changes_nothing(framework: Framework, hp: dict[str, Any], tmp_path: Path) -> None:
    hp = {"hidden": 8, **hp}
    whole = framework.train(framework.halves, hp, epochs=5)
    first = framework.start(framework.halves, hp, epochs=5)
    start = [first.run_epoch(), first.run_epoch()]
    first.save(tmp_path)
    first.close()
    second = framework.start(framework.halves, hp, epochs=5)
    second.load(tmp_path)
    end = rest(second)
    assert [result.epoch for result in end] == [3, 4, 5]
    for result, expected in zip([*start, *end], whole, strict=True):
        assert result.metrics == pytest.approx(expected.metrics, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize(
    "hp",
    [
        {"lr": 0.1},
        {"lr": 0.1, "momentum": 0.9, "schedule": "cosine"},
        {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1, "schedule": "step", "step_epochs": 1},
        {"lr": 0.1, "weight_decay": 0.1, "clip_norm": 0.5},
        {"lr": 0.01, "optimizer": "adam", "weight_decay": 0.1, "warmup_epochs": 1},
        {"lr": 0.01, "optimizer": "adam", "eps": 1e-2, "betas": (0.8, 0.9)},
        {"lr": 0.01, "optimizer": "adamw", "weight_decay": 1.0, "clip_norm": 0.5},
    ],
    ids=lambda hp: "-".join(f"{name}={value}" for name, value in hp.items()),
)
def test_torch_and_keras_take_the_same_steps(hp: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("tensorflow")
    import torch

    from raygpu.training.keras.solo import KerasSolo
    from raygpu.training.torch.solo import TorchSolo

    few = splits_of(Mlp).part(0.07, seed=0)  # 101 samples: 3 steps an epoch, the last one of 37
    trial = Trial("t0000", 3, {"hidden": 16, "batch_size": 32, **hp})
    settings = Settings(2, 1, "float32", tmp_path)
    in_torch, in_keras = TorchSolo(Mlp(), few, trial, settings), KerasSolo(KerasMlp(), few, trial, settings)

    def torch_weights() -> list[np.ndarray]:
        with torch.no_grad():
            return [weight.numpy().T.copy() for weight in in_torch.model.parameters()]

    before = torch_weights()
    in_keras.model.set_weights(before)
    for result, expected in zip(rest(in_keras), rest(in_torch), strict=True):
        assert result.metrics == pytest.approx(expected.metrics, abs=1e-4)
    for ours, theirs, start in zip(in_keras.model.get_weights(), torch_weights(), before, strict=True):
        assert np.abs(theirs - start).max() > 1e-2
        np.testing.assert_allclose(ours, theirs, atol=1e-4)
    in_torch.close()
    in_keras.close()


@pytest.mark.parametrize(
    "schedule",
    [
        {"schedule": "constant"},
        {"schedule": "cosine"},
        {"schedule": "step", "step_epochs": 1.5, "gamma": 0.5},
        {"schedule": "cosine", "warmup_epochs": 2},
    ],
    ids=["constant", "cosine", "step", "warm-up"],
)
def test_every_step_has_its_learning_rate(framework: Framework, schedule: dict[str, Any]) -> None:
    hp = {"lr": 0.5, "batch_size": 4, **schedule}
    weights = values(framework.train(framework.ramp, hp, epochs=4))
    lr_at = OptimizerSettings.of(hp).lr_at
    moves = [lr_at(2 * epoch, 2, 4) + lr_at(2 * epoch + 1, 2, 4) for epoch in range(1, 4)]
    assert -np.diff(weights) == pytest.approx(moves, abs=1e-5)


def test_clip_norm_bounds_a_step(framework: Framework) -> None:
    """A gradient of 10 is cut to 0.25 and one of 0.1 is left alone; decay is added afterwards."""
    for size, expected in ((10.0, 0.25), (0.1, 0.1)):
        hp = {"lr": 1.0, "clip_norm": 0.25, "batch_size": 8}
        weights = values(framework.train(framework.ramp, hp, epochs=2, splits=ramp([size] * 8)))
        assert weights[0] - weights[1] == pytest.approx(expected, abs=1e-4)


def test_means_are_weighted_by_the_size_of_a_batch(framework: Framework) -> None:
    hp = {"lr": 0.0, "batch_size": 4}
    weight = values(framework.train(framework.ramp, hp, epochs=1))[0]
    uneven = ramp([6.0] + [0.0] * 5, [0.0] * 1024 + [1.0] * 476)
    result = framework.train(framework.ramp, hp, epochs=1, splits=uneven)
    assert values(result, "train/loss") == pytest.approx([weight])
    assert values(result) == pytest.approx([weight * 476 / 1500])


def test_a_last_batch_of_one_sample(framework: Framework) -> None:
    """BatchNorm cannot train on one sample: it joins the batch before."""
    whole, few = splits_of(framework.halves), slice(0, 65)
    splits = Splits(
        take(whole.train_inputs, few), take(whole.train_targets, few), whole.validation_inputs, whole.validation_targets
    )
    results = framework.train(framework.halves, {"hidden": 8, "batch_size": 32}, splits=splits, epochs=2)
    assert not any(SCORING.diverged(result.metrics) for result in results)


def test_named_inputs_learn(framework: Framework) -> None:
    results = framework.train(framework.halves, {"hidden": 16, "lr": 0.05, "momentum": 0.9}, epochs=5)
    assert results[-1].metrics["validation/accuracy"] > 0.9


def test_divergence_is_a_result(framework: Framework) -> None:
    results = framework.train(
        framework.mlp, {**HP, "lr": 1e30}, epochs=3
    )  # 1e6 only kills the ReLUs: a huge, finite loss
    assert len(results) == 3
    assert not math.isfinite(results[-1].metrics["validation/loss"])
    assert SCORING.diverged(results[-1].metrics)


def test_augment_changes_training_only(framework: Framework) -> None:
    hp = {"hidden": 8, "lr": 0.0}
    plain, changed = (framework.train(framework.gain, {**hp, "gain": gain}, epochs=1) for gain in (1.0, 5.0))
    assert values(plain) == values(changed)
    assert abs(values(plain, "train/loss")[0] - values(changed, "train/loss")[0]) > 0.01


@pytest.mark.parametrize(
    ("wrong", "read", "allowed"),
    [
        ({"optimizer": "sdg"}, "'sdg'", "sgd, adam, adamw"),
        ({"schedule": "cos"}, "'cos'", "constant, cosine, step"),
        ({"lr": -1.0}, "-1.0", "from 0"),
        ({"batch_size": 0}, "0", "at least 1"),
        ({"clip_norm": 0}, "0", "above 0"),
        ({"betas": (0.9, 1.0)}, "1.0", "below 1"),
    ],
)
def test_bad_hyperparameters_say_what_is_allowed(
    framework: Framework, wrong: dict[str, Any], read: str, allowed: str
) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(wrong))}: read .*{read}.*{allowed}"):
        framework.start(framework.mlp, {**HP, **wrong})


def test_a_wrong_model_is_named(framework: Framework) -> None:
    with pytest.raises(TypeError, match=r"model\(hp\) returned str; a .*(Module|Model) is wanted"):
        framework.start(framework.no_model, HP)


def test_predict_repeats_the_validation(framework: Framework, tmp_path: Path) -> None:
    training = framework.start(framework.halves, {"hidden": 8}, epochs=1)
    accuracy = training.run_epoch().metrics["validation/accuracy"]
    training.save(tmp_path)
    training.close()
    splits = splits_of(framework.halves)
    text, outputs = framework.predict(
        framework.halves(), Trial("t0000", 0, {"hidden": 8}), tmp_path, splits.validation_inputs
    )
    assert "linear" in text.lower() or "dense" in text.lower()
    assert [output.shape for output in outputs] == [(10,)] * len(splits.validation_targets)
    hits = np.argmax(outputs, axis=1) == splits.validation_targets
    assert hits.mean() == pytest.approx(accuracy, abs=1e-6)


def test_bf16_rounds_and_ends_with_its_trial(framework: Framework) -> None:
    before = values(framework.train(framework.mlp, HP))
    rounded = values(framework.train(framework.mlp, HP, precision="bf16"))
    assert rounded != before
    assert rounded == pytest.approx(before, rel=0.2)
    assert values(framework.train(framework.mlp, HP)) == before
