"""The orders of a sweep, without Ray: in fused mode what becomes of arrays that fail, in process mode trials alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.tune.execution.tune_controller import _get_max_pending_trials

from raygpu.engines.tune.array_config import ArrayConfig
from raygpu.engines.tune.device_slots import DeviceSlots
from raygpu.engines.tune.live_sweep import LiveSweep
from raygpu.engines.tune.oom_retry import RetryShares
from raygpu.engines.tune.searcher import ArrayRequest, ArraySearcher
from raygpu.engines.tune.tuner import Generator
from raygpu.planning.gpu_shares import ArrayPlan, Choice, Node, Share, plan
from raygpu.records import slurm_job
from raygpu.records.trial_records import Records
from raygpu.search.generations import Generations
from raygpu.search.repeats import Repeats, Repetition
from raygpu.search.samplers import DrawnTrials, OptunaSampler
from raygpu.search.scoring import Scoring
from raygpu.search.signature import ITS_OWN, Group, Signature
from raygpu.search.space import parse
from raygpu.search.trials import EpochResult, Trial
from raygpu.training.fused.groups import TorchGrouper
from tests.fakes.sweep import sweep_context


class OneGroup(TorchGrouper):
    """All trials are of one signature."""

    def __init__(self) -> None:
        pass

    def groups(self, trials: Any) -> list[Group]:
        return [Group(Signature(()), list(trials))] if trials else []


def outcome(count: int, bad: set[str]) -> list[tuple[int, bool]]:
    """The orders of a sweep whose arrays fail if they have a bad member: how many trials, and whether fused."""
    trials = [Trial(Trial.name(i), i, {}) for i in range(count)]
    records = Records(count, Scoring("accuracy", True), [], 1)
    one_gpu = plan([Node(8, 1, 100)], {"": Choice(Share(), "")}, count)
    shares = RetryShares(one_gpu, lambda trial: Signature(()))
    live: Any = LiveSweep(sweep_context(records), shares, OneGroup(), None)
    searcher = ArraySearcher(DrawnTrials(trials), live, ArrayPlan(one_gpu, one_gpu), DeviceSlots(one_gpu), drawn=True)
    orders = []
    while isinstance(given := searcher.suggest(name := f"tune-{len(orders)}"), dict):
        names = given["trial_ids"]
        orders.append((len(names), given["fused"]))
        failed = given["fused"] and bad & set(names)
        for trial_id in names:
            if trial_id not in records.by_id:
                records.start(live.trials[trial_id])
            if not failed:
                records.end(trial_id, "finished")
        searcher.on_trial_complete(name, {"failure": "Traceback ...\nValueError: boom" if failed else None})
    assert given == searcher.FINISHED
    assert {record.status for record in records.by_id.values()} == {"finished"}
    return orders


def test_one_bad_trial_is_found_by_halves() -> None:
    orders = outcome(64, {"t0037"})
    assert [size for size, fused in orders if not fused] == [1, 1]
    assert len(orders) == 1 + 2 * 6


def test_a_fault_of_all_is_not_halved_to_the_end() -> None:
    orders = outcome(64, {Trial.name(i) for i in range(64)})
    assert len([size for size, fused in orders if fused]) <= 16
    assert sum(size for size, fused in orders if not fused) == 64


def test_a_failed_array_of_one_does_not_count_as_one_of_many() -> None:
    one_gpu = plan([Node(8, 1, 100)], {"": Choice(Share(), "")}, 9)
    shares = RetryShares(one_gpu, lambda trial: Signature(()))
    live = LiveSweep(sweep_context(Records(9, Scoring("accuracy", True), [], 1)), shares, OneGroup(), None)
    both = ArrayPlan(one_gpu, one_gpu)
    searcher = ArraySearcher(DrawnTrials([]), live, both, DeviceSlots(one_gpu), drawn=False)
    assert searcher._again(["t0000"], "ValueError: boom") == [ArrayRequest(("t0000",), fused=False)]
    names = [Trial.name(i) for i in range(1, 9)]
    assert [len(part.trial_ids) for part in searcher._again(names, "ValueError: boom")] == [4, 4]


def test_nothing_fails() -> None:
    assert outcome(5, set()) == [(5, True)]


class AllAlone(TorchGrouper):
    """No trial can be fused."""

    def __init__(self) -> None:
        pass

    def groups(self, trials: Any) -> list[Group]:
        return [Group(Signature(()), list(trials), reason="none can")] if trials else []


def test_trials_alone_come_in_the_order_of_the_search() -> None:
    trials = [Trial(Trial.name(i), i, {}) for i in (9999, 10000, 10001)]
    one_gpu = plan([Node(8, 1, 100)], {"": Choice(Share(), "")}, 3)
    shares = RetryShares(one_gpu, lambda trial: Signature(()))
    context = sweep_context(Records(3, Scoring("accuracy", True), [], 1))
    live = LiveSweep(context, shares, AllAlone(), None)
    searcher = ArraySearcher(DrawnTrials(trials), live, ArrayPlan(one_gpu, one_gpu), DeviceSlots(one_gpu), drawn=True)
    assert searcher.suggest("tune-0")["trial_ids"] == ["t9999"]
    assert [request.trial_ids for request in searcher.waiting] == [("t10000",), ("t10001",)]


class SomeAreLone(TorchGrouper):
    """The last trials have signatures of their own, whose kind has passed a dry run."""

    def __init__(self, number: int) -> None:
        self.number = number

    def groups(self, trials: Any) -> list[Group]:
        alike = Group(Signature((("hidden", "4"),)), list(trials[: -self.number]))
        lone = [Group(Signature((("hidden", trial.trial_id),)), [trial], ITS_OWN) for trial in trials[-self.number :]]
        return [alike, *lone] if alike.trials else lone

    def may_be_array(self, group: Group) -> bool:
        return group.reason == ITS_OWN


@pytest.mark.parametrize(
    ("lone", "gpus", "drawn", "arrays"),
    [
        (1, 1, False, [7, 1]),
        (1, 1, True, [8 - 1]),
        (2, 1, False, [6]),  # one after the other they would take longer than side by side
        (8, 8, False, []),
        (1, 4, False, [3, 2, 2, 1]),
    ],
)
def test_a_lone_trial_of_a_generation_has_the_share_of_an_array(
    lone: int, gpus: int, drawn: bool, arrays: list[int]
) -> None:
    count = 8
    trials = [Trial(Trial.name(i), i, {}) for i in range(count)]
    whole = plan([Node(8, gpus, 100)], {"": Choice(Share(), "")}, count)
    shares = RetryShares(whole, lambda trial: Signature(()))
    live = LiveSweep(sweep_context(Records(count, Scoring("accuracy", True), [], 1)), shares, SomeAreLone(lone), None)
    halves = plan([Node(8, gpus, 100)], {"": Choice(Share(2), "")}, count)
    searcher = ArraySearcher(DrawnTrials(trials), live, ArrayPlan(whole, halves), DeviceSlots(whole), drawn=drawn)
    first = searcher.suggest("tune-0")
    requests = [(len(first["trial_ids"]), first["fused"]), *((len(r.trial_ids), r.fused) for r in searcher.waiting)]
    assert sorted((size for size, fused in requests if fused), reverse=True) == arrays
    assert sum(size for size, _ in requests) == count


class Told:
    """A sampler that draws each trial by all results so far, and notes the scores that it is told."""

    draws_singly = True

    def __init__(self, num_trials: int = 3) -> None:
        self.num_trials = num_trials
        self.scores: dict[str, float | None] = {}
        self.num_drawn = 0

    @property
    def finished(self) -> bool:
        return self.num_drawn == self.num_trials

    def next(self) -> Trial | None:
        if self.finished:
            return None
        self.num_drawn += 1
        return Trial(Trial.name(self.num_drawn - 1), 0, {})

    def tell(self, name: str, score: float | None, further: Sequence[float | None] = ()) -> None:
        self.scores[name] = score


def test_process_mode_draws_a_trial_when_it_is_wanted_and_tells_its_score_and_not_the_last_epoch_s() -> None:
    records = Records(3, Scoring("accuracy", True, "best"), [], 2)
    one_gpu = plan([Node(8, 1, 100)], {"": Choice(Share(), "")}, 3)
    live = LiveSweep(sweep_context(records), RetryShares(one_gpu, lambda trial: Signature(())), None, None)
    sampler: Any = Told()
    searcher = ArraySearcher(sampler, live, one_gpu, DeviceSlots(one_gpu), drawn=False)
    for index, scores in enumerate([(0.9, 0.2), (0.3, 0.4), ()]):
        given = searcher.suggest(f"tune{index}")
        assert (sampler.num_drawn, given["trial_ids"], given["fused"]) == (index + 1, [Trial.name(index)], False)
        record = records.start(live.trials[Trial.name(index)])
        records.add(record.trial.trial_id, [EpochResult(i + 1, {"accuracy": s}) for i, s in enumerate(scores)], None)
        if scores:
            records.end(record.trial.trial_id, "finished")
        searcher.on_trial_complete(f"tune{index}", {"score": 0.2, "failure": None if scores else "Traceback"})
    assert sampler.scores == {"t0000": 0.9, "t0001": 0.4, "t0002": None}
    assert searcher.suggest("tune3") == searcher.FINISHED


def test_a_trial_that_is_drawn_by_all_results_so_far_is_drawn_once_a_place_is_free() -> None:
    records = Records(9, Scoring("accuracy", True), [], 1)
    thirds = plan([Node(8, 1, 100)], {"": Choice(Share(3), "")}, 9)
    live = LiveSweep(sweep_context(records), RetryShares(thirds, lambda trial: Signature(())), None, None)
    sampler: Any = Told(9)
    searcher = ArraySearcher(sampler, live, thirds, DeviceSlots(thirds), drawn=False)
    searcher.set_max_concurrency(6)  # one more for each place where trials do not depend on results
    given = [searcher.suggest(f"tune{index}") for index in range(4)]
    assert [each["trial_ids"] for each in given[:3]] == [["t0000"], ["t0001"], ["t0002"]]
    assert (given[3], sampler.num_drawn, searcher.waiting) == (None, 3, [])
    records.start(live.trials["t0001"])
    records.add("t0001", [EpochResult(1, {"accuracy": 0.5})], None)
    records.end("t0001", "finished")
    searcher.on_trial_complete("tune1", {"score": 0.5})
    assert searcher.suggest("tune4")["trial_ids"] == ["t0003"]
    assert (sampler.scores, searcher.suggest("tune5")) == ({"t0001": 0.5}, None)


def test_a_set_whose_first_training_is_stopped_gets_no_other_and_they_are_not_missing() -> None:
    scoring = Scoring("accuracy", True)
    records = Records(6, scoring, [], 2, repetition=Repetition(3))
    one_gpu = plan([Node(8, 1, 100)], {"": Choice(Share(), "")}, 6)
    live = LiveSweep(sweep_context(records), RetryShares(one_gpu, lambda trial: Signature(())), None, None)
    base = DrawnTrials([Trial(Trial.name(place), 0, {}) for place in range(2)])
    sampler = Repeats(base, Repetition(3), 0, maximize=True, screened=True)
    searcher = ArraySearcher(sampler, live, one_gpu, DeviceSlots(one_gpu), drawn=False)
    given: list[str] = []
    while (config := searcher.suggest(f"tune{len(given)}")) != searcher.FINISHED:
        (name,) = config["trial_ids"]
        assert [trial["repeat"] for trial in config["trials"]] == [int(name[-1]) - 1]
        records.start(live.trials[name])
        records.add(name, [EpochResult(1, {"accuracy": 0.5})], None)
        live.ending[name] = ("stopped" if name == "t0000-1" else "finished"), None
        searcher.on_trial_complete(f"tune{len(given)}", {"score": 0.5, "failure": None})
        records.end(name, live.ending.pop(name)[0])
        given.append(name)
    assert given == ["t0000-1", "t0001-1", "t0001-2", "t0001-3"]
    assert records.num_trials == 4
    assert not records.interrupt(lambda record: None)


def test_an_order_that_tune_gives_up_early_goes_on_from_its_checkpoint_as_often_as_workers_may_be_lost() -> None:
    """Tune hears twice of a worker that is lost while it takes a trial over, and gives the trial up."""
    records = Records(1, Scoring("accuracy", True), [], 2)
    one_gpu = plan([Node(8, 1, 100)], {"": Choice(Share(), "")}, 1)
    config = SimpleNamespace(cluster=SimpleNamespace(max_failures=2))
    live = LiveSweep(
        sweep_context(records, config=config), RetryShares(one_gpu, lambda trial: Signature(())), None, None
    )
    sampler: Any = DrawnTrials([Trial("t0000", 0, {})])
    searcher = ArraySearcher(sampler, live, one_gpu, DeviceSlots(one_gpu), drawn=False)
    for attempt, checkpoint in enumerate([None, "/c1", "/c2"]):
        given = searcher.suggest(f"tune{attempt}")
        assert (given["trial_ids"], given["checkpoint"]) == (["t0000"], checkpoint)
        live.checkpoints.arrays["t0000"] = f"/c{attempt + 1}"
        searcher.on_trial_complete(f"tune{attempt}", error=True)
    assert live.given_again == {"tune0", "tune1"}
    assert searcher.failed == ["t0000"]
    assert searcher.suggest("tune3") == searcher.FINISHED


class Resumed:
    """A sweep of one trial alone, whose searcher is saved and restored."""

    def __init__(self, max_failures: int = 2) -> None:
        self.records = Records(1, Scoring("accuracy", True), [], 1)
        one_gpu = plan([Node(8, 1, 100)], {"": Choice(Share(), "")}, 1)
        config = SimpleNamespace(cluster=SimpleNamespace(max_failures=max_failures))
        sampler: Any = DrawnTrials([Trial("t0000", 0, {})])
        shares = RetryShares(one_gpu, lambda trial: Signature(()))
        self.live = LiveSweep(sweep_context(self.records, config=config, sampler=sampler), shares, None, None)
        self.searcher = ArraySearcher(sampler, self.live, one_gpu, DeviceSlots(one_gpu), drawn=False)

    def again(self, path: Path, *, retry_failed: bool = False) -> Resumed:
        """The sweep that goes on from this one's state."""
        self.searcher.save(str(path / "state"))
        resumed = Resumed()
        resumed.live.retry_failed = retry_failed
        resumed.searcher.restore(str(path / "state"))
        return resumed


