"""What becomes of results: records, MLflow runs and checkpoints, without Ray."""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mlflow.tracking import MlflowClient
from ray.exceptions import ActorDiedError, RayTaskError

from raygpu import sweep
from raygpu.cli.sweep_view import SweepConsole
from raygpu.config.population_section import PopulationSection
from raygpu.engines.tune.array_config import ArrayConfig
from raygpu.engines.tune.callback import ArrayCallback, ResourceUpdate
from raygpu.engines.tune.live_sweep import LiveSweep
from raygpu.engines.tune.member_report import Beginning, MemberReport
from raygpu.engines.tune.population_actor import PopulationActor
from raygpu.planning.gpu_shares import Share
from raygpu.records import timeline
from raygpu.records.device import Device
from raygpu.records.run_directory import RunDirectory
from raygpu.records.timeline import Timeline
from raygpu.records.trial_records import Records
from raygpu.search.population import MemberScores, Population, Reached
from raygpu.search.scoring import Scoring, TrialScores
from raygpu.search.trial_record import TrialRecord
from raygpu.search.trials import EpochResult, Trial
from raygpu.storage import Storage
from tests.fakes.sweep import sweep_context


def test_hours_of_a_lost_array_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("raygpu.records.gpu_use.time", SimpleNamespace(monotonic=lambda: now[0]))
    records = Records(2, Scoring("accuracy", True), [Device(0, "node", "0", "T4", rgu=2.0)], epochs=4)
    live: Any = SimpleNamespace(
        records=records, timeline=Timeline(None), ending={}, enlarged={}, count_loss=lambda name: None
    )
    config = ArrayConfig("a0000", ("t0000", "t0001"), fused=True, device="T4", share=Share(2))
    array: Any = SimpleNamespace(trial_id="a", config=config.as_dict())
    records.hold("a")
    for index in range(2):
        records.start(Trial(Trial.name(index), index, {}))
        records.add(Trial.name(index), [EpochResult(1, {"accuracy": 0.5})], 0)
    now[0] = 3600.0  # nothing is told any more: the worker is lost
    ArrayCallback(live).on_trial_recover(0, [], array)
    assert records.retries == 1
    assert records.rgu_hours() == pytest.approx(1.0), "half a GPU of 2 RGU, for an hour"


class Runs:
    """A writer that notes how runs ended."""

    def __init__(self) -> None:
        self.ended: list[tuple[str, str, str | None]] = []

    def begin(self, trial: Trial) -> None: ...

    def epochs(self, trial_id: str, results: list[EpochResult]) -> None: ...

    def end(self, record: TrialRecord) -> None:
        self.ended.append((record.trial.trial_id, record.status, record.error))


class Alone:
    """A sweep of one trial alone whose result says that it has finished."""

    def __init__(self, tmp_path: Path) -> None:
        self.records, self.runs = Records(1, Scoring("accuracy", True), [], epochs=1), Runs()
        cluster = SimpleNamespace(device_index=lambda node_id, gpu_ids: None)
        context = sweep_context(
            self.records,
            config=SimpleNamespace(fail_fast=True),
            writer=self.runs,
            cluster=cluster,
            folder=SimpleNamespace(path=Path(), tune=Storage(str(tmp_path))),
        )
        shares: Any = None
        self.live = LiveSweep(context, shares, None, None)
        self.live.trials["t0000"] = Trial("t0000", 0, {})
        self.callback = ArrayCallback(self.live)
        report = MemberReport("t0000", [EpochResult(1, {"accuracy": 0.5})])
        report.end(None)
        self.result: dict[str, Any] = {
            "members": [report], "lines": [], "warnings": [], "seconds": {}, "pid": 1, "node_id": "", "gpu_ids": [],
            "failure": None, "not_as_alone": None, "out_of_memory": False, "unknown_metric": None, "kept": ["t0000"],
            "under_way": [], "lost_actor": None,
        }  # fmt: skip
        config = ArrayConfig("t0000", ("t0000",), fused=False, device="", share=Share()).as_dict()
        self.trial: Any = SimpleNamespace(
            trial_id="tune0", config=config, last_result=self.result, get_error=lambda: "the upload failed"
        )
        self.told = dict(self.result)
        self.callback.on_trial_start(0, [], self.trial)
        self.callback.on_trial_result(0, [], self.trial, self.result)


