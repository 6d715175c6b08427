"""Sweeps on an NVIDIA GPU: each mode, limits of memory, lost CUDA contexts, precisions, readings.

TRY_ON_CPU=1 runs those that mean something on the simulated device, too, so that they are tried before a GPU is there.
"""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from raygpu import sweep
from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from raygpu.training.fused.model_array import TorchArray
from raygpu.training.torch import data
from raygpu.training.torch.solo import TorchSolo
from tests.models import MODELS

HAS_GPU = torch.cuda.is_available()
pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]
tried = pytest.mark.skipif(not HAS_GPU and not os.environ.get("TRY_ON_CPU"), reason="no NVIDIA GPU that torch can use")
gpu_alone = pytest.mark.skipif(not HAS_GPU, reason="no NVIDIA GPU that torch can use")
LOCAL = {"cluster": {"address": "local"}, "tracking": {"enabled": False}}


def rows(result: sweep.SweepResult) -> list[dict[str, str]]:
    assert result.folder is not None
    with (result.folder / "trials.csv").open() as file:
        return list(csv.DictReader(file))


def device_gib() -> float:
    return torch.cuda.mem_get_info()[1] / 2**30 if HAS_GPU else 8.0


@tried
@pytest.mark.parametrize("mode", ["process", "fused", "auto"])
def test_each_mode_trains_and_the_gpu_is_named(mode: str, sweep_config: Any, capfd: pytest.CaptureFixture[str]) -> None:
    own = {"fraction": 0.25} if mode == "process" else {}
    config = sweep_config(
        experiment="experiments.digits:Mlp",
        metric="accuracy",
        trials=8,
        epochs=4,
        space={"hidden": 32, "lr": {"loguniform": [0.01, 0.3]}},
        gpu={"mode": mode, **own},
        **LOCAL,
    )
    result = sweep.run(config)
    found = rows(result)
    assert [row["status"] for row in found] == ["finished"] * 8
    assert max(float(row["score"]) for row in found) > 0.8
    assert result.folder is not None
    if HAS_GPU:
        assert torch.cuda.get_device_name() in (result.folder / "summary.json").read_text()
        readings = [json.loads(line) for line in (result.folder / "timeline.jsonl").read_text().splitlines()]
        assert any("memory" in json.dumps(reading) for reading in readings)
    if mode == "fused" and HAS_GPU:
        assert "CUDA graph" in capfd.readouterr().out


@tried
def test_a_trial_beyond_its_share_fails_alone_and_goes_on_with_a_larger_one(sweep_config: Any) -> None:
    whole = device_gib()
    config = sweep_config(
        experiment="tests.on_gpu_cases:greedy",
        trials=None,
        search={"algorithm": "grid"},
        space={"gib": {"grid_search": [0.01, round(0.3 * whole, 2), 0.02]}},
        gpu={"fraction": 0.25, "mode": "process"},
        checkpoint_s=0.001,
        **LOCAL,
    )
    if not HAS_GPU:
        pytest.skip("the simulated device has the machine's memory, of which this would take a third")
    result = sweep.run(config)
    assert [row["status"] for row in rows(result)] == ["finished"] * 3
    assert result.summary["out_of_memory"] >= 1
    assert result.summary["retries"] == 0, "no worker was lost"


@tried
def test_a_trial_that_loses_the_cuda_context_fails_alone(sweep_config: Any) -> None:
    config = sweep_config(
        experiment="tests.on_gpu_cases:breaks",
        trials=None,
        search={"algorithm": "grid"},
        space={"breaks": {"grid_search": [False, True, False, False]}},
        gpu={"fraction": 0.5, "mode": "process"},
        **LOCAL,
    )
    result = sweep.run(config)
    assert [row["status"] for row in rows(result)] == ["finished", "failed", "finished", "finished"]


@gpu_alone
@pytest.mark.parametrize("precision", ["tf32", "bf16", "fp16"])
def test_other_precisions_train_as_float32_does_nearly(precision: Any) -> None:
    kind, shape = MODELS["mlp"]
    experiment, trial = kind(), Trial("t0", 3, {**shape, "lr": 0.1})
    losses = []
    for each in ("float32", precision):
        solo = TorchSolo(experiment, experiment.data(), trial, Settings(3, 1, each, Path()))
        while (result := solo.run_epoch()) is not None:
            last = result.metrics["validation/loss"]
        losses.append(last)
    assert losses[0] != losses[1], "the precision was set"
    assert losses[1] == pytest.approx(losses[0], rel=0.1)


@gpu_alone
@pytest.mark.parametrize("fused", [False, True])
def test_data_that_stays_on_the_host_trains_alike(fused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, shape = MODELS["mlp"]
    experiment, trial = kind(), Trial("t0", 3, {**shape, "lr": 0.1})

    def losses() -> list[float]:
        settings = Settings(3, 1, "float32", Path())
        found = []
        if fused:
            array = TorchArray(experiment, experiment.data(), [trial, Trial("t1", 4, trial.hyperparameters)], settings)
            while (results := array.run_epoch()) is not None:
                found.append(results["t0"].metrics["validation/loss"])
            return found
        solo = TorchSolo(experiment, experiment.data(), trial, settings)
        while (result := solo.run_epoch()) is not None:
            found.append(result.metrics["validation/loss"])
        return found

    on_device = losses()
    monkeypatch.setattr(data, "home_of", lambda splits, device: torch.device("cpu"))
    assert losses() == pytest.approx(on_device, rel=1e-5)


@gpu_alone
def test_keras_trains_on_the_gpu(sweep_config: Any) -> None:
    tensorflow = pytest.importorskip("tensorflow")
    if not tensorflow.config.list_physical_devices("GPU"):
        pytest.skip("this TensorFlow has no CUDA")
    config = sweep_config(
        experiment="experiments.digits:KerasMlp",
        metric="accuracy",
        trials=4,
        epochs=3,
        space={"hidden": 32, "lr": {"loguniform": [0.01, 0.3]}},
        gpu={"mode": "split", "width": 2},
        **LOCAL,
    )
    assert [row["status"] for row in rows(sweep.run(config))] == ["finished"] * 4
