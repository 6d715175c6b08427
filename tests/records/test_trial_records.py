from __future__ import annotations

import math
import time
from typing import Any

import pytest

from raygpu.records.device import Device
from raygpu.records.trial_records import Records
from raygpu.search.scoring import BestEpoch, Scoring, TrialScores
from raygpu.search.trial_record import TrialRecord
from raygpu.search.trials import EpochResult, Trial

DEVICES = [Device(0, "node", "0", "T4"), Device(1, "node", "1", "T4")]


def records(num_trials: int = 3, maximize: bool = True) -> Records:
    return Records(num_trials, Scoring("accuracy", maximize), DEVICES, epochs=4)


def trial(index: int) -> Trial:
    return Trial(Trial.name(index), index, {"lr": 0.1})


def result(epoch: int, accuracy: float, num_samples: int = 100, train_s: float = 0.5) -> EpochResult:
    return EpochResult(epoch, {"validation/accuracy": accuracy}, num_samples, train_s)


def test_epochs_that_a_retried_trial_repeats_count_once() -> None:
    kept = records()
    kept.start(trial(0))
    assert len(kept.add("t0000", [result(1, 0.1), result(2, 0.2)], 0)) == 2
    kept.start(trial(0))
    assert [r.epoch for r in kept.add("t0000", [result(2, 0.2), result(3, 0.3)], 0)] == [3]
    record = kept.by_id["t0000"]
    assert (record.epochs, record.score, record.samples_seen) == (3, 0.3, 300)


def test_another_attempt_counts_alone_from_where_it_goes_on() -> None:
    for start in (0, 2):
        kept = Records(1, Scoring("accuracy", True, further=(("latency_ms", False),)), DEVICES, epochs=9)
        kept.start(trial(0))
        scores = TrialScores()
        for epoch in range(1, 5):
            told = EpochResult(epoch, {"accuracy": epoch / 10, "latency_ms": 1.0}, num_samples=100, train_s=0.5)
            kept.add("t0000", [told], 0)
            if epoch <= start:
                scores.take(kept.scoring, told)
        assert not kept.go_back("t0000", 4, scores), "nothing is repeated"
        assert kept.go_back("t0000", start, scores)
        record = kept.by_id["t0000"]
        assert (record.epochs, record.samples_seen, record.score) == (start, 100 * start, 0.2 if start else None)
        told = EpochResult(start + 1, {"accuracy": 0.05, "latency_ms": 2.0}, num_samples=100, train_s=0.5)
        assert kept.add("t0000", [told], 0) == [told]
        assert (record.epochs, record.score, record.further) == (start + 1, 0.05, (2.0,))
        assert (record.best_epoch, record.samples_seen) == (2 if start else 1, 100 * (start + 1))
        (leader,) = kept.snapshot().leaders
        assert list(leader.curve) == [*[0.1, 0.2][:start], 0.05]


def test_further_metrics_are_those_of_the_epoch_that_scored() -> None:
    kept = Records(1, Scoring("accuracy", True, further=(("latency_ms", False),)), DEVICES, epochs=4)
    kept.start(trial(0))
    kept.add("t0000", [EpochResult(1, {"accuracy": 0.5, "latency_ms": 7.0})], None)
    kept.add("t0000", [EpochResult(2, {"latency_ms": 99.0}), EpochResult(3, {"samples_per_s": 1.0})], None)
    assert (kept.by_id["t0000"].score, kept.by_id["t0000"].further) == (0.5, (7.0,))


@pytest.mark.parametrize("which", ["last", "best"])
def test_a_trial_that_goes_back_has_the_further_metrics_of_its_epoch(which: Any) -> None:
    kept = Records(3, Scoring("accuracy", True, which, (("latency_ms", False),)), DEVICES, epochs=4)
    scores = [TrialScores() for _ in range(3)]
    for number in range(3):
        kept.start(trial(number))
        for epoch in (1, 2, 3):
            told = EpochResult(epoch, {"accuracy": epoch / 10, "latency_ms": 10.0 * epoch})
            kept.add(Trial.name(number), [told], None)
            if epoch <= number:
                scores[number].take(kept.scoring, told)
    for number in range(3):
        kept.go_back(Trial.name(number), number, scores[number])
    objectives = [kept.by_id[Trial.name(number)].objectives for number in range(3)]
    assert objectives == [None, (0.1, 10.0), (0.2, 20.0)]
    assert [record.trial.trial_id for record in kept.front()] == ["t0002", "t0001"]


