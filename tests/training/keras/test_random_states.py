"""Random numbers of Keras trials: the same in every place of a worker, after a resume and in split mode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from tests import keras_cases
from tests.ranks import on_keras_ranks


def training(kind: str) -> Any:
    from raygpu.training.keras.solo import KerasSolo

    experiment = getattr(keras_cases, kind)()
    trial = Trial("t0000", 3, {"hidden": 8, "lr": 0.1, "batch_size": 16})
    return KerasSolo(experiment, experiment.data(), trial, Settings(2, 1, "float32", Path()))


def curve(kind: str) -> list[dict[str, float]]:
    """Train both epochs, and clear Keras' numbers of generators, as a worker does."""
    solo = training(kind)
    results = [solo.run_epoch().metrics for _ in range(2)]
    solo.close()
    return results


def test_a_layer_of_the_module_draws_the_same_numbers_in_each_trial_of_a_worker() -> None:
    """The layer's generator has a number before those of the first trial, and the same one as one of the second's."""
    pytest.importorskip("keras")
    keras_cases.shared_noise()
    assert curve("KerasSharedNoise") == curve("KerasSharedNoise")


def test_random_numbers_of_the_evaluation_alone_go_on_after_a_resume(tmp_path: Path) -> None:
    pytest.importorskip("keras")
    wanted, first, second = curve("KerasSampledScore"), training("KerasSampledScore"), training("KerasSampledScore")
    assert first.run_epoch().metrics == wanted[0]
    first.save(tmp_path)
    second.load(tmp_path)
    assert second.run_epoch().metrics == wanted[1]
    assert wanted[0]["validation/noise"] != wanted[1]["validation/noise"]


def shared(ranks: Any) -> str:
    """Train two models with one layer of the module on a split device; return the fault."""
    from raygpu.training.keras.split import KerasSplit

    trials = [Trial(f"t{i}", i, {"hidden": 8 + i}) for i in range(2)]
    experiment = keras_cases.KerasSharedNoise()
    array = KerasSplit(experiment, experiment.data(), trials, Settings(1, 1, "float32", Path()), width=2)
    try:
        array.run_epoch()
    except ValueError as error:
        return str(error)
    return "none"


@pytest.mark.timeout(300)
def test_models_of_a_split_device_that_would_share_a_generator_are_refused() -> None:
    assert on_keras_ranks(1, shared, local=2)[0].startswith("the models of a split device would share a layer")
