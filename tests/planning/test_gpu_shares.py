from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raygpu.planning.gpu_shares import AUTO_LIMIT, Choice, Node, Plan, Share, auto_share, by_type, plan, snap

ROOMY = Node(num_cpus=64, num_gpus=1, memory_gib=1000)


@pytest.mark.parametrize(
    ("fraction", "per_gpu", "text"),
    [
        (0.18, 5, "5 per GPU, 1/5 each"),
        (0.33, 3, "3 per GPU, 1/3 each"),
        (0.6, 1, "1 per GPU, the whole of it"),
        (0.2, 5, "5 per GPU, 1/5 each"),
        (0.1, 10, "10 per GPU, 1/10 each"),
        (1 / 3, 3, "3 per GPU, 1/3 each"),
        (0.07, 14, "14 per GPU, 1/14 each"),
        (1.0, 1, "1 per GPU, the whole of it"),
    ],
)
def test_snap(fraction: float, per_gpu: int, text: str) -> None:
    assert snap(fraction) == Share(trials_per_gpu=per_gpu)
    assert str(snap(fraction)) == text


def same(nodes: list[Node], share: Share, num_trials: int = 10_000) -> Plan:
    """This share on every type."""
    return plan(nodes, dict.fromkeys(by_type(nodes), Choice(share, "")), num_trials)


def test_whole_gpus() -> None:
    made = same([Node(8, 4, 100)], snap(2.0), 10)
    assert (made.slots, made.parts[0].cpus_per_trial, made.parts[0].share.ray_gpus) == (2, 4.0, 2.0)


@given(st.floats(0.001, 1.0))
def test_nobody_gets_less_than_asked_and_all_fit(fraction: float) -> None:
    share = snap(fraction)
    assert share.fraction >= fraction - 1e-9
    # In Ray's own steps of 1/10000, which are whole numbers: all of them fit one GPU.
    assert round(share.ray_gpus * 10_000) * share.trials_per_gpu <= 10_000


@given(st.integers(1, 64), st.integers(1, 8), st.floats(0.02, 1.0))
def test_the_gpu_binds_and_not_the_cpus(cpus: int, gpus: int, fraction: float) -> None:
    made = same([Node(cpus, gpus, 1000)], snap(fraction))
    part = made.parts[0]
    assert part.cpus_per_trial * made.slots <= cpus + 1e-9
    assert made.slots == gpus * part.share.trials_per_gpu
    assert part.threads_per_trial == max(1, math.floor(part.cpus_per_trial))


def test_unequal_nodes_of_one_type_are_planned_for_the_tightest() -> None:
    made = same([Node(16, 1, 100), Node(4, 2, 100), Node(32, 0, 100)], Share(2), 100)
    assert made.slots == 6
    assert made.parts[0].cpus_per_trial == 1.0, "four trials on four CPUs"


def test_more_gpus_than_any_node_has() -> None:
    with pytest.raises(ValueError, match="4 GPUs per trial, but no node has more than 2"):
        same([Node(8, 2, 100)], snap(4.0), 1)


def test_slots_are_no_more_than_trials() -> None:
    assert same([ROOMY], Share(10), 3).slots == 3


TYPES = st.lists(
    st.builds(
        Node,
        num_cpus=st.integers(1, 64),
        num_gpus=st.integers(1, 4),
        memory_gib=st.floats(1, 500),
        device=st.sampled_from(["A", "B", "C"]),
        device_gib=st.sampled_from([8.0, 24.0]),
        free_gib=st.none() | st.floats(0.1, 24.0),
        rgu=st.none() | st.floats(0.5, 12),
    ),
    min_size=1,
    max_size=6,
)


@given(TYPES, st.data())
def test_each_type_has_a_part_of_its_own(nodes: list[Node], data: st.DataObject) -> None:
    choices = {device: Choice(Share(data.draw(st.integers(1, 9))), device) for device in by_type(nodes)}
    made = plan(nodes, choices, 10_000)
    assert {part.device for part in made.parts} == {node.device_type for node in nodes}
    for part in made.parts:
        of = [node for node in nodes if node.device_type == part.device]
        assert (part.share, part.reason) == (choices[part.device].share, part.device)
        assert part.slots == sum(node.num_gpus for node in of) * part.share.trials_per_gpu
        for node in of:
            assert part.cpus_per_trial * node.num_gpus * part.share.trials_per_gpu <= node.num_cpus + 1e-9
        assert made.on(part.device) is part
    assert made.slots == sum(part.slots for part in made.parts)


def test_the_plan_of_one_type_is_told_as_ever_and_that_of_several_as_a_list() -> None:
    large = Node(8, 1, 100, device="large", device_gib=24.0)
    small = Node(8, 2, 100, device="small", device_gib=8.0)
    assert same([large], Share(5)).as_dict() == {"fraction": 0.2, "trials_per_gpu": 5, "reason": ""}
    assert same([small, large], Share(4)).as_dict() == {
        "devices": [
            {"device": "large, 24 GiB", "gpus": 1, "slots": 4, "fraction": 0.25, "trials_per_gpu": 4, "reason": ""},
            {"device": "small, 8 GiB", "gpus": 2, "slots": 8, "fraction": 0.25, "trials_per_gpu": 4, "reason": ""},
        ]
    }


@pytest.mark.parametrize(
    ("node", "per_gpu", "reason"),
    [
        (Node(2, 1, 100), 2, "one per CPU core"),
        (Node(64, 1, 4), 2, "host memory"),
        (ROOMY, AUTO_LIMIT, "at most 8"),
        (Node(1, 4, 1), 1, "plain rule"),
        (Node(64, 1, 1000, device_gib=8.0, free_gib=7.0), 4, "device memory each (7.0 GiB free)"),
        (Node(64, 1, 1000, device_gib=24.0, free_gib=23.0), AUTO_LIMIT, "at most 8"),
    ],
)
def test_auto_is_a_plain_rule_that_names_its_bound(node: Node, per_gpu: int, reason: str) -> None:
    choice = auto_share([node])
    assert choice.share.trials_per_gpu == per_gpu
    assert reason in choice.reason
