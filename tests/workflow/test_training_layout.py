"""Faults of a production training that are told before Ray starts, and its plan without a start."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from raygpu import balance, train

CONFIG = """
experiment = "tests.train_cases:Small"
epochs = 2
metric = "accuracy"
[hyperparameters]
hidden = 8
lr = 0.1
momentum = 0.9
batch_size = 16
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.toml").write_text(CONFIG)
    return tmp_path


@contextmanager
def no_ray(*arguments: Any, wanted: bool = True, **values: Any) -> Iterator[None]:
    """In place of `ray_starting`: nothing may start."""
    assert not wanted, "Ray would start"
    yield None


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--workers", "2", "--ratios", "3,2,1"], "ratios: read 3,2,1, 3 numbers for 2 devices"),
        (["--workers", "2", "--global-batch", "1"], "global_batch: read 1; 2 devices need 2 samples at least"),
        (["--workers", "30000"], "workers: read 30000; each takes at least 0.3 GiB of host memory, and "),
        (["--hyperparameters.lr", "-1"], "hyperparameters: lr: read -1; a number from 0 to inf is wanted"),
        (["--hyperparameters.optimizer", "lion"], "hyperparameters: optimizer: read 'lion'; allowed: sgd, adam, adamw"),
        (["--hyperparameters.batch-size", "0"], "hyperparameters: batch_size: read 0; a whole number of at least 1"),
        (["--register", "a/b:c"], "--registered-name: read 'a/b:c'; no / and no : is allowed in"),
        (["--register", "digits", "--no-tracking.enabled"], "registered_name: the registry is MLflow's, and tracking"),
        (["--sharding", "full", "--compile"], "sharding: read full; a sharded model is not compiled"),
        (["--sharding", "full", "--ratios", "auto"], "sharding: read full; a device's own speed cannot be measured"),
        (["--devices-per-worker", "2"], "devices_per_worker: read 2; a worker of torch drives one"),
    ],
)
def test_it_is_refused_before_ray_starts(
    here: Path, flags: list[str], line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(train, "ray_starting", no_ray)
    assert train.main(["t.toml", *flags]) == 2
    assert f"raygpu: {line}" in capsys.readouterr().err
    assert not (here / "runs").exists()


def test_a_misspelt_hyperparameter_is_refused(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(train, "ray_starting", no_ray)
    (here / "t.toml").write_text(CONFIG.replace("momentum", "momentun"))
    assert train.main(["t.toml", "--dry-run"]) == 2
    line = "hyperparameters: a first step does not read momentun: if nothing does, did you mean momentum?"
    assert line in capsys.readouterr().err


def test_a_dry_run_shows_the_plan_and_starts_nothing(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(train, "ray_starting", no_ray)
    assert train.main(["t.toml", "--dry-run", "--workers", "2", "--ratios", "3,1"]) == 0
    shown = capsys.readouterr().out
    assert "2 workers on one simulated GPU" in shown
    assert "an optimizer step: 32 samples: 24 + 8, as 3,1 (batch_size is 16)" in shown
    assert not (here / "runs").exists()


def test_a_split_of_a_balance_is_refused_before_ray_starts(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(balance, "ray_starting", no_ray)
    assert balance.main(["t.toml", "--workers", "2", "--batches", "40,24,8"]) == 2
    assert "raygpu: batches: read 40,24,8, 3 numbers for 2 devices" in capsys.readouterr().err


def test_a_dry_run_has_no_summary_for_a_program(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert train.main(["t.toml", "--dry-run", "--json"]) == 0
    out = capfd.readouterr().out
    assert not out or json.loads(out) is None