def test_what_the_search_alone_has_under_way_is_given_again(tmp_path: Path) -> None:
    begun = Resumed()
    given = ArrayConfig.of(begun.searcher.suggest("tune0"))
    other = replace(given, trial_ids=("t0001",))
    resumed = begun.again(tmp_path)
    assert resumed.searcher.suggest("tune1") is None, "it is under way, as the search knows"
    assert resumed.live.take_back is not None
    resumed.live.take_back({"tune0": given, "other": other})
    assert resumed.searcher.suggest("tune1") is None
    resumed.live.take_back({"other": other})
    assert resumed.searcher.suggest("tune1")["trial_ids"] == ["t0000"]


@pytest.mark.parametrize("is_given_again", [True, False])
def test_what_tune_has_under_way_is_not_requested_a_second_time(tmp_path: Path, *, is_given_again: bool) -> None:
    """Tune's state is older than the search's, which has heard that the trial's worker was lost."""
    begun = Resumed()
    given = ArrayConfig.of(begun.searcher.suggest("tune0"))
    begun.searcher.on_trial_complete("tune0", error=True)
    if is_given_again:
        begun.searcher.suggest("tune1")
    resumed = begun.again(tmp_path)
    assert resumed.live.take_back is not None
    resumed.live.take_back({"tune0": given})
    assert (resumed.searcher.waiting, resumed.searcher.device_slots.state().keys()) == ([], {"tune0"})
    assert resumed.searcher.suggest("tune2") is None, "it waits for the result"
    resumed.searcher.on_trial_complete("tune0", error=True)
    assert resumed.searcher.suggest("tune2")["trial_ids"] == ["t0000"]


