"""`[script]`: faults are told at once, a line for each."""

from __future__ import annotations

from pathlib import Path

import pytest

from raygpu import sweep
from raygpu.config import PackConfig, SweepConfig, TrainConfig, load

SCRIPT = 'command = "python train.py"\ntrials = 2\nmetric = "accuracy"\n[script]\n'


def told(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines that the command line gives for a file."""
    path = tmp_path / "mine.toml"
    path.write_text(text)
    assert sweep.main([str(path)]) == 2
    return [line.partition("mine.toml: ")[2] for line in capsys.readouterr().err.splitlines() if "mine.toml: " in line]


def test_expressions_are_checked_before_anything_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    metrics = r"metrics = { accuracy = 'Accuracy: (', loss = 'loss \d+', error = '(a)(b)', rate = 3 }"
    lines = told(SCRIPT + metrics, tmp_path, capsys)
    assert [line.partition(";")[0] for line in lines] == [
        "script.metrics.accuracy: read 'Accuracy: ('",
        r"script.metrics.loss: read 'loss \\d+'",
        "script.metrics.error: read '(a)(b)'",
        "script.metrics.rate: read 3",
    ]
    assert "no regular expression: missing )" in lines[0]
    assert "has no groups; one in (...) is wanted" in lines[1]
    assert "has 2 groups; one in (...) is wanted" in lines[2]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (SCRIPT + "metrics = { 'my accuracy' = '(1)' }", "'my accuracy' is no metric's name; allowed: letters, digits"),
        (SCRIPT + "metrics = '(1)'", "script.metrics: read '(1)'; a table is wanted, as in { accuracy = "),
        (SCRIPT + "metrics = { loss = '(1)' }", "metric: read 'accuracy'; [script] metrics has: loss"),
        (SCRIPT + "folder = 'mine'", "script.folder: read 'mine'; input should be 'own' or 'shared'"),
        (SCRIPT + "metric = {}", "script.metric: unknown key (did you mean 'script.metrics'?)"),
        (
            "experiment = 'a:B'\ntrials = 2\n[script]\nfolder = 'shared'",
            'script: is for a command, as in command = "python train.py"; leave it out for a:B',
        ),
    ],
)
def test_other_faults(text: str, fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = told(text, tmp_path, capsys)
    assert fault in line


def test_sound_ones_are_taken_by_every_command(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(SCRIPT + r"metrics = { accuracy = '(?P<share>\d+)%', 'validation/loss' = '(?:a|b) ([0-9.]+)' }")
    for schema in (SweepConfig, PackConfig):
        found = load(path, {"script.folder": "shared"}, schema).script
        assert (set(found.metrics), found.folder) == ({"accuracy", "validation/loss"}, "shared")
    assert load(path, {}, TrainConfig).command == "python train.py"
