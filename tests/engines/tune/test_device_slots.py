"""Which type of device a trial is given to."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raygpu.engines.tune.device_slots import STAGED, DeviceSlots
from raygpu.planning.gpu_shares import Choice, Node, Plan, Share, plan

FAST, SLOW = "fast, 24 GiB", "slow, 8 GiB"


def two_types(fast: int, slow: int, num_slow: int = 1) -> Plan:
    nodes = [
        Node(64, num_slow, 100, device="slow", device_gib=8.0),
        Node(64, 1, 100, device="fast", device_gib=24.0),
    ]
    return plan(nodes, {FAST: Choice(Share(fast), ""), SLOW: Choice(Share(slow), "")}, 10_000)


def parts(made: Plan) -> dict[str, Fraction]:
    return {part.device: part.share.part for part in made.parts}


def test_the_faster_type_comes_first_and_then_what_is_free() -> None:
    made = two_types(fast=2, slow=1)
    slots = DeviceSlots(made)
    given_to = []
    for number in range(3):
        device = slots.choose(slots.devices, parts(made), staging=False)
        assert device is not None
        slots.take(str(number), device, parts(made)[device])
        given_to.append(device)
    assert given_to == [FAST, FAST, SLOW]
    assert slots.choose(slots.devices, parts(made), staging=False) is None, "the last trials wait for a free place"
    assert slots.give_back("2") == SLOW
    assert slots.choose(slots.devices, parts(made), staging=False) == SLOW
    assert slots.choose([FAST], parts(made), staging=False) is None, "not where it does not fit"


def test_one_type_takes_all_that_tune_asks_for() -> None:
    made = plan([Node(8, 1, 100)], {"": Choice(Share(2), "")}, 100)
    slots = DeviceSlots(made)
    for number in range(50):
        assert slots.choose([""], {"": Fraction(1, 2)}, staging=False) == ""
        slots.take(str(number), "", Fraction(1, 2))


def test_no_more_is_reserved_than_the_run_may_have() -> None:
    node = Node(64, 4, 100)
    made = plan([node], {"": Choice(Share(3), "")}, 100, most_gpus=Fraction(2, 3))
    assert made.slots == 2
    slots = DeviceSlots(made)
    third = {"": Fraction(1, 3)}
    for number in range(2):
        assert slots.choose([""], third, staging=True) == ""
        slots.take(str(number), "", third[""])
    assert slots.choose([""], third, staging=True) is None, "not even to wait: a cluster has room for it"
    assert slots.choose([""], {"": Fraction(1, 100)}, staging=True) is None
    slots.give_back("0")
    assert slots.choose([""], third, staging=True) == ""


def test_a_slot_is_free_if_one_more_trial_runs_at_once() -> None:
    made = two_types(fast=2, slow=1)
    slots = DeviceSlots(made)
    for holder, device in (("a", FAST), ("b", SLOW)):
        assert slots.is_any_free(parts(made))
        slots.take(holder, device, parts(made)[device])
    assert slots.is_any_free(parts(made)), "half of the fast one"
    slots.take("retried, waits for its place", SLOW, Fraction(1))
    assert slots.is_any_free(parts(made)), "what waits for one type leaves the other free"
    slots.take("retried, with a larger share", FAST, Fraction(1))
    assert not slots.is_any_free(parts(made))


@pytest.mark.parametrize(("most", "num_gpus", "fraction", "at_once"), [(1, 2, 1, 1), (None, 3, 2, 1), (None, 2, 1, 2)])
def test_slots_are_whole_gpus_within_the_limit(most: int | None, num_gpus: int, fraction: int, at_once: int) -> None:
    share = Share(1, fraction) if fraction > 1 else Share(1)
    made = plan([Node(64, num_gpus, 100)], {"": Choice(share, "")}, 100, None if most is None else Fraction(most))
    slots, count = DeviceSlots(made), 0
    while slots.is_any_free(parts(made)):
        slots.take(str(count), "", parts(made)[""])
        count += 1
    assert count == at_once == made.slots


def test_what_the_run_may_have_goes_to_the_faster_type_first() -> None:
    nodes = [Node(64, 2, 100, device="slow", device_gib=8.0), Node(64, 1, 100, device="fast", device_gib=24.0)]
    choices = {FAST: Choice(Share(2), ""), SLOW: Choice(Share(1), "")}
    assert [part.slots for part in plan(nodes, choices, 100, Fraction(2)).parts] == [2, 1]
    assert [part.slots for part in plan(nodes, choices, 100, Fraction(1)).parts] == [2]
    with pytest.raises(ValueError, match=r"a trial takes 0\.5 of a GPU, and cluster\.max_gpus allows 0\.25"):
        plan(nodes, choices, 100, Fraction(1, 4))


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 3), st.lists(st.tuples(st.booleans(), st.booleans())))
def test_no_type_is_given_more_than_it_has(fast: int, slow: int, num_slow: int, steps: list[tuple[bool, bool]]) -> None:
    made = two_types(fast, slow, num_slow)
    slots, held, count = DeviceSlots(made), {}, 0
    room = {part.device: part.slots for part in made.parts}
    for begins, staging in steps:
        if begins:
            device = slots.choose(slots.devices, parts(made), staging=staging)
            load = {name: list(held.values()).count(name) for name in room}
            if device is None:
                assert all(load[name] >= room[name] for name in room)
                continue
            if any(load[name] < room[name] for name in room):
                assert load[device] < room[device], "a trial goes where a place is free"
            assert load[device] < room[device] * (STAGED if staging else 1)
            held[str(count)] = device
            slots.take(str(count), device, parts(made)[device])
            count += 1
        elif held:
            name = next(iter(held))
            assert slots.give_back(name) == held.pop(name)


def test_its_state_comes_back() -> None:
    made = two_types(1, 1)
    slots, again = DeviceSlots(made), DeviceSlots(made)
    slots.take("a", FAST, Fraction(1))
    again.restore(slots.state())
    assert again.choose(again.devices, parts(made), staging=False) == SLOW
    assert again.give_back("a") == FAST
    assert again.give_back("a") is None
    assert slots.slots == pytest.approx(2)