def test_a_trial_alone_has_ended_once_its_last_checkpoint_is_saved(tmp_path: Path) -> None:
    alone = Alone(tmp_path)
    assert (alone.runs.ended, alone.records.by_id["t0000"].status) == ([], "running")
    checkpoint: Any = SimpleNamespace(path=str(tmp_path / "checkpoint_0"))
    alone.callback.on_checkpoint(0, [], alone.trial, checkpoint)
    alone.callback.on_trial_complete(0, [], alone.trial)
    assert alone.runs.ended == [("t0000", "finished", None)]
    assert alone.live.checkpoints.own == {"t0000": str(tmp_path / "checkpoint_0" / "members" / "t0000")}


def test_a_trial_alone_whose_last_checkpoint_cannot_be_saved_has_failed(tmp_path: Path) -> None:
    alone = Alone(tmp_path)
    alone.callback.on_trial_error(0, [], alone.trial)
    assert alone.runs.ended == [("t0000", "failed", "the upload failed")]


def test_paths_of_a_deleted_checkpoint_are_forgotten(tmp_path: Path) -> None:
    """A function's later epoch is better, and was not saved: its older best epoch is deleted with its checkpoint."""
    alone = Alone(tmp_path)
    for number, kept in enumerate((["t0000"], [])):
        alone.trial.last_result = alone.result | {"kept": kept, "under_way": ["t0000"]}
        checkpoint: Any = SimpleNamespace(path=str(tmp_path / f"checkpoint_{number}"))
        alone.callback.on_checkpoint(0, [], alone.trial, checkpoint)
    assert alone.live.checkpoints.own == {}
    assert alone.live.checkpoints.arrays == {"t0000": str(tmp_path / "checkpoint_1")}


def test_a_trial_that_runs_again_after_its_out_of_memory_was_lost_has_an_end(tmp_path: Path) -> None:
    """Its worker is lost between the report and its last checkpoint, so that Tune starts it again as it was."""
    alone = Alone(tmp_path)
    alone.live.ending.clear()
    alone.live.enlarged["t0000"] = "", Share(), None
    alone.callback.on_trial_recover(0, [], alone.trial)
    alone.callback.on_trial_result(0, [], alone.trial, alone.told)
    alone.callback.on_trial_complete(0, [], alone.trial)
    assert alone.runs.ended == [("t0000", "finished", None)]


@pytest.mark.timeout(300)
def test_a_trial_that_begins_again_is_judged_by_its_last_attempt_alone(sweep_config: Any, tmp_path: Path) -> None:
    space = {"x": 1, "folder": str(tmp_path), "pause_s": 0.6}
    config = sweep_config(experiment="tests.cases:another_attempt", trials=1, space=space)
    result = sweep.run(config, console=SweepConsole(stream=io.StringIO()))
    (best,) = result.best
    assert (best.score, best.epochs, best.best_epoch) == (0.03, 3, 3)
    assert result.folder is not None
    curve = timeline.read(RunDirectory(result.folder).timeline).curves["t0000"]
    assert {epoch: metrics["score"] for epoch, metrics in curve.items()} == {1: 0.01, 2: 0.02, 3: 0.03}
    client = MlflowClient(config.tracking.uri)
    parent = client.get_run(result.summary["tracking"]["run_id"])
    query = f"tags.`mlflow.parentRunId` = '{parent.info.run_id}'"
    (child,) = client.search_runs([parent.info.experiment_id], query)
    history = client.get_metric_history(child.info.run_id, "score")
    assert {point.step: point.value for point in history} == {1: 0.01, 2: 0.02, 3: 0.03}


