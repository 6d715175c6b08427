"""Keras trials on logical devices of one process give what they give alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from tests.ranks import on_keras_ranks


def split_and_alone(ranks: Any, folder: str) -> None:
    """Train three members on two devices, save, go on with two of them, and compare with trials alone and a resume."""
    from experiments.digits import KerasMlp, digits
    from raygpu.training.keras.quiet_import import tf
    from raygpu.training.keras.solo import KerasSolo
    from raygpu.training.keras.split import KerasSplit

    settings = Settings(2, 1, "float32", Path())
    splits = digits().part(0.2, 0)
    trials = [Trial(f"t{i}", i, {"hidden": 8 + i, "lr": 0.1, "batch_size": 32}) for i in range(3)]
    array = KerasSplit(KerasMlp(), splits, trials, settings, width=2)
    assert len(tf.config.list_logical_devices("CPU")) == 2
    places = {array._members[trial.trial_id][0].model.weights[0].value.device[-5:] for trial in trials}
    assert places == {"CPU:0", "CPU:1"}, places
    first = array.run_epoch() or {}
    array.save(Path(folder))
    array.drop(["t1"])
    second = array.run_epoch() or {}
    assert all(result.train_s > 0 < result.validate_s for result in first.values())
    assert set(first) == {"t0", "t1", "t2"}
    assert set(second) == {"t0", "t2"}
    assert array.epoch == 2
    assert array.run_epoch() is None
    array.close()
    for trial in trials:
        alone = KerasSolo(KerasMlp(), splits, trial, settings).run_epoch()
        assert alone is not None
        for name, value in alone.metrics.items():
            assert abs(first[trial.trial_id].metrics[name] - value) < 1e-5, (trial.trial_id, name)
    again = KerasSplit(KerasMlp(), splits, trials, settings, width=2)
    again.load(Path(folder))
    assert again.epoch == 1
    resumed = again.run_epoch() or {}
    for name in ("t0", "t2"):
        assert abs(resumed[name].metrics["validation/loss"] - second[name].metrics["validation/loss"]) < 1e-5
    again.close()


@pytest.mark.timeout(300)
def test_members_equal_trials_alone(tmp_path: Path) -> None:
    """In a process of two logical devices: TensorFlow splits its device once."""
    on_keras_ranks(1, split_and_alone, str(tmp_path), local=2)


def first_losses(ranks: Any, kind: str, hps: list[dict[str, Any]]) -> tuple[list[float], list[float]]:
    """The first losses of members of an experiment in `keras_cases`: in an array, and alone."""
    from raygpu.training.keras.solo import KerasSolo
    from raygpu.training.keras.split import KerasSplit
    from tests import keras_cases
    from tests.small_data import few

    experiment, settings = getattr(keras_cases, kind), Settings(1, 1, "float32", Path())
    trials = [Trial(f"t{i}", 0, hp) for i, hp in enumerate(hps)]
    array = KerasSplit(experiment(), few(), trials, settings, width=2)
    results = array.run_epoch() or {}
    array.close()
    alone = [KerasSolo(experiment(), few(), trial, settings).run_epoch() for trial in trials]
    return [result.metrics["train/loss"] for result in results.values()], [
        result.metrics["train/loss"] for result in alone if result
    ]


@pytest.mark.timeout(300)
def test_each_member_has_an_experiment_of_its_own() -> None:
    found, wanted = on_keras_ranks(1, first_losses, "KerasScaled", [{"factor": 1.0}, {"factor": 3.0}], local=2)[0]
    assert found == pytest.approx(wanted, rel=1e-5)


@pytest.mark.timeout(300)
def test_members_draw_the_random_numbers_of_trials_alone() -> None:
    """Of dropout, and of an augmentation from the generator of `keras.random`, which each thread has for itself."""
    found, wanted = on_keras_ranks(1, first_losses, "KerasNoisy", [{"hidden": 8}, {"hidden": 9}], local=2)[0]
    assert found == pytest.approx(wanted, rel=1e-5)
