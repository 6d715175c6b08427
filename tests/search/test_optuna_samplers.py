from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from raygpu.errors import BadInput
from raygpu.search.optuna_samplers import notes, require
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