def test_a_run_that_is_begun_again_keeps_the_shares_that_were_too_small_and_no_checkpoint(tmp_path: Path) -> None:
    alone, tags = Alone(tmp_path), dict[str, Any]()
    alone.live.shares = SimpleNamespace(too_small=lambda name: [("L4", Share(4)), ("L4", Share(2))])  # type: ignore[assignment]
    alone.runs.restart = lambda trial: tags.clear()  # type: ignore[attr-defined]
    alone.runs.tag = lambda name, values: tags.update(values)  # type: ignore[attr-defined]
    checkpoints = alone.live.checkpoints
    checkpoints.own, checkpoints.arrays = (
        {"t0000": "of the attempt before"},
        {"t0000": "its checkpoint"},
    )
    report = MemberReport("t0000", beginning=Beginning(0, TrialScores()))
    alone.callback.on_trial_result(0, [], alone.trial, alone.told | {"members": [report]})
    assert (checkpoints.own, checkpoints.arrays) == ({}, {}), "nothing goes on from there again"
    assert tags == {"raygpu.out_of_memory": "1/4, 1/2"}
    assert alone.records.by_id["t0000"].epochs == 0


def test_a_failed_trial_that_runs_again_is_forgotten_by_the_rule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone, forgotten = Alone(tmp_path), list[str]()
    alone.runs.restart = lambda trial: None  # type: ignore[attr-defined]
    rule: Any = SimpleNamespace(forget=SimpleNamespace(remote=forgotten.extend))
    monkeypatch.setattr("raygpu.engines.tune.callback.ray.get", lambda found: found)
    alone.live.rule = rule
    alone.callback.on_trial_start(0, [], alone.trial)
    assert not forgotten, "it goes on after a lost worker"
    alone.live.records.end("t0000", "failed", error="ValueError: a fault of the code")
    alone.callback.on_trial_start(0, [], alone.trial)
    assert forgotten == ["t0000"]


@pytest.mark.parametrize(("is_resumed", "known"), [(False, False), (True, False), (True, True)])
def test_a_trial_that_may_have_begun_with_other_values_gets_a_new_run(
    tmp_path: Path, *, is_resumed: bool, known: bool
) -> None:
    """A trial that a search draws by all results so far may be another one after its command was killed."""
    alone, begun = Alone(tmp_path), list[str]()
    alone.runs.begin = lambda trial: begun.append("begin")  # type: ignore[method-assign]
    alone.runs.restart = lambda trial: begun.append("restart")  # type: ignore[attr-defined]
    if is_resumed:
        alone.live.take_back = lambda under_way: None
    if not known:
        del alone.records.by_id["t0000"]
    alone.callback.on_trial_start(0, [], alone.trial)
    assert begun == ["restart" if is_resumed and not known else "begin"]


