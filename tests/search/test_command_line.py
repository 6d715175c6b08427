"""A script's command line with a trial's hyper-parameters."""

from __future__ import annotations

import pytest

from raygpu.errors import BadInput
from raygpu.search.command_line import filled, placeholders, render
from raygpu.search.trials import Trial


def test_render() -> None:
    command = "python t.py --lr {lr} --width {width} --tag a{lr}b"
    assert placeholders(command) == {"lr", "width"}
    assert render(command, {"lr": 0.1, "width": 3}) == [
        "python",
        "t.py",
        "--lr",
        "0.1",
        "--width",
        "3",
        "--tag",
        "a0.1b",
    ]
    assert render(command, {"lr": 0.1}) == ["python", "t.py", "--lr", "0.1", "--tag", "a0.1b"]
    with pytest.raises(BadInput, match="No closing quotation"):
        placeholders("python 't.py")


def test_only_an_option_of_the_command_itself_goes_with_a_missing_value() -> None:
    """The value -0.5 begins like an option."""
    assert render("t.py --shift {shift} {w}", {"shift": -0.5}) == ["t.py", "--shift", "-0.5"]
    assert render("t.py --{mode} {w}", {"mode": "fast"}) == ["t.py"]
    assert render("t.py -v --{mode} {w}", {}) == ["t.py", "-v"]


def test_every_command_has_the_trials_own_names_too() -> None:
    trial = Trial("t0001", 7, {"lr": 0.1, "seed": 3})
    words = filled("python t.py --lr {lr} --seed {seed} --epochs {epochs} --out {trial_id}.pt", trial, 5)
    assert words == ["python", "t.py", "--lr", "0.1", "--seed", "3", "--epochs", "5", "--out", "t0001.pt"]


def test_a_script_gets_its_fold() -> None:
    command = "python t.py --lr {lr} --fold {fold} --folds {folds}"
    trial = Trial("t0003-3", 1, {"lr": 0.1}, repeat=0, fold=2)
    assert filled(command, trial, 5, 4) == ["python", "t.py", "--lr", "0.1", "--fold", "2", "--folds", "4"]
    alone = Trial("t0003", 1, {"lr": 0.1})
    assert filled(command, alone, 5) == ["python", "t.py", "--lr", "0.1"], "as in a measurement"
