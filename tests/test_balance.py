"""Whole runs of raygpu.balance, on two processes that play unequal devices."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from raygpu import balance
from raygpu.config import BalanceConfig, TrainConfig, load
from raygpu.engines.train.production import TrainingFailed
from raygpu.errors import RaygpuError

pytestmark = pytest.mark.timeout(600)
Make = Callable[..., BalanceConfig]


@pytest.fixture
def config(ray_address: str, tmp_path: Path) -> Make:
    def make(**values: Any) -> BalanceConfig:
        defaults: dict[str, Any] = {
            "name": "test",
            "experiment": "tests.balance_cases:Unequal",
            "metric": "accuracy",
            "workers": 2,
            "window_s": 0.3,
            "turn_s": 2.0,
            "runs_dir": str(tmp_path / "runs"),
            "cluster": {"address": ray_address},
            "tracking": {"enabled": False},
            "hyperparameters": {
                "hidden": 16, "batch_size": 32, "lr": 0.1, "samples_per_s": 4000, "fits": 150, "folder": str(tmp_path)
            },
        }  # fmt: skip
        return BalanceConfig.model_validate(defaults | values)

    return make


@pytest.mark.slow
def test_a_split_that_does_not_fit_is_lowered_and_written(
    config: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "written" / "train.toml"
    result = balance.run(config(batches="300,200", rounds=2, turn_s=0.5), write=path)
    out = capsys.readouterr().out
    assert "out of memory on rank 1 with 200 samples; all by a fifth less: [240, 160]" in out
    assert "out of memory on rank 1 with 160 samples; all by a fifth less: [192, 128]" in out
    summary = json.loads((result.folder / "summary.json").read_text())
    assert summary == result.summary
    assert [rank["share"] for rank in summary["ranks"]] == [192, 128]
    assert summary["global_batch"] == 320
    assert summary["equal_samples_per_s"] is None, "rank 1 has no room for 160"
    assert "equal shares: out of memory" in out
    assert "this changes the training: 320 samples a step in place of 64, 4 steps an epoch in place of 16" in out
    assert "learning rate 0.1 as it was (--lr-scaling linear makes it 0.5)" in out
    assert "warning: a step takes 32 % of the 1,000 training samples" in out
    assert summary["balanced_samples_per_s"] > 0
    assert summary["predicted_samples_per_s"] > 0
    assert (result.folder / "balance.png").stat().st_size > 10_000
    written = load(path, {}, TrainConfig)
    assert (written.ratios, written.global_batch, written.workers) == ("192,128", 320, 2)
    assert written.hyperparameters["batch_size"] == 32
    assert "batches" not in tomllib.loads(path.read_text())


@pytest.mark.slow
def test_the_slower_device_has_the_smaller_share(
    config: Make, new_store: Callable[[Path], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hp = config().hyperparameters | {"fits": 10_000, "samples_per_s": 800}
    tracking = {"uri": new_store(tmp_path)}
    result = balance.run(config(hyperparameters=hp, turn_s=0.5, rounds=3, tracking=tracking))
    summary = result.summary
    first, second = (rank["tried_share"] for rank in summary["ranks"])
    assert 0.55 < first / (first + second) < 0.75, "1 to 0.6 is 0.625; a busy machine adds a cost to each step"
    assert summary["global_batch"] == summary["configured_global_batch"] == 64, "the training stays as it is"
    middle, low, high = summary["balanced_over_equal"]
    assert low <= middle <= high
    out = capsys.readouterr().out
    assert "the training is as configured: 64 samples a step, 16 steps an epoch, learning rate 0.1" in out
    assert len(summary["turns"]["balanced"]) == len(summary["turns"]["equal"]) == 3
    assert summary["lines"][-1] in out
    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    (found,) = client.search_runs([each.experiment_id for each in client.search_experiments()])
    assert (found.info.status, found.data.tags["raygpu.kind"]) == ("FINISHED", "balance")
    assert found.data.metrics["balance/rank/0/share"] == summary["ranks"][0]["share"]
    assert found.data.metrics["balance/speedup"] == pytest.approx(middle, abs=1e-3)
    files = {each.path for each in client.list_artifacts(found.info.run_id)}
    assert files == {"balance.png", "report.html", "summary.json", "train.toml"}
    assert (summary["verdict"] == "balanced") == (low > 1) == ("verdict: balanced is" in out)
    assert middle > 1.05


CASE = """
experiment = "tests.train_cases:Small"
metric = "accuracy"
[hyperparameters]
hidden = 8
batch_size = 16
"""


@pytest.mark.parametrize(
    ("flags", "fault"),
    [
        (["--batches", "3,x"], "--batches: read '3,x'; allowed: auto, or whole numbers above 0 by commas"),
        (["--workers", "2", "--batches", "30"], "batches: read 30, 1 numbers for 2 devices"),
        (["--workers", "1"], "workers: 1; there is nothing to balance on one device"),
        (["--write", "case.toml"], "--write: case.toml exists already; choose another file"),
        (["--batch", "3"], "--batch: unknown flag (did you mean 'batches'?)"),
        (["--best-batch", "--global-batch", "64"], "best_batch: the batch is given by global_batch already"),
        (["--best-batch", "--batches", "3,4"], "best_batch: the batch is given by batches already"),
        (["--rounds", "1"], "--rounds: read '1'"),
        (["--workers", "2", "--global-batch", "1"], "global_batch: read 1; 2 devices need 2 samples at least"),
    ],
)
def test_bad_input(
    flags: list[str], fault: str, tmp_path: Path, no_ray: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("raygpu.balance.ray_starting", no_ray)
    (tmp_path / "case.toml").write_text(CASE)
    assert balance.main(["case.toml", *flags]) == 2
    _, err = capsys.readouterr()
    assert err.startswith("raygpu: ")
    assert fault in err, err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "runs").exists()


class Refusing:
    """Short trainings on devices that hold so many samples in all."""

    def __init__(self, holds: int) -> None:
        self.holds, self.shares = holds, list[tuple[int, ...]]()

    def train(self, shares: Sequence[int], seconds: float) -> tuple[float, ...]:
        self.shares.append(tuple(shares))
        if sum(shares) > self.holds:
            raise TrainingFailed("out of memory", "", out_of_memory=True)
        return tuple(map(float, shares))


@pytest.mark.parametrize(
    ("asked", "holds", "trained"),
    [((15, 1), 99, [(14, 2)]), ((9, 2), 9, [(9, 2), (6, 2)]), ((2, 1), 99, []), ((3, 2), 1, [(3, 2)])],
)
def test_the_shares_are_those_that_were_trained(
    asked: tuple[int, ...], holds: int, trained: list[tuple[int, ...]]
) -> None:
    """A model with BatchNorm needs two samples on each device."""
    measuring: Any = SimpleNamespace(
        config=SimpleNamespace(turn_s=1.0), console=SimpleNamespace(warn=lambda line: None), least=2
    )
    measuring._with_least = partial(balance._Measuring._with_least, measuring)
    trainings: Any = Refusing(holds)
    if holds >= 9 and sum(asked) >= 4:
        assert balance._Measuring._first(measuring, trainings, asked)[1] == trained[-1]
    else:
        with pytest.raises(RaygpuError, match=r"^global_batch: 3 samples for 2 devices; each needs 2 at least"):
            balance._Measuring._first(measuring, trainings, asked)
    assert trainings.shares == trained
