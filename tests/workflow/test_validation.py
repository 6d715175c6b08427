"""What a command checks before anything is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raygpu.config import PackConfig, PlaceConfig, SweepConfig, TrainConfig
from raygpu.errors import BadInput
from raygpu.storage import JOB_VARIABLE, Storage
from raygpu.workflow.submission import IN_THE_JOB
from raygpu.workflow.validation import prepare, prepare_pack, prepare_place, prepare_train
from tests.fakes.nvml import FakeNvml

COMMANDS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "sweep": (SweepConfig, prepare, {"trials": 1, "epochs": 1, "metric": "accuracy", "space": {"x": 1}}),
    "pack": (PackConfig, prepare_pack, {"epochs": 1, "space": {"x": 1}}),
    "place": (PlaceConfig, prepare_place, {"hyperparameters": {"x": 1}}),
    "train": (TrainConfig, prepare_train, {"epochs": 1, "metric": "accuracy", "hyperparameters": {"x": 1}}),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_gpu_without_bf16_is_refused_in_a_line(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.chdir(tmp_path)
    fake = FakeNvml(["Tesla T4", "NVIDIA A100-SXM4-40GB"]).install(monkeypatch)
    fake.devices[0].capability = (7, 5)
    kind, check, values = COMMANDS[command]

    def checked(precision: str, devices: str) -> Any:
        gpu = {"precision": precision, "devices": devices}
        return check(kind.model_validate({"experiment": "a:b", "gpu": gpu, **values}), "x")

    checked("fp16", "0")
    checked("bf16", "1")
    with pytest.raises(BadInput) as refused:
        checked("bf16", "0,1")
    assert str(refused.value) == "gpu.precision: read bf16, which a Tesla T4 does not have: use fp16"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_job_that_measures_names_a_way_without_mlflow(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of Kubernetes' pods, the head alone reaches it, and these jobs run on a pod with a GPU."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(JOB_VARIABLE, "{}")
    kind, check, values = COMMANDS[command]
    away = {"uri": "http://127.0.0.1:1"}
    with pytest.raises(BadInput, match="is the MLflow server running there") as refused:
        check(kind.model_validate({"experiment": "a:b", "tracking": away, **values}), "x")
    advised = "--tracking.enabled false --storage s3://BUCKET/FOLDER" in str(refused.value)
    assert advised == (command in IN_THE_JOB)
    assert len(refused.value.faults) == 1


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("storage", ["shared", "s3://bucket/runs"])
def test_a_storage_of_a_sweep_s_file_is_left_out_by_the_flag_that_its_refusal_names(
    command: str, storage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_credentials(self: Storage) -> None:
        """Refuse as a storage does."""
        raise BadInput(f"storage: {self} cannot be used: no credentials")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Storage, "check", without_credentials)
    kind, check, values = COMMANDS[command]
    values = {"experiment": "a:b", "tracking": {"enabled": False}, "runs_dir": str(tmp_path / "here"), **values}
    with pytest.raises(BadInput, match=r"runs_dir: shared is where|storage: s3://bucket/runs cannot be") as refused:
        check(kind.model_validate({**values, "storage": storage}), "x")
    assert ("--storage local" in str(refused.value)) == (storage == "shared" or command in ("pack", "place"))
    config = check(kind.model_validate({**values, "storage": "local"}), "x").config
    assert (config.storage, config.runs_dir) == ("local", str(tmp_path / "here"))
