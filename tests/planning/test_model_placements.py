"""Placements: names that are checked, the worst case, and what turns say."""

from __future__ import annotations

import pytest

from raygpu.errors import BadInput
from raygpu.planning.model_placements import MeasuredPlacement, PlacementTurn, alternating, compare, require_possible

KNOWN = ["user_tower", "user_tower.dense", "item_tower", "join"]


def placement(name: str, *seconds: float, loss: float = 1.0) -> MeasuredPlacement:
    return MeasuredPlacement(name, {}, turns=tuple(PlacementTurn(each, loss, (0.1, 0.2)) for each in seconds))


def test_names_and_devices_are_checked_and_each_fault_is_told() -> None:
    require_possible({"mine": {"join": 1}}, KNOWN, 2)
    with pytest.raises(BadInput) as fault:
        require_possible({"mine": {"usertower": 0, "join": 2}, "other": {"middle": 1}}, KNOWN, 2)
    assert list(fault.value.faults) == [
        "placements.mine: the model has no part 'usertower'; did you mean 'user_tower'? it has: "
        "user_tower, user_tower.dense, item_tower, join",
        "placements.mine.join: read device 2; there are devices 0 to 1",
        "placements.other: the model has no part 'middle'; it has: user_tower, user_tower.dense, item_tower, join",
    ]


def test_of_many_parts_some_are_named() -> None:
    with pytest.raises(BadInput, match=r"part0, .*, part19 and 80 more"):
        require_possible({"mine": {"x": 0}}, [f"part{i}" for i in range(100)], 2)


def test_alternating_goes_round_the_devices() -> None:
    assert alternating(["a", "b", "c", "d"], 3) == {"a": 0, "b": 1, "c": 2, "d": 0}


def test_a_placement_that_is_clearly_faster_is_the_best() -> None:
    found = compare([placement("one_device", 2.0, 2.1, 2.0), placement("towers", 1.0, 1.05, 1.0)])
    assert found.best is not None
    assert found.best.name == "towers"
    assert 1.9 < found.speedups["towers"].middle < 2.1


def test_one_device_is_the_best_unless_the_turns_show_another() -> None:
    found = compare([placement("one_device", 2.0, 1.0, 2.0), placement("towers", 1.0, 2.0, 1.9)])
    assert found.best is not None
    assert found.best.name == "one_device"
    assert found.speedups["one_device"].middle == 1


def test_without_one_device_the_fastest_is_the_best_and_nothing_is_compared() -> None:
    failed = MeasuredPlacement("one_device", {}, fault="out of memory")
    found = compare([failed, placement("a", 3.0, 3.0), placement("b", 2.0, 2.0)])
    assert found.best is not None
    assert (found.best.name, found.speedups, found.loss_differences) == ("b", {}, {})
    assert compare([failed]).best is None


def test_a_loss_that_differs_shows() -> None:
    found = compare([placement("one_device", 1.0, 1.0, loss=2.0), placement("towers", 1.0, 1.0, loss=2.2)])
    assert found.loss_differences == {"one_device": 0, "towers": pytest.approx(0.1)}


def test_memory_is_the_largest_of_the_turns() -> None:
    turns = (PlacementTurn(1.0, 1.0, (0.1, 0.4)), PlacementTurn(1.0, 1.0, (0.2, 0.3)))
    assert MeasuredPlacement("x", {}, turns=turns).memory_gib == (0.2, 0.4)
