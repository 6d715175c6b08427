"""Whole sweeps and trainings on data sets whose samples are read meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from raygpu import balance, pack, place, sweep, train
from raygpu.config import BalanceConfig, PackConfig, PlaceConfig
from raygpu.errors import BadInput
from raygpu.search.trials import Trial
from raygpu.sweep import SweepResult
from raygpu.training.base import Settings
from raygpu.training.torch.solo import TorchSolo
from raygpu.workflow import packing
from tests.data_set_cases import Read, ReadByKeras
from tests.test_sweep import rows, runs
from tests.test_train import HP, configuration, last, last_checkpoint

pytestmark = pytest.mark.timeout(600)


def test_samples_that_are_read_are_the_same_in_both_modes_and_read_once(
    sweep_config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("READS_FILE", str(tmp_path / "reads.txt"))

    def swept(mode: str) -> tuple[Any, SweepResult]:
        config = sweep_config(
            name=mode,
            experiment="tests.data_set_cases:Read",
            metric="accuracy",
            trials=3,
            epochs=3,
            seed=5,
            space={"lr": {"loguniform": [0.05, 0.5]}, "batch_size": 16},
            gpu={"mode": mode, "fraction": 0.5},
        )
        return config, sweep.run(config)

    config, process = swept("process")
    reads = (tmp_path / "reads.txt").read_text().split()
    assert set(map(int, reads)) == set(range(96))
    assert len(reads) < 2 * 96 + 40  # two trials at once may read a sample at the same time; 9 epochs have 864
    _, fused = swept("fused")
    assert fused.summary["mode"] == "fused"
    scores = [{trial: float(row["score"]) for trial, row in rows(result).items()} for result in (process, fused)]
    assert scores[0] == pytest.approx(scores[1], abs=1 / 32 + 1e-6)  # float32: a sample may be on the other side
    for result in (process, fused):
        assert result.summary["workers_s"]["data"] > 0
    _, children = runs(config, process)
    assert all(0 < run.data.metrics["waited_for_data"] <= 1 for run in children.values())


@pytest.mark.slow
def test_rows_of_ray_data_are_swept_and_trained_on(sweep_config: Any, ray_address: str, tmp_path: Path) -> None:
    """Ray is not up yet when data() uses it, which waits; and has ended when the trained model is exported."""
    common: dict[str, Any] = {"experiment": "tests.data_set_cases:InRay", "metric": "accuracy", "epochs": 2}
    found = {}
    for mode in ("process", "fused"):
        space = {"lr": {"loguniform": [0.05, 0.5]}, "batch_size": 16}
        config = sweep_config(name=mode, trials=2, space=space, gpu={"mode": mode, "fraction": 0.5}, **common)
        found[mode] = {trial: float(row["score"]) for trial, row in rows(sweep.run(config)).items()}
    assert found["process"] == pytest.approx(found["fused"], abs=1 / 32 + 1e-6)
    values = common | {"hyperparameters": {"batch_size": 16}, "global_batch": 16}
    trained = train.run(configuration(tmp_path, cluster={"address": ray_address}, **values))
    assert trained.summary["model"]["uri"]


def test_what_data_sets_do_not_allow_is_one_line(
    sweep_config: Any, no_ray: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raygpu.sweep.ray_starting", no_ray)
    common = {"metric": "accuracy", "epochs": 2, "space": {"lr": 0.1}}
    with pytest.raises(BadInput, match="folds: read 2; folds are cut from arrays"):
        sweep.run(sweep_config(experiment="tests.data_set_cases:Read", folds=2, **common))
    with pytest.raises(BadInput, match=r"data\(\) is of dataset_splits: a KerasExperiment's placements take arrays"):
        place.run(PlaceConfig(experiment="tests.data_set_cases:ReadByKeras", hyperparameters={"lr": 0.1}))
    for name, more, line in (
        ("ReadByKeras", {"gpu": {"mode": "split"}}, r"data\(\) is of dataset_splits: read gpu.mode 'split'"),
        ("TransformedForKeras", {}, r"data\(\) is of dataset_splits: transform is for a TorchExperiment"),
    ):
        with pytest.raises(BadInput, match=line):
            sweep.run(sweep_config(experiment=f"tests.data_set_cases:{name}", **common, **more))


@pytest.mark.slow
def test_two_workers_read_what_one_reads(ray_address: str, tmp_path: Path) -> None:
    values = {"experiment": "tests.data_set_cases:Read", "hyperparameters": {"batch_size": 16}, "epochs": 2}
    off = {"tracking": {"enabled": False}}
    own = {"cluster": {"address": ray_address}, "global_batch": 16}
    found = train.run(configuration(tmp_path, **own, **values, **off))
    assert found.summary["workers_s"]["data"] > 0
    trial = Trial("t0000", 0, {**HP, "batch_size": 16})
    alone = TorchSolo(Read(), Read().data(), trial, Settings(2, 1, "float32", tmp_path), torch.device("cpu"))
    while alone.run_epoch() is not None:
        pass
    assert last(found).keys() == alone.model.state_dict().keys()
    for name, value in alone.model.state_dict().items():
        assert torch.allclose(value, last(found)[name], rtol=1e-4, atol=1e-5), name


@pytest.mark.slow
def test_two_workers_with_a_keras_model_read_what_one_reads(ray_address: str, tmp_path: Path) -> None:
    from raygpu.training.keras.solo import WEIGHTS, KerasSolo

    found = train.run(
        configuration(
            tmp_path,
            experiment="tests.data_set_cases:ReadByKeras",
            hyperparameters={"batch_size": 16},
            epochs=2,
            global_batch=16,
            cluster={"address": ray_address},
            tracking={"enabled": False},
        )
    )
    assert "data" in found.summary["workers_s"], "the wait for samples was measured; it may be no hundredth of a second"
    trial = Trial("t0000", 0, {**HP, "batch_size": 16})
    alone = KerasSolo(ReadByKeras(), ReadByKeras().data(), trial, Settings(2, 1, "float32", tmp_path))
    while alone.run_epoch() is not None:
        pass
    wanted = alone.model.get_weights()
    alone.model.load_weights(last_checkpoint(found) / WEIGHTS)
    for value, expected in zip(alone.model.get_weights(), wanted, strict=True):
        assert value == pytest.approx(expected, rel=1e-4, abs=1e-5)
    alone.close()


COMMON: dict[str, Any] = {"name": "x", "epochs": 2, "tracking": {"enabled": False}}
VALUES = {"lr": 0.1, "batch_size": 16}


@pytest.mark.slow
def test_keras_trainings_on_a_data_set_are_packed_as_processes_alone() -> None:
    config = PackConfig(**COMMON, experiment="tests.data_set_cases:ReadByKeras", space=VALUES)
    found = packing.find_training(config, "x", Path(__file__).parents[1], list)
    assert packing._ways(found)[0] == ["process"]


@pytest.mark.slow
@pytest.mark.usefixtures("joined_ray")
def test_devices_are_balanced_and_trainings_packed_while_samples_are_read(tmp_path: Path) -> None:
    common = COMMON | {"runs_dir": str(tmp_path), "experiment": "tests.data_set_cases:Read"}
    own: dict[str, Any] = {"ways": "process", "numbers": "1,2", "rounds": 1, "profiles": str(tmp_path / "profiles")}
    packed = pack.run(PackConfig(**common, space=VALUES, **own))
    assert [(point.way, point.fault) for point in packed.profile.points] == [("process", None), ("process", None)]
    own = {"workers": 2, "global_batch": 16, "window_s": 0.2, "rounds": 2, "turn_s": 0.5}
    settings = BalanceConfig(**common | {"name": "y"}, hyperparameters=VALUES, **own)
    assert len(balance.run(settings).summary["ranks"]) == 2
