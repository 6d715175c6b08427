"""Which version of a registered model is the champion, on a real SQLite store."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mlflow
import numpy as np
import pytest
from mlflow.tracking import MlflowClient

from raygpu.tracking import models, registry
from raygpu.tracking.registry import Claim, Registration
from raygpu.tracking.runs import RunTree

CLAIM = Claim(0.92, "accuracy", maximize=True, validation="digits")
Register = Callable[..., Registration]


@pytest.fixture
def model(tree: RunTree) -> str:
    """A logged model's URI."""

    class Zero(mlflow.pyfunc.PythonModel):
        def predict(self, model_input: np.ndarray) -> np.ndarray:
            return model_input * 0

    with models.store_of(tree), mlflow.start_run(run_id=tree.run_id):
        return str(mlflow.pyfunc.log_model(python_model=Zero(), name="model", pip_requirements=[]).model_uri)


@pytest.fixture
def register(tree: RunTree, model: str) -> Register:
    def make(score: float, **changes: Any) -> Registration:
        return registry.register(tree, model, "digits", replace(CLAIM, score=score, **changes), {"raygpu.sweep": "s"})

    return make


def aliases(tree: RunTree) -> dict[str, int]:
    found = MlflowClient(tree.uri).get_registered_model("digits").aliases
    return {alias: int(version) for alias, version in found.items()}


def latest(tree: RunTree) -> int:
    return max(int(each.version) for each in MlflowClient(tree.uri).search_model_versions("name = 'digits'"))


def test_the_better_one_is_the_champion_and_a_worse_one_stays_out(tree: RunTree, register: Register) -> None:
    first = register(0.92)
    assert first.line == "registered: models:/digits/1, as @champion: accuracy 0.92, the first with a score"
    assert (aliases(tree), first.alias) == ({"champion": 1}, "champion")
    version = MlflowClient(tree.uri).get_model_version_by_alias("digits", "champion")
    tags = {"score": "0.92", "metric": "accuracy", "direction": "max", "validation": "digits", "sweep": "s"}
    assert {name: version.tags[f"raygpu.{name}"] for name in tags} == tags
    worse = register(0.88)
    assert worse == Registration("accuracy 0.88 does not beat the champion's 0.92 (models:/digits/1)")
    assert latest(tree) == 1, "latest is no worse"
    better = register(0.95)
    assert better.line == "registered: models:/digits/2, as @champion: accuracy 0.95 beats the 0.92 of models:/digits/1"
    assert aliases(tree) == {"champion": 2}
    with models.store_of(tree):
        assert mlflow.pyfunc.load_model("models:/digits@champion").predict(np.ones(2)).tolist() == [0, 0]
    again = register(0.95)
    line = "registered before: models:/digits/2, as @champion"
    assert again == Registration(line, better.registered, "champion"), "a resumed training"
    assert latest(tree) == 2
    tree.start_run("another", {}, {})
    equal = register(0.95)
    assert "as @challenger: accuracy 0.95 equals that of the champion models:/digits/2" in equal.line
    assert aliases(tree) == {"champion": 2, "challenger": 3}


def test_smaller_may_be_better(tree: RunTree, register: Register) -> None:
    register(0.5, metric="loss", maximize=False)
    assert register(0.6, metric="loss", maximize=False).registered is None
    assert register(0.4, metric="loss", maximize=False).alias == "champion"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"metric": "f1"}, "which is scored by accuracy (max)"),
        ({"maximize": False}, "which is scored by accuracy (max)"),
        ({"validation": "others"}, "which was scored on other validation data"),
    ],
)
def test_what_cannot_be_compared_is_a_challenger_and_says_so(
    tree: RunTree, register: Register, changes: dict[str, Any], why: str
) -> None:
    register(0.92)
    verdict = register(0.99, **changes)
    assert f"as @challenger: not compared with the champion models:/digits/1, {why}; latest is" in verdict.line
    assert aliases(tree) == {"champion": 1, "challenger": 2}
    assert register(0.93).alias == "champion", "the champion is what is compared with"


def test_a_champion_of_somebody_else_stays_champion(tree: RunTree, register: Register, model: str) -> None:
    with models.store_of(tree):
        theirs = mlflow.register_model(model, "digits")
    MlflowClient(tree.uri).set_registered_model_alias("digits", "champion", theirs.version)
    assert "which has no score of raygpu's" in register(0.99).line
    assert aliases(tree) == {"champion": 1, "challenger": 2}


def test_without_a_champion_the_best_version_is_to_be_beaten(tree: RunTree, register: Register, model: str) -> None:
    with models.store_of(tree):
        mlflow.register_model(model, "digits")
    for score in (0.90, 0.92, 0.95):
        register(score)
    assert aliases(tree) == {"champion": 4}
    MlflowClient(tree.uri).delete_model_version("digits", "4")
    assert aliases(tree) == {}
    assert "does not beat the best registered version's 0.92 (models:/digits/3)" in register(0.91).line
    assert register(0.93).alias == "champion"
    MlflowClient(tree.uri).delete_registered_model("digits")
    assert register(0.5).alias == "champion"


def test_a_champion_that_was_set_back_by_hand_is_compared_with(tree: RunTree, register: Register) -> None:
    register(0.90)
    register(0.95)
    MlflowClient(tree.uri).set_registered_model_alias("digits", "champion", "1")
    assert register(0.92).alias == "champion"
    assert aliases(tree) == {"champion": 3}


@pytest.mark.parametrize("other", [0.95, 0.91])
def test_of_two_at_once_the_better_one_is_the_champion(
    tree: RunTree, register: Register, monkeypatch: pytest.MonkeyPatch, other: float
) -> None:
    register(0.90)
    make = mlflow.register_model

    def meanwhile(*arguments: Any, **named: Any) -> Any:
        monkeypatch.setattr(mlflow, "register_model", make)
        made = make(*arguments, **named)
        register(other)  # somebody else compares, registers and sets the champion before we do
        return made

    monkeypatch.setattr(mlflow, "register_model", meanwhile)
    verdict = register(0.93)
    assert verdict.alias == ("challenger" if other > 0.93 else "champion")
    assert aliases(tree)["champion"] == (3 if other > 0.93 else 2)


def test_without_the_right_to_set_an_alias_the_version_is_told(
    tree: RunTree, register: Register, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*arguments: Any) -> None:
        raise PermissionError("not yours")

    monkeypatch.setattr(MlflowClient, "set_registered_model_alias", refused)
    verdict = register(0.9)
    assert verdict.registered is not None
    assert verdict.line.startswith("registered: models:/digits/1, without an alias: ")
    monkeypatch.undo()
    again = register(0.9)
    assert again.line == "registered: models:/digits/1, as @champion: accuracy 0.9, the first with a score", "resumed"
    assert (aliases(tree), latest(tree)) == ({"champion": 1}, 1)


def test_the_process_keeps_its_own_store(register: Register, monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow keeps its store in the environment, where the next training's configuration looks."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    register(0.9)
    assert "MLFLOW_TRACKING_URI" not in os.environ
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    register(0.95)
    assert os.environ["MLFLOW_TRACKING_URI"] == "http://127.0.0.1:1"