def test_further_metrics_are_those_of_the_training_whose_parameters_were_kept() -> None:
    """A worker is lost after the second epoch; what repeats that epoch from a checkpoint has other metrics."""
    for repeated, score, latency in ((0.6, 0.6, 20.0), (0.4, 0.5, 10.0)):
        kept = Records(1, Scoring("accuracy", True, "best", (("latency_ms", False),)), DEVICES, epochs=4)
        kept.start(trial(0))
        for epoch, accuracy, latency_ms in ((1, 0.5, 10.0), (2, 0.9, 99.0)):
            metrics = {"accuracy": accuracy, "latency_ms": latency_ms}
            kept.add("t0000", [EpochResult(epoch, metrics)], None, BestEpoch(accuracy, epoch, None))
        again = Records(1, kept.scoring, DEVICES, epochs=4)
        again.restore(kept.state())
        again.start(trial(0))
        best = BestEpoch(0.6, 2, None) if repeated > 0.5 else BestEpoch(0.5, 1, None)
        again.add("t0000", [EpochResult(2, {"accuracy": repeated, "latency_ms": 20.0})], None, best)
        again.add("t0000", [EpochResult(3, {"accuracy": 0.3, "latency_ms": 30.0})], None, best)
        assert again.by_id["t0000"].objectives == (score, latency)


def test_of_equal_trials_the_first_one_drawn_is_the_best() -> None:
    kept = records(2)
    for index in (10_000, 9998):
        kept.start(trial(index))
        kept.add(Trial.name(index), [result(1, 0.5)], 0)
        kept.end(Trial.name(index), "finished")
    assert [record.trial.trial_id for record in kept.ranked()] == ["t9998", "t10000"]


def test_ranking_puts_diverged_last_and_leaves_failed_out() -> None:
    for maximize, best in ((True, "t0001"), (False, "t0000")):
        kept = records(4, maximize)
        for index, score in enumerate([0.2, 0.9, math.nan, 0.5]):
            kept.start(trial(index))
            kept.add(f"t000{index}", [result(1, score)], 0)
            kept.end(f"t000{index}", "failed" if index == 3 else "finished")
        ranked = [record.trial.trial_id for record in kept.ranked()]
        assert ranked[0] == best
        assert ranked[-1] == "t0002"
        assert len(ranked) == 3


def test_diverged_trials_are_counted_apart_and_never_the_best() -> None:
    for which in ("last", "best"):
        kept = Records(2, Scoring("accuracy", True, which), DEVICES, epochs=4)  # type: ignore[arg-type]
        for index, second in enumerate([math.nan, 0.2]):
            kept.start(trial(index))
            kept.add(f"t000{index}", [result(1, 0.9 - index / 2), result(2, second)], 0)
            kept.end(f"t000{index}", "finished")
        snapshot = kept.snapshot()
        assert (snapshot.finished, snapshot.diverged, snapshot.ended) == (1, 1, 2)
        assert snapshot.best is not None
        assert snapshot.best.trial.trial_id == "t0001"
        assert (kept.count("finished"), kept.count("diverged")) == (1, 1)


def test_the_best_epoch_scores_a_trial_where_that_is_wanted() -> None:
    kept = Records(1, Scoring("accuracy", True, "best"), DEVICES, epochs=4)
    record = kept.start(trial(0))
    kept.add("t0000", [result(1, 0.5), result(2, 0.8), result(3, 0.6)], 0)
    assert (record.score, record.best_epoch, record.score_epoch, record.epochs) == (0.8, 2, 2, 3)
    # Its worker is lost; what repeats the epochs from a checkpoint has other parameters, and tells so.
    kept.start(trial(0))
    kept.add("t0000", [result(2, 0.7), result(3, 0.75)], 0, BestEpoch(0.75, 3, 0.4))
    assert (record.score, record.best_epoch, record.validation_loss) == (0.75, 3, 0.4)


def test_equal_scores_are_ranked_by_the_validation_loss_at_their_epoch() -> None:
    losses = [[0.1, 0.5], [0.2, 0.3], [0.15, None]]
    for which, order in (("last", ["t0001", "t0000", "t0002"]), ("best", ["t0000", "t0002", "t0001"])):
        kept = Records(3, Scoring("accuracy", True, which), DEVICES, epochs=2)  # type: ignore[arg-type]
        for index, values in enumerate(losses):
            kept.start(trial(index))
            for epoch, loss in enumerate(values, 1):
                more = {} if loss is None else {"validation/loss": loss}
                kept.add(f"t000{index}", [EpochResult(epoch, {"accuracy": 0.9, **more})], 0)
        assert [record.trial.trial_id for record in kept.ranked()] == order, which


