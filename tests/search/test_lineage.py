"""The schedule that trained a trial's parameters."""

from __future__ import annotations

from raygpu.search.lineage import LineageSegment, described, lineage, schedule
from raygpu.search.trial_record import Change

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


def test_a_change_as_a_line() -> None:
    line = described(CHANGES["t0000"][0], BEGUN["t0000"])
    assert line == "takes over t0001 after epoch 5: lr 0.1 -> 0.24, momentum 0.5 -> 0.5"
