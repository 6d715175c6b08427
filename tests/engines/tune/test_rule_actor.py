"""One stopping rule in every mode, asked by the workers through an actor."""

from __future__ import annotations

import io
import pickle
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import ray

from raygpu import sweep
from raygpu.cli.sweep_view import SweepConsole
from raygpu.config import SweepConfig
from raygpu.engines.cluster.node_actors import start_actor
from raygpu.engines.tune.callback import ArrayCallback
from raygpu.engines.tune.live_sweep import LiveSweep
from raygpu.engines.tune.rule_actor import RuleActor
from raygpu.records.run_directory import RunDirectory
from raygpu.records.trial_records import Records
from raygpu.search.scoring import Scoring
from raygpu.search.stopping import Rule, decision_epochs, expected_epochs, stopping_rule
from tests.fakes.sweep import sweep_context


def config(**stopping: Any) -> SweepConfig:
    values = {"experiment": "a:B", "metric": "accuracy", "trials": 4, "epochs": 9, "stopping": stopping}
    return SweepConfig.model_validate(values)


def rule(**stopping: Any) -> Rule:
    found = stopping_rule(config(**stopping))
    assert found is not None
    return found


HALVING = {"algorithm": "halving", "grace_epochs": 1, "reduction": 3}
MEDIAN = {"algorithm": "median", "grace_epochs": 1, "min_trials": 1}


SCORES = {"t0": 0.9, "t1": 0.8, "t2": 0.7, "t3": 0.95}


@pytest.mark.parametrize("stopping", [HALVING, MEDIAN], ids=["halving", "median"])
def test_trials_alone_and_arrays_get_the_same_answers(stopping: dict[str, Any]) -> None:
    alone, array = RuleActor(rule(**stopping)), RuleActor(rule(**stopping))
    assert {name for name, score in SCORES.items() if alone.decide(1, [(name, score)])} == {"t1", "t2"}
    assert set(array.decide(1, list(SCORES.items()))) == {"t1", "t2"}


def test_a_resumed_sweep_knows_the_scores_that_were_compared(ray_address: str, tmp_path: Path) -> None:
    shares: Any = None
    with ray.init(ray_address, log_to_driver=False):
        for stopping in (HALVING, MEDIAN):
            records = Records(4, Scoring("accuracy", True), [], 9)
            context = sweep_context(records, folder=RunDirectory(tmp_path))
            asked = start_actor(RuleActor, rule(**stopping))
            ray.get(asked.decide.remote(1, [(name, 0.9) for name in ("t0", "t1", "t2")]))
            state = pickle.loads(pickle.dumps(ArrayCallback(LiveSweep(context, shares, None, asked)).get_state()))
            resumed = start_actor(RuleActor, rule(**stopping))
            ArrayCallback(LiveSweep(context, shares, None, resumed)).set_state(state)
            assert ray.get(resumed.decide.remote(1, [("t3", 0.5)])) == {"t3": None}, stopping["algorithm"]


def test_epochs_of_a_rule() -> None:
    assert decision_epochs(config(**HALVING)) == {1, 3}
    assert decision_epochs(config(**MEDIAN)) is None
    assert decision_epochs(config()) == frozenset()
    assert expected_epochs(config()) == 9
    assert expected_epochs(config(**HALVING)) == pytest.approx(1 + 2 / 3 + 6 / 9)
    assert stopping_rule(config()) is None


@pytest.mark.timeout(300)
def test_a_lost_actor_pauses_the_sweep_and_fails_no_trial(sweep_config: Any, tmp_path: Path) -> None:
    space = {"x": {"grid_search": [1, 2, 3]}, "pause_s": 0.3}
    more = {"stopping": {"algorithm": "median", "grace_epochs": 1}, "search": {"algorithm": "grid"}, "trials": None}
    config = sweep_config(experiment="tests.cases:ramp", epochs=8, space=space, tracking={"enabled": False}, **more)

    def lose() -> None:
        """Kill the actor once a trial has reported."""
        while LiveSweep.current is None or not LiveSweep.current.records.any_scored():
            time.sleep(0.05)
        ray.kill(LiveSweep.current.rule)

    LiveSweep.current, shown = None, io.StringIO()
    thread = threading.Thread(target=lose, daemon=True)
    thread.start()
    stopped = sweep.run(config, console=SweepConsole(stream=shown))
    assert stopped.interrupted
    assert stopped.summary["failed"] == 0
    assert "the actor of the stopping rule was lost; go on with: " in shown.getvalue()
    assert stopped.folder is not None
    folder = RunDirectory.existing(stopped.folder)
    resumed = sweep.run(folder.read_config(), resume=folder, console=SweepConsole(stream=io.StringIO()))
    assert (resumed.summary["failed"], len(resumed.best)) == (0, 3)
