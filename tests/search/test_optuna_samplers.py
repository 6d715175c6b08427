from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from raygpu.errors import BadInput
from raygpu.search.generations import Generations
from raygpu.search.optuna_samplers import notes, require
from raygpu.search.samplers import OptunaSampler
from raygpu.search.space import parse

MIXED: dict[str, Any] = {
    "lr": {"loguniform": [1e-3, 1]},
    "momentum": {"uniform": [0, 1]},
    "hidden": {"choice": [8, 16]},
    "layers": {"choice": [1, 2]},
    "width2": {"choice": [8, 16], "when": {"layers": 2}},
    "batch_size": 32,
}


@pytest.mark.parametrize("package", ["torch", "cmaes"])
def test_a_missing_package_is_named_in_a_line(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    algorithm = {"torch": "gp", "cmaes": "cmaes"}[package]
    with pytest.raises(BadInput, match=f"{algorithm} needs a package that is not installed: pip install {package}"):
        require(algorithm, parse(MIXED), several=False)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())


@pytest.mark.usefixtures("installed")
def test_cmaes_wants_two_numbers_and_one_metric() -> None:
    require("cmaes", parse(MIXED), several=False)
    with pytest.raises(BadInput, match="at least 2 numbers that every trial has; \\[space\\] has lr"):
        require("cmaes", parse({"lr": {"uniform": [0, 1]}, "k": {"choice": [1, 2]}}), several=False)
    with pytest.raises(BadInput, match="cmaes takes one metric"):
        require("cmaes", parse(MIXED), several=True)
    for algorithm in ("tpe", "gp", "nsgaii"):
        require(algorithm, parse({"k": {"choice": [1, 2]}}), several=True)


def test_what_is_left_to_chance_is_said() -> None:
    space = parse(MIXED)
    assert notes("tpe", space) == []
    assert notes("random", space) == []
    assert notes("gp", space) == ["search: gp leaves to chance: width2 (that not every trial has)"]
    assert notes("cmaes", space) == [
        "search: cmaes leaves to chance: hidden, layers (of choices); width2 (that not every trial has)"
    ]
    assert notes("cmaes", parse({"lr": {"uniform": [0, 1]}})) == []


@pytest.mark.parametrize(("numbers", "together"), [(2, 8), (6, 8), (10, 8), (15, 16)])
@pytest.mark.parametrize("fails", [False, True])
def test_cmaes_learns_from_every_trial_after_the_first_generation(numbers: int, together: int, fails: bool) -> None:
    """Trials beyond those from which it learns together would be thrown away, as the rest of a failed one's would."""
    pytest.importorskip("cmaes")
    space = parse({f"x{i}": {"uniform": [-3.0, 3.0]} for i in range(numbers)}, "cmaes")
    search = OptunaSampler(space, Generations.equal(56, 8), 0, [False], algorithm="cmaes")
    while not search.finished:
        for trial in [*iter(search.next, None)]:
            score = sum((x - 1) ** 2 for x in trial.hyperparameters.values())
            search.tell(trial.trial_id, None if fails and trial.trial_id.endswith("2") else score)
    drawn = [trial.system_attrs.get("cma:generation") for trial in search._study.trials]
    assert drawn == [None] * 8 + [place // together for place in range(48)]


@pytest.mark.parametrize("maximize", [[False], [False, True]])
def test_nsgaii_begins_a_generation_after_each_one_that_had_a_failed_trial(maximize: list[bool]) -> None:
    """A failed trial does not make the next generation a child of the same parents."""
    space = parse({f"x{i}": {"uniform": [-3.0, 3.0]} for i in range(3)}, "nsgaii")
    search = OptunaSampler(space, Generations.equal(40, 8), 0, maximize, algorithm="nsgaii")
    while not search.finished:
        for trial in [*iter(search.next, None)]:
            score = sum((x - 1) ** 2 for x in trial.hyperparameters.values())
            values = (None, ()) if trial.trial_id.endswith("2") else (score, (score,) * (len(maximize) - 1))
            search.tell(trial.trial_id, *values)
    drawn = [trial.system_attrs.get("NSGAIISampler:generation") for trial in search._study.trials]
    assert drawn == [place // 8 for place in range(40)]
