"""The time left of played sweeps: from a quarter of the way on it is right within a third, where it can be known."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from raygpu.planning.schedule import Schedule
from raygpu.records.sweep_pace import SweepPace
from raygpu.search.generations import Generations
from raygpu.search.trial_record import TrialRecord
from raygpu.search.trials import Trial
from tests.records.played_sweeps import Job, Played, alone, halved, play, trial_names, with_jobs

HALVING = {2: 2 / 3, 6: 2 / 3, 18: 2 / 3}


def arrays(count: int, members: int, epochs: int, fixed_s: float, each_s: float) -> list[Job]:
    return [
        Job(dict.fromkeys(trial_names(members, members * number), epochs), affine(fixed_s, each_s))
        for number in range(count)
    ]


def affine(fixed_s: float, each_s: float) -> Callable[[int], float]:
    """The seconds of an array's epoch by the number of its trials."""
    return lambda left: fixed_s + each_s * left


@pytest.mark.parametrize(
    ("num_trials", "slots", "epoch_s"),
    [(24, 4, 0.5), (9, 4, 0.5), (5, 4, 2.0), (4, 4, 2.0), (64, 2, 0.02), (1, 1, 2.0)],
)
def test_waves_of_equal_trials(num_trials: int, slots: int, epoch_s: float) -> None:
    """The last wave may be a single trial, which takes as long as a whole wave."""
    jobs = [alone(name, 20, epoch_s) for name in trial_names(num_trials)]
    assert play(jobs, Schedule(20, slots=slots)).wrong() == []


def test_it_begins_as_not_known() -> None:
    told = play([alone(name, 20, 0.5) for name in trial_names(24)], Schedule(20, slots=4)).told
    assert told[0][1] is None
    assert told[-1][1] is not None


def test_the_start_of_workers_is_not_counted_again() -> None:
    jobs = [alone(name, 10, 0.3) for name in trial_names(30)]
    assert play(jobs, Schedule(10, slots=3), start_s=20.0).wrong() == []


def test_arrays_one_after_the_other() -> None:
    jobs = arrays(3, 20, epochs=20, fixed_s=0.1, each_s=0.02)
    assert play(jobs, with_jobs(Schedule(20, between_s=1.25), jobs)).wrong() == []


@pytest.mark.parametrize(("fixed_s", "each_s"), [(0.5, 0.002), (0.05, 0.02), (0.002, 0.03)])
def test_an_array_that_halving_makes_narrower(fixed_s: float, each_s: float) -> None:
    """An epoch of few trials may cost as much as one of all, or next to nothing: the profile tells which."""
    jobs = [Job(halved(trial_names(64), 2, 3, 20), affine(fixed_s, each_s))]
    schedule = with_jobs(Schedule(20, stops=HALVING, fixed=fixed_s / each_s), jobs)
    assert play(jobs, schedule).wrong() == []


def test_without_a_profile_the_first_array_tells_what_narrow_ones_cost() -> None:
    for costs in ((0.5, 0.002), (0.002, 0.03)):
        jobs = [Job(halved(trial_names(27, 27 * k), 2, 3, 20), affine(*costs)) for k in range(3)]
        assert play(jobs, with_jobs(Schedule(20, between_s=1.25, stops=HALVING), jobs)).wrong(least_s=4.0) == []


def test_halving_counts_on_trials_that_end_early() -> None:
    """Right most of the time: chance decides when the few trials begin that survive, which take most of the time."""
    missed = []
    for seed in range(8):
        names, epochs = trial_names(81), list(halved(trial_names(81), 2, 3, 20).values())
        random.Random(seed).shuffle(epochs)
        jobs = [alone(name, count, 0.5) for name, count in zip(names, epochs, strict=True)]
        played = play(jobs, Schedule(20, slots=4, stops=HALVING))
        missed.append(len(played.wrong()) / sum(way >= 0.25 for way in ways(played)))
    assert sum(missed) / len(missed) < 0.3
    without = play(jobs, Schedule(20, slots=4))
    early = [(left_s, without.ended - now) for now, left_s in without.told if left_s is not None and now < 10]
    assert all(left_s > 1.5 * true_s for left_s, true_s in early), "the rule is what makes it right"
    assert early


def ways(played: Played) -> Sequence[float]:
    """Each moment as a share of the way."""
    return [(now - played.began) / (played.ended - played.began) for now, _ in played.told]


def test_trials_of_unequal_cost_by_their_kind() -> None:
    for seed in range(3):
        kinds = {name: random.Random(f"{seed}{name}").choice([0, 1, 2]) for name in trial_names(48)}
        jobs = [alone(name, 20, 0.2 * 4**kind) for name, kind in kinds.items()]
        assert len(play(jobs, Schedule(20, slots=4, kinds=kinds)).wrong()) <= 1


def test_heavy_tails_are_right_most_of_the_time() -> None:
    missed = []
    for seed in range(10):
        chance = random.Random(seed)
        jobs = [alone(name, 20, 0.3 * chance.lognormvariate(0, 0.4)) for name in trial_names(48)]
        played = play(jobs, Schedule(20, slots=4))
        missed.append(len(played.wrong()) / sum(way >= 0.25 for way in ways(played)))
    assert sum(missed) / len(missed) < 0.1


