"""One stopping rule in every mode: as Tune asks it, and as arrays ask it."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import pytest
from ray.tune.schedulers import TrialScheduler

from raygpu.config import SweepConfig
from raygpu.engines.tune.stopping import RuleActor, RuleScheduler
from raygpu.engines.tune.trial_callback import TrialCallback
from raygpu.search.stopping import Rule, decision_epochs, expected_epochs, stopping_rule

STOP, CONTINUE = TrialScheduler.STOP, TrialScheduler.CONTINUE


def config(**stopping: Any) -> SweepConfig:
    values = {"experiment": "a:B", "metric": "accuracy", "trials": 4, "epochs": 9, "stopping": stopping}
    return SweepConfig.model_validate(values)


def rule(**stopping: Any) -> Rule:
    found = stopping_rule(config(**stopping))
    assert found is not None
    return found


def trial(name: str) -> Any:
    return SimpleNamespace(trial_id=f"tune-{name}", config={"trial_id": name})


def result(epoch: int, score: float, unknown_metric: str | None = None) -> dict[str, Any]:
    return {"epoch": epoch, "score": score, "unknown_metric": unknown_metric}


HALVING = {"algorithm": "halving", "grace_epochs": 1, "reduction": 3}
MEDIAN = {"algorithm": "median", "grace_epochs": 1, "min_trials": 1}


@pytest.mark.parametrize("stopping", [HALVING, MEDIAN], ids=["halving", "median"])
def test_tune_and_arrays_get_the_same_answers(stopping: dict[str, Any]) -> None:
    scores = {"t0": 0.9, "t1": 0.8, "t2": 0.7, "t3": 0.95}
    scheduler, actor = RuleScheduler(rule(**stopping)), RuleActor(rule(**stopping))
    by_tune = {
        name for name, score in scores.items() if scheduler.on_trial_result(None, trial(name), result(1, score)) == STOP
    }
    assert by_tune == set(actor.decide(1, list(scores.items())))
    assert by_tune == {"t1", "t2"}


def test_a_trial_that_has_ended_is_not_compared() -> None:
    """As in an array: Tune reports a last result, a diverged trial's too, as a trial's completion."""
    scheduler = RuleScheduler(rule(**HALVING))
    for name in ("t0", "t1", "t2"):
        scheduler.on_trial_complete(None, trial(name), result(1, -1e30))
    assert scheduler.on_trial_result(None, trial("t3"), result(1, 0.5)) == CONTINUE
    assert scheduler.on_trial_result(None, trial("t4"), result(1, 0.4)) == STOP, "below the only one that goes on"


def test_a_report_without_the_metric_is_not_compared() -> None:
    scheduler = RuleScheduler(rule(**HALVING))
    assert scheduler.on_trial_result(None, trial("t0"), result(1, 0.0, "no metric")) == CONTINUE
    assert scheduler.on_trial_result(None, trial("t1"), result(1, -5.0)) == CONTINUE


@pytest.mark.parametrize("stopping", [HALVING, MEDIAN], ids=["halving", "median"])
def test_a_resumed_sweep_knows_the_scores_that_were_compared(stopping: dict[str, Any]) -> None:
    live: Any = SimpleNamespace(records=SimpleNamespace(state=dict, restore=lambda state: None), checkpoints={})
    scheduler = RuleScheduler(rule(**stopping))
    for name in ("t0", "t1", "t2"):
        scheduler.on_trial_result(None, trial(name), result(1, 0.9))
    state = pickle.loads(pickle.dumps(TrialCallback(live, scheduler, "rule").get_state()))
    resumed = RuleScheduler(rule(**stopping))
    TrialCallback(live, resumed, "rule").set_state(state)
    assert resumed.on_trial_result(None, trial("t3"), result(1, 0.5)) == STOP


def test_epochs_of_a_rule() -> None:
    assert decision_epochs(config(**HALVING)) == {1, 3}
    assert decision_epochs(config(**MEDIAN)) is None
    assert decision_epochs(config()) == frozenset()
    assert expected_epochs(config()) == 9
    assert expected_epochs(config(**HALVING)) == pytest.approx(1 + 2 / 3 + 6 / 9)
    assert stopping_rule(config()) is None