def test_a_rate_that_is_no_number_is_none() -> None:
    kept = records()
    record = kept.start(trial(0))
    kept.add("t0000", [EpochResult(1, {"accuracy": 0.5, "samples_per_s": math.nan})], 0)
    assert record.samples_per_s is None


def test_throughput_is_summed_over_the_trials_that_run_on_a_gpu() -> None:
    kept = records()
    for index, gpu in ((0, 0), (1, 0), (2, 1)):
        kept.start(trial(index))
        kept.hold(f"a{index}", [f"t000{index}"], 0.5)
        kept.report(f"a{index}", [1.0], 0.5, gpu, 200.0)
        kept.add(f"t000{index}", [result(1, 0.5)], gpu)
    assert kept.snapshot().samples_per_s == {0: 400.0, 1: 200.0}
    kept.end("t0002", "finished")
    kept.release("a2")
    assert kept.snapshot().samples_per_s == {0: 400.0, 1: None}
    assert kept.gpu_throughput(10.0) == {0: 20.0, 1: 10.0}


def test_throughput_of_a_gpu_is_that_of_the_last_reports() -> None:
    kept = records()
    kept.hold("a", ["t0000", "t0001"])
    kept.report("a", [2.0], 1.0, 0, 200.0)
    for index in (0, 1):
        kept.start(trial(index))
        kept.add(f"t000{index}", [EpochResult(1, {"accuracy": 0.5}, num_samples=100, train_s=1.0)], 0)
    kept.end("t0001", "stopped")
    assert kept.snapshot().samples_per_s[0] == 200.0, "of both: no epoch of t0000 alone is known yet"
    kept.report("a", [1.0], 0.25, 0, 400.0)
    kept.add("t0000", [EpochResult(2, {"accuracy": 0.6}, num_samples=100, train_s=0.25)], 0)
    kept.report("a", [], None, 0, None)
    assert kept.snapshot().samples_per_s[0] == 400.0
    assert kept.by_id["t0000"].samples_per_s == 160.0, "of all its epochs"
    kept.interrupt(lambda record: None)
    assert kept.snapshot().samples_per_s[0] is None, "nothing trains any more"


