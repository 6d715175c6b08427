"""What `raygpu.train` says of losses, metrics and models that cannot be cut into shares, before anything is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raygpu import train
from raygpu.config import TrainConfig
from raygpu.config.source import locate
from raygpu.training.distributed.batch_split import checked, spread

HERE = Path(__file__).parents[3]


def config(experiment: str, **values: Any) -> TrainConfig:
    hp = {"hidden": 8, "batch_size": 16}
    defaults = {"experiment": f"tests.train_cases:{experiment}", "epochs": 2, "metric": "accuracy",
                "hyperparameters": hp, "tracking": {"enabled": False}}  # fmt: skip
    return TrainConfig.model_validate(defaults | values)


def lines(wanted: TrainConfig, devices: int) -> list[str]:
    source, code = locate(str(wanted.experiment), HERE)
    splits = code.data()  # type: ignore[union-attr]
    plan = spread(wanted, devices, splits.num_train)
    return list(checked(wanted, plan, devices, source, code, splits).lines[len(plan.lines) :])


def test_losses_and_models_that_can_be_cut_need_no_word() -> None:
    assert lines(config("Small"), 2) == lines(config("Small", accumulate=3), 1) == lines(config("Normed"), 2) == []
    assert lines(config("Contrastive"), 1) == [], "nothing is cut"


def test_each_share_s_own_loss_is_told() -> None:
    (line,) = lines(config("Contrastive", loss_by_share=True), 2)
    assert line.startswith("loss by share: each device's loss is of its share of a batch alone")


def test_a_metric_of_batches_of_the_validation_data_is_told() -> None:
    (line,) = lines(config("Precise"), 1)
    assert line.startswith("validation/precision, of 1,200 samples, is the mean of batches of 1,024, as it is no mean")


def test_a_model_that_needs_two_samples_gets_them() -> None:
    wanted = config("Normed", global_batch=32, ratios="31,1")
    source, code = locate(str(wanted.experiment), HERE)
    splits = code.data()  # type: ignore[union-attr]
    plan = checked(wanted, spread(wanted, 2, splits.num_train), 2, source, code, splits)
    assert plan.parallel.least == 2


REFUSALS = [
    ("Contrastive", ["--workers", "2"], "but", "for a loss that compares samples with each other, --loss-by-share"),
    ("Contrastive", ["--workers", "1", "--accumulate", "2"], "experiment: tests.train_cases:Contrastive: the loss is",
     "return raygpu.Mean(total, weight) or raygpu.Sum(total)"),
    ("KerasSummed", ["--workers", "2"], "experiment: tests.train_cases:KerasSummed: the loss is no mean", "Sum"),
    ("Normed", ["--workers", "4", "--global-batch", "6"], "global_batch: read 6; the model cannot be trained on a",
     "4 devices need 8 samples at least"),
]  # fmt: skip


@pytest.mark.parametrize(("experiment", "flags", "fault", "remedy"), REFUSALS)
def test_refusals(
    experiment: str,
    flags: list[str],
    fault: str,
    remedy: str,
    tmp_path: Path,
    no_ray: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("raygpu.train.ray_starting", no_ray)
    text = f"""
    experiment = "tests.train_cases:{experiment}"
    epochs = 2
    metric = "loss"
    [hyperparameters]
    hidden = 8
    batch_size = 16
    [tracking]
    enabled = false
    """
    (tmp_path / "case.toml").write_text(text)
    assert train.main(["case.toml", *flags]) == 2
    _, err = capsys.readouterr()
    assert fault in err, err
    assert remedy in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "runs").exists()
