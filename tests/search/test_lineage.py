"""The schedule that trained a trial's parameters."""

from __future__ import annotations

from raygpu.search.lineage import LineageSegment, described, lineage, schedule
from raygpu.search.trial_record import Change, TrialRecord
from raygpu.search.trials import Trial

BEGUN = {"t0000": {"lr": 0.1, "momentum": 0.5}, "t0001": {"lr": 0.2, "momentum": 0.5}, "t0002": {"lr": 0.3}}
CHANGES = {
    "t0000": [
        Change(5, "t0001", {"lr": 0.24, "momentum": 0.5}),
        Change(15, "t0002", {"lr": 0.01, "momentum": 0.5}),
    ],
    "t0002": [Change(10, "t0000", {"lr": 0.24, "momentum": 0.6})],
}


def test_parameters_are_followed_back_through_their_donors() -> None:
    found = lineage("t0000", 20, CHANGES, BEGUN)
    assert found == [
        LineageSegment(1, 5, "t0001", {"lr": 0.2, "momentum": 0.5}),
        LineageSegment(6, 10, "t0000", {"lr": 0.24, "momentum": 0.5}),
        LineageSegment(11, 15, "t0002", {"lr": 0.24, "momentum": 0.6}),
        LineageSegment(16, 20, "t0000", {"lr": 0.01, "momentum": 0.5}),
    ]
    assert schedule(found) == [
        {"epoch": 6, "lr": 0.24},
        {"epoch": 11, "momentum": 0.6},
        {"epoch": 16, "lr": 0.01, "momentum": 0.5},
    ]


def test_an_earlier_epoch_has_an_earlier_history() -> None:
    assert lineage("t0000", 5, CHANGES, BEGUN) == [LineageSegment(1, 5, "t0000", BEGUN["t0000"])]
    assert [each.trial_id for each in lineage("t0000", 12, CHANGES, BEGUN)] == ["t0001", "t0000"]
    assert schedule(lineage("t0001", 20, CHANGES, BEGUN)) == []


def test_a_change_of_an_older_version_leaves_the_other_values_as_they_are() -> None:
    """It has those alone that change: a trial goes on with its own schedule, after parameters of another one's."""
    begun = {name: {"lr": 0.1, "schedule": schedule} for name, schedule in (("t0000", "constant"), ("t0001", "cosine"))}
    changes = {"t0001": [Change(2, "t0000", {"lr": 0.12}), Change(4, "t0000", {"lr": 0.2, "schedule": "constant"}),
                         Change(6, "t0001", {"lr": 0.3})]}  # fmt: skip
    found = [lineage("t0001", epoch, changes, begun)[-1].values for epoch in (4, 6, 8)]
    assert found == [
        {"lr": 0.12, "schedule": "cosine"},
        {"lr": 0.2, "schedule": "constant"},
        {"lr": 0.3, "schedule": "constant"},
    ]
    assert schedule(lineage("t0001", 4, changes, begun)) == [{"epoch": 3, "lr": 0.12, "schedule": "cosine"}]
    record = TrialRecord(Trial("t0001", 0, {**begun["t0001"], "hidden": 16}), changes=changes["t0001"])
    assert record.values == {"lr": 0.3, "schedule": "constant", "hidden": 16}


def test_a_change_as_a_line() -> None:
    line = described(CHANGES["t0000"][0], BEGUN["t0000"])
    assert line == "takes over t0001 after epoch 5: lr 0.1 -> 0.24, momentum 0.5 -> 0.5"