def test_a_request_for_more_than_tune_has_under_way_stays(tmp_path: Path) -> None:
    """As one for the failed trials of several arrays."""
    begun = Resumed()
    given = ArrayConfig.of(begun.searcher.suggest("tune0"))
    begun.searcher.on_trial_complete("tune0", error=True)
    wider = ArrayRequest(("t0000", "t0001"), fused=True)
    begun.searcher.waiting = [wider]
    begun.searcher.take_back({"tune0": given})
    assert (begun.searcher.waiting, begun.searcher.given) == ([wider], {})


def test_what_the_search_alone_calls_ended_is_taken_once(tmp_path: Path) -> None:
    begun = Resumed()
    begun.searcher.suggest("tune0")
    begun.records.start(begun.live.trials["t0000"])
    begun.records.end("t0000", "finished")
    begun.searcher.on_trial_complete("tune0", {})
    resumed = begun.again(tmp_path)
    resumed.searcher.on_trial_complete("tune0", {})
    assert resumed.searcher.suggest("tune1") == resumed.searcher.FINISHED


def test_a_trial_whose_worker_an_interrupt_has_ended_goes_on_when_the_sweep_is_resumed(tmp_path: Path) -> None:
    begun = Resumed(max_failures=0)
    begun.searcher.suggest("tune0")
    begun.live.checkpoints.arrays["t0000"] = "/c1"
    begun.live.interrupts.note()
    begun.searcher.on_trial_complete("tune0", error=True)
    resumed = begun.again(tmp_path)
    assert resumed.searcher.failed == []
    given = resumed.searcher.suggest("tune1")
    assert (given["trial_ids"], given["checkpoint"]) == (["t0000"], "/c1")