@pytest.mark.parametrize(
    "error", [ActorDiedError(), RayTaskError("forget", "", KeyError("t0000")).as_instanceof_cause()]
)
def test_a_lost_rule_is_passed_over_and_a_fault_of_its_code_is_not(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def get(_: object) -> None:
        raise error

    alone = Alone(tmp_path)
    monkeypatch.setattr("raygpu.engines.tune.callback.ray.get", get)
    nothing = SimpleNamespace(remote=lambda *_: None)
    alone.live.rule = SimpleNamespace(forget=nothing, state=nothing)
    is_lost = isinstance(error, ActorDiedError)
    for ask in (lambda: alone.callback.members.forget(["t0000"]), alone.callback.get_state):
        with nullcontext() if is_lost else pytest.raises(KeyError):
            ask()


def test_an_array_s_error_in_another_encoding_is_told_and_one_without_words_too(tmp_path: Path) -> None:
    alone, told = Alone(tmp_path), list[str]()
    alone.live.warn = lambda line: told.append(line.encode().decode())
    config = ArrayConfig("a0000", ("t0000",), fused=True, device="", share=Share())
    for error in ("Traceback\nValueError: bild-\udcfc.png", ""):
        alone.callback.members.fail(config, error)
    assert told == [
        "array a0000 failed (ValueError: bild-\\udcfc.png); its 1 trials go on in smaller parts",
        "array a0000 failed (); its 1 trials go on in smaller parts",
    ]


def test_at_the_first_step_of_a_resume_the_search_hears_what_tune_has_under_way(tmp_path: Path) -> None:
    alone, taken = Alone(tmp_path), list[Mapping[str, ArrayConfig]]()
    alone.live.take_back, alone.live.resources = taken.append, lambda config: None  # type: ignore[assignment, return-value]
    trials = [
        SimpleNamespace(trial_id=name, status=status, is_finished=lambda status=status: status == "TERMINATED",
                        config=alone.trial.config, placement_group_factory=None)
        for name, status in (("tune0", "TERMINATED"), ("tune1", "PENDING"))
    ]  # fmt: skip
    update = ResourceUpdate(alone.live)
    update.on_step_begin(0, trials)
    update.on_step_begin(1, trials)
    assert taken == [{"tune1": ArrayConfig.of(alone.trial.config)}]


def test_a_sweep_goes_on_once_its_state_is_restored_and_not_if_that_fails(tmp_path: Path) -> None:
    alone = Alone(tmp_path)
    folder = alone.live.run_directory = RunDirectory(tmp_path)
    folder.write_summary({"num_trials": 1})
    with pytest.raises(KeyError):
        alone.callback.set_state({})
    assert folder.read_summary() == {"num_trials": 1}
    alone.callback.on_step_begin(0, [])
    earlier = folder.read_last_summary()
    assert folder.read_summary() is None
    alone.callback.on_step_begin(1, [])
    assert folder.read_last_summary() == earlier


def test_a_score_that_is_bounded_is_told_once(tmp_path: Path) -> None:
    alone, warned = Alone(tmp_path), list[str]()
    alone.live.warn = warned.append
    epochs = [EpochResult(epoch, {"accuracy": -sys.float_info.max}) for epoch in (2, 3)]
    for _ in range(2):
        alone.callback.on_trial_result(0, [], alone.trial, alone.told | {"members": [MemberReport("t0000", epochs)]})
    assert warned == ["t0000: accuracy: read -1.79769e+308; as a score it counts as -1e+300"]
    assert alone.records.by_id["t0000"].score == -1e300


class Grown:
    """The population of a sweep, whose trials have got to epoch 2 one by one, in place of its actor."""

    def __init__(self, count: int) -> None:
        groups = {f"t{i:04d}": "" for i in range(count)}
        section = PopulationSection(interval=2)
        population = Population(section, [], groups, epochs=9, seed=0, maximize=True)
        self.actor = PopulationActor(population)

    def __getattr__(self, method: str) -> Any:
        return SimpleNamespace(remote=getattr(self.actor, method))

    def waits(self, name: str) -> bool:
        """Whether a trial at epoch 2 waits for others."""
        return self.actor.exchange(2, [MemberScores(name, {2: Reached(0.5, {})}, {})], [], 1.0) is None


def test_a_population_does_not_wait_for_a_trial_that_is_given_again_with_a_larger_share(tmp_path: Path) -> None:
    """It asks for more of a GPU, which the others give back only once they have ended."""
    alone, population = Alone(tmp_path), Grown(3)
    alone.live.population = population
    alone.live.enlarge = lambda config: alone.live.enlarged.update(t0000=("", Share(), None))  # type: ignore[method-assign]
    assert population.waits("t0001")
    alone.callback.on_trial_result(0, [], alone.trial, alone.told | {"members": [], "out_of_memory": True})
    assert not population.waits("t0001")
    assert not population.waits("t0002")


def test_a_population_whose_array_is_trained_alone_does_not_wait_for_those_without_a_slot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone, population = Alone(tmp_path), Grown(3)
    names = ("t0000", "t0001", "t0002")
    alone.live.population, alone.live.trials = population, {name: Trial(name, 0, {}) for name in names}
    grouper: Any = SimpleNamespace(refuse=lambda trial, reason: None)
    alone.live.grouper = grouper
    monkeypatch.setattr("raygpu.engines.tune.callback.ray.get", lambda found: found)
    config = ArrayConfig("a0000", names, fused=True, device="", share=Share())
    alone.callback.members.train_alone(config, "its loss differs from that of its training alone")
    assert not population.waits("t0000"), "two slots, for three trials"
    assert not population.waits("t0001")