def test_generations_wait_for_each_other() -> None:
    jobs = [alone(name, 20, 0.2) for name in trial_names(32)]
    assert play(jobs, Schedule(20, slots=3, generations=Generations.equal(32, 8))).wrong() == []
    jobs = [alone(name, 20, 0.05) for name in trial_names(160)]
    assert play(jobs, Schedule(20, slots=3, generations=Generations.growing(160))).wrong() == []


def test_functions_whose_epochs_nobody_knows() -> None:
    once = [alone(name, 1, 3.0, reported=False) for name in trial_names(24)]
    assert play(once, Schedule(None, slots=2), full=1).wrong() == []
    several = [alone(name, 10, 0.7, reported=False) for name in trial_names(24)]
    assert play(several, Schedule(None, slots=2), full=10).wrong() == []


def test_the_first_report_of_a_function_is_no_pause_between_trials() -> None:
    """Nobody tells how long its epochs took, and they are most of a short trial."""
    pace, now = SweepPace(Schedule(4)), 0.0
    records: dict[str, TrialRecord] = {}
    for number, name in enumerate(trial_names(10)):
        records[name] = TrialRecord(Trial(name, 0, {}), "finished", epochs=4)
        pace.hold(str(number), (name,), now)
        pace.add(str(number), now + 1.5, [1.0] * 3, None)
        pace.add(str(number), now := now + 2.0, [1.0], None)
        pace.release(str(number), now)
    assert pace.left_s(now, records, 20) == pytest.approx(20.0, rel=0.05)


def test_neighbours_that_have_ended_make_the_last_trials_faster() -> None:
    pace = SweepPace(Schedule(10, slots=4, slowdown=lambda active: active / 4))
    records = {name: TrialRecord(Trial(name, 0, {}), "running", epochs=5) for name in trial_names(1)}
    pace.hold("0", ("t0000",), 0.0)
    pace.add("0", 5.0, [1.0] * 5, 5.0)
    assert pace.left_s(5.0, records, 1) == pytest.approx(5.0 / 4)


def test_places_that_stay_empty_do_not_count() -> None:
    """Tune may use fewer slots than planned: a worker's start can take longer than a trial."""
    jobs = [alone(name, 10, 0.3) for name in trial_names(40)]
    played, schedule = play(jobs, Schedule(10, slots=1)), Schedule(10, slots=4)
    pace, now = SweepPace(schedule), 0.0
    records: dict[str, TrialRecord] = {}
    for number, name in enumerate(trial_names(12)):
        pace.hold(str(number), (name,), now)
        records[name] = TrialRecord(Trial(name, 0, {}), "finished", epochs=10)
        pace.add(str(number), now := now + 3.0, [1.0] * 10, 3.0)
        pace.release(str(number), now)
    left_s = pace.left_s(now, records, 40)
    assert left_s == pytest.approx(28 * 3.0, rel=0.1)
    assert played.ended > 0


def test_a_lost_worker_s_trial_waits_again() -> None:
    pace = SweepPace(Schedule(10, slots=1))
    records = {"t0000": TrialRecord(Trial("t0000", 0, {}), "running", epochs=5)}
    pace.hold("0", ("t0000",), 0.0)
    pace.add("0", 5.0, [1.0] * 5, 5.0)
    pace.release("0", 6.0)
    left_s = pace.left_s(6.0, records, 1)
    assert left_s is not None
    assert 5.0 <= left_s <= 6.5, "five epochs are left, and the time to go on"


def test_members_that_wait_for_memory_come_after_the_others() -> None:
    """An array of forty of which twenty fit: the other twenty take as long again."""
    pace = SweepPace(replace(Schedule(10), arrays=[tuple(trial_names(40))]))
    records = {name: TrialRecord(Trial(name, 0, {}), "running") for name in trial_names(40)}
    pace.hold("a", tuple(trial_names(40)), 0.0)
    for name in trial_names(20):
        records[name].epochs = 5
    pace.add("a", 5.0, [20.0] * 5, 5.0)
    assert pace.left_s(5.0, records, 40) == pytest.approx(15.0, rel=0.05)


def test_repeats_are_waited_for_and_those_that_are_left_out_are_not() -> None:
    pace = SweepPace(Schedule(10, per_set=3))
    pace.hold("a", ("t0000-1",), 0.0)
    for second in range(1, 11):
        pace.add("a", float(second), [1.0], 1.0)
    records = {"t0000-1": TrialRecord(Trial("t0000-1", 0, {}, 0), "finished", epochs=10)}
    pace.release("a", 10.0)
    all_s, fewer_s = pace.left_s(10.0, records, 6), pace.left_s(10.0, records, 3, {"t0001-1", "t0001-2", "t0001-3"})
    assert all_s is not None
    assert fewer_s is not None
    assert 45 < all_s < 75  # five trials of some ten seconds
    assert 18 < fewer_s < 30


def test_sets_that_are_likely_to_be_stopped_are_counted_by_their_first_trial() -> None:
    pace = SweepPace(Schedule(10, per_set=5, surviving=0.1))
    pace.hold("a", ("t0000-1",), 0.0)
    for second in range(1, 11):
        pace.add("a", float(second), [1.0], 1.0)
    records = {"t0000-1": TrialRecord(Trial("t0000-1", 0, {}, 0), "stopped", epochs=10)}
    pace.release("a", 10.0)
    left_s = pace.left_s(10.0, records, 16, {f"t0000-{number}" for number in range(2, 6)})
    assert left_s is not None
    assert left_s < 80  # of 150: three first trials, and few others