def test_an_array_whose_worker_an_interrupt_has_ended_goes_on_from_its_checkpoint() -> None:
    begun = Resumed(max_failures=0)
    begun.searcher.suggest("tune0")
    begun.searcher.given["tune0"] = ArrayRequest(("t0000", "t0001"), fused=True)
    begun.live.checkpoints.arrays["t0000"] = "/c1"
    begun.live.interrupts.note()
    begun.searcher.on_trial_complete("tune0", error=True)
    assert begun.searcher.waiting == [ArrayRequest(("t0000", "t0001"), fused=True, checkpoint="/c1")]


def test_a_slurm_job_tries_failed_trials_again_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first start is lost before its state is saved."""
    monkeypatch.setenv(slurm_job.VARIABLE, str(Path()))
    sweep = Resumed()
    given = []
    for number, is_saved in (("7", True), ("7", False), ("7", True), ("7", True), ("8", True)):
        monkeypatch.setenv("SLURM_JOB_ID", number)
        start = sweep.again(tmp_path, retry_failed=True) if given else sweep
        request = start.searcher.suggest("tune0")
        given.append(request != start.searcher.FINISHED)
        if given[-1]:
            start.searcher.on_trial_complete("tune0", {"failure": "Traceback"})
        sweep = start if is_saved else sweep
    assert given == [True, True, True, False, True]


def test_a_search_learns_the_mean_of_a_set_whose_failed_trainings_are_given_again(tmp_path: Path) -> None:
    def sweep_of_a_set(*, retry_failed: bool) -> ArraySearcher:
        records = Records(6, Scoring("accuracy", True), [], 1, repetition=Repetition(3))
        one_gpu = plan([Node(8, 1, 100)], {"": Choice(Share(), "")}, 6)
        base = OptunaSampler(parse({"x": {"uniform": [0, 1]}}), Generations.equal(2, 1), 0, maximize=[True])
        sampler = Repeats(base, Repetition(3), 0, maximize=True)
        config = SimpleNamespace(cluster=SimpleNamespace(max_failures=0))
        context = sweep_context(records, config=config, sampler=sampler, retry_failed=retry_failed)
        live = LiveSweep(context, RetryShares(one_gpu, lambda trial: Signature(())), None, None)
        return ArraySearcher(sampler, live, one_gpu, DeviceSlots(one_gpu), drawn=False)

    def trained(searcher: ArraySearcher, scores: Sequence[float | None]) -> None:
        for place, score in enumerate(scores):
            (name,) = searcher.suggest(f"tune{place}")["trial_ids"]
            searcher.live.records.start(searcher.live.trials[name])
            if score is not None:
                searcher.live.records.add(name, [EpochResult(1, {"accuracy": score})], None)
                searcher.live.records.end(name, "finished")
            searcher.on_trial_complete(f"tune{place}", {"failure": None if score is not None else "Traceback"})

    begun = sweep_of_a_set(retry_failed=False)
    trained(begun, [None, None, None, 0.1, 0.1, 0.1])
    begun.save(str(tmp_path / "state"))
    resumed = sweep_of_a_set(retry_failed=True)
    resumed.restore(str(tmp_path / "state"))
    trained(resumed, [0.9, 0.3, 0.3])
    assert isinstance(resumed.sampler, Repeats)
    told = [trial.values for trial in resumed.sampler.base._study.trials if trial.values]
    assert told == [[pytest.approx(0.5)]]


def test_no_more_than_the_wanted_number_is_under_way() -> None:
    sweep = Resumed()
    sweep.searcher.max_concurrent = 0
    assert sweep.searcher.suggest("tune0") is None
    assert _get_max_pending_trials(Generator(sweep.searcher, 6)) == 6, "Tune stages as many at once"
    assert sweep.searcher.max_concurrent == 6
    sweep.searcher.set_max_concurrency(1)
    assert sweep.searcher.suggest("tune0")["trial_ids"] == ["t0000"]