class Clock:
    """A clock that the test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


def test_time_left_is_told_once_trials_have_trained_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    kept = records(num_trials=4)
    assert kept.snapshot().time_left_s is None
    kept.hold("a", ["t0000"])
    kept.start(trial(0))
    clock.now = 22.0  # twenty seconds of which its worker's start took
    kept.report("a", [1.0], 1.0, 0)
    kept.add("t0000", [result(1, 0.5, train_s=1.0)], 0)
    assert kept.snapshot().time_left_s is None, "1 s of some 16 tells little"
    clock.now = 23.0
    kept.report("a", [1.0], 1.0, 0)
    kept.add("t0000", [result(2, 0.5, train_s=1.0)], 0)
    assert kept.snapshot().time_left_s == pytest.approx(2 * 1.0 + 3 * (4 * 1.0 + 0.25))
    clock.now = 23.5
    assert kept.snapshot().time_left_s == pytest.approx(2 * 1.0 + 3 * (4 * 1.0 + 0.25) - 0.5), "estimated once a second"
    for index in range(4):
        kept.start(trial(index))
        kept.end(f"t000{index}", "finished")
    assert kept.snapshot().time_left_s == 0.0


def test_time_left_of_a_resumed_sweep_leaves_the_earlier_trials_out(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    kept = records(num_trials=4)
    for index in (0, 1):
        kept.start(trial(index))
        kept.add(f"t000{index}", [result(epoch, 0.5) for epoch in (1, 2, 3, 4)], 0)
        kept.end(f"t000{index}", "finished")
    again = records(num_trials=4)
    again.restore(kept.state())
    clock.now = 10.0
    again.hold("a", ["t0002"])
    again.start(trial(2))
    clock.now = 30.0
    again.report("a", [1.0, 1.0], 20.0, 0)
    again.add("t0002", [result(1, 0.5, train_s=10.0), result(2, 0.5, train_s=10.0)], 0)
    assert again.snapshot().time_left_s == pytest.approx(60.25), "three halves of a trial, of 40 s each"


def test_a_snapshot_has_the_best_trials_with_their_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = records(5)
    for index, scores in enumerate([(0.1, 0.2), (0.5, 0.9), (0.3, math.nan), (0.6, 0.7), (0.8, 0.8)]):
        kept.start(trial(index))
        kept.add(f"t000{index}", [result(epoch, score) for epoch, score in enumerate(scores, 1)], 0)
    leaders = kept.snapshot().leaders
    assert [leader.record.trial.trial_id for leader in leaders] == ["t0001", "t0004", "t0003"]
    assert leaders[0].curve == [0.5, 0.9]
    again = records(5)
    again.restore(kept.state())
    assert again.snapshot().leaders[0].curve == [0.5, 0.9]
    kept.end("t0001", "failed")
    kept.start(trial(1))  # from its beginning
    kept.add("t0001", [result(1, 0.95)], 0)
    assert kept.snapshot().leaders[0].curve == [0.95]


def test_shares_of_a_gpu_are_those_that_tune_trials_hold() -> None:
    kept = records()
    kept.hold("a", ["t0000"], 0.5)
    assert kept.snapshot().held == {0: 0.0, 1: 0.0}, "its GPU is not known yet"
    kept.report("a", [], None, 1)
    kept.hold("b", ["t0001"], 0.25)
    kept.report("b", [], None, 1)
    assert kept.snapshot().held == {0: 0.0, 1: 0.75}
    kept.release("a")
    assert kept.snapshot().held == {0: 0.0, 1: 0.25}
    alone = Records(1, Scoring("accuracy", True), DEVICES[:1], epochs=4)
    alone.hold("a", ["t0000"], 0.5)
    assert alone.snapshot().held == {0: 0.5}, "there is one GPU"


def test_throughput_counts_trials_that_report_at_their_end_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    kept = records()
    for index in (0, 1):
        kept.start(trial(index))
    kept.add("t0000", [result(1, 0.5, num_samples=1000)], 0)
    kept.end("t0000", "finished")
    assert kept.snapshot().samples_per_s[0] == 200.0, "of the last five seconds: t0001 has not reported yet"
    clock.now = 6.0
    assert kept.snapshot().samples_per_s[0] is None


def test_time_left_is_at_most_that_of_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raygpu.records.trial_records.command_age_s", lambda: 50.0)
    kept = records(num_trials=4)
    assert kept.snapshot().time_left_s is None
    kept.time_budget_s = 60.0
    assert kept.snapshot().time_left_s == 10.0
    monkeypatch.setattr(kept, "_trials_left_s", lambda: 4.0)
    assert kept.snapshot().time_left_s == 4.0
    kept.time_budget_s = 20.0
    assert kept.budget_left_s() == 0.0


@pytest.mark.parametrize("all_ended", [False, True])
def test_a_budget_that_ends_with_the_last_trial_ended_nothing(all_ended: bool) -> None:
    kept = records(num_trials=1)
    kept.start(trial(0))
    kept.out_of_time = True
    if all_ended:
        kept.end("t0000", "finished")
    kept.interrupt(lambda record: None)
    assert kept.out_of_time != all_ended


def test_interrupt_tells_of_running_trials_and_of_missing_ones() -> None:
    kept = records(num_trials=3)
    kept.start(trial(0))
    kept.start(trial(1))
    kept.end("t0001", "finished")
    told: list[TrialRecord] = []
    assert kept.interrupt(told.append)
    assert [(r.trial.trial_id, r.status) for r in told] == [("t0000", "interrupted")]


def test_state_goes_round() -> None:
    kept = records()
    kept.start(trial(0))
    kept.add("t0000", [result(1, 0.5)], 1)
    kept.gpus.read(1, {"memory_gib": 2.0})
    other = records()
    other.restore(kept.state())
    assert other.by_id == kept.by_id
    assert other.gpu_throughput(1.0) == kept.gpu_throughput(1.0)
    other.gpus.read(1, {"memory_gib": 4.0})
    assert other.gpus.mean_reading(1, "memory_gib") == 3.0, "of the whole run"


def test_workers_seconds_add_up_by_activity() -> None:
    kept = records()
    kept.spend({"train": 1.0, "evaluation": 0.25})
    kept.spend({"train": 2.0})
    assert kept.spent == {"train": 3.0, "evaluation": 0.25}
    fresh = records()
    fresh.restore(kept.state())
    assert fresh.spent == {}, "of this start alone, as the stages"
