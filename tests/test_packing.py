from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raygpu.packing import AUTO_LIMIT, Node, Share, auto_share, plan, snap

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


def test_whole_gpus() -> None:
    assert snap(2.0) == Share(gpus_per_trial=2)
    made = plan([Node(8, 4, 100)], 2.0, 10)
    assert (made.slots, made.cpus_per_trial, made.share.ray_gpus) == (2, 4.0, 2.0)


@given(st.floats(0.001, 1.0))
def test_nobody_gets_less_than_asked_and_all_fit(fraction: float) -> None:
    share = snap(fraction)
    assert share.fraction >= fraction - 1e-9
    # In Ray's own steps of 1/10000, which are whole numbers: all of them fit one GPU.
    assert round(share.ray_gpus * 10_000) * share.trials_per_gpu <= 10_000


@given(st.integers(1, 64), st.integers(1, 8), st.floats(0.02, 1.0))
def test_the_gpu_binds_and_not_the_cpus(cpus: int, gpus: int, fraction: float) -> None:
    made = plan([Node(cpus, gpus, 1000)], fraction, 10_000)
    assert made.cpus_per_trial * made.slots <= cpus + 1e-9
    assert made.slots == gpus * made.share.trials_per_gpu
    assert made.threads_per_trial == max(1, math.floor(made.cpus_per_trial))


def test_unequal_nodes_are_planned_for_the_tightest() -> None:
    made = plan([Node(16, 1, 100), Node(4, 2, 100), Node(32, 0, 100)], 0.5, 100)
    assert made.slots == 6
    assert made.cpus_per_trial == 1.0, "four trials on four CPUs"


def test_more_gpus_than_any_node_has() -> None:
    with pytest.raises(ValueError, match="4 GPUs per trial, but no node has more than 2"):
        plan([Node(8, 2, 100)], 4.0, 1)


def test_slots_are_no_more_than_trials() -> None:
    assert plan([ROOMY], 0.1, 3).slots == 3


@pytest.mark.parametrize(
    ("node", "per_gpu", "reason"),
    [
        (Node(2, 1, 100), 2, "one per CPU core"),
        (Node(64, 1, 4), 2, "host memory"),
        (ROOMY, AUTO_LIMIT, "at most 8"),
        (Node(1, 4, 1), 1, "plain rule, not measured"),
    ],
)
def test_auto_is_a_plain_rule_that_names_its_bound(node: Node, per_gpu: int, reason: str) -> None:
    share, why = auto_share([node])
    assert share.trials_per_gpu == per_gpu
    assert reason in why
    assert plan([node], None, 100).reason == why
