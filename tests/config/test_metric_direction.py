"""A metric's name says whether more is better, or the configuration has to."""

from __future__ import annotations

from pathlib import Path

import pytest

from raygpu import sweep, train
from raygpu.config.metric_direction import direction_of

CONFIG = """
experiment = "{experiment}"
{trials}epochs = 1
metric = "{metric}"
[tracking]
enabled = false
[{table}]
hidden = 8
"""


@pytest.mark.parametrize(
    ("metric", "direction"),
    [
        ("loss", "min"),
        ("val_loss", "min"),
        ("validation/mae", "min"),
        ("eval_rmse", "min"),
        ("crossentropy", "min"),
        ("accuracy", "max"),
        ("validation/inaccuracy", "min"),
        ("eval_accuracy", "max"),
        ("bleu-4", "max"),
        ("log_likelihood", "max"),
        ("neg_mean_squared_error", None),
        ("error_score", None),
        ("steps", None),
        ("happiness", None),
    ],
)
def test_the_direction_of_a_name(metric: str, direction: str | None) -> None:
    assert direction_of(metric) == direction


@pytest.mark.parametrize("command", [sweep, train])
def test_a_name_that_says_nothing_is_refused(
    command: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    is_sweep = command is sweep
    trials, table = ("trials = 2\n", "space") if is_sweep else ("", "hyperparameters")
    text = CONFIG.format(experiment="tests.models:Mlp", metric="happiness", trials=trials, table=table)
    (tmp_path / "c.toml").write_text(text)
    assert (sweep if is_sweep else train).main(["c.toml", "--dry-run"]) == 2
    assert "direction: not given, and 'happiness' does not say whether more is better" in capsys.readouterr().err


def test_a_mistyped_metric_is_guessed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = CONFIG.format(experiment="tests.models:Mlp", metric="accurracy", trials="trials = 2\n", table="space")
    (tmp_path / "c.toml").write_text(text)
    assert sweep.main(["c.toml", "--dry-run"]) == 2
    assert "'accurracy' (did you mean 'accuracy'?) does not say" in capsys.readouterr().err
