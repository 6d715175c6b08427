"""What each type of device is given: decisions without Ray and without GPUs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raygpu.config import SweepConfig
from raygpu.devices import host
from raygpu.devices.nvml import Gpu, gpus
from raygpu.errors import BadInput
from raygpu.planning import allocation
from raygpu.planning.cost_model import RESERVE, Option, ProfiledGroup, Size
from raygpu.planning.gpu_shares import Choice, Node, Share
from raygpu.planning.profiles import Point, Profile, Subject
from raygpu.planning.scaling_laws import Affine
from raygpu.planning.sweep_plan import make_fused_plan, make_plan
from raygpu.workflow.trial_groups import usable
from tests.fakes.nvml import FakeNvml

LARGE = Node(32, 1, 200.0, device="large", device_gib=24.0, free_gib=23.0, rgu=3.0)
SMALL = Node(32, 1, 200.0, device="small", device_gib=8.0, free_gib=6.5, rgu=1.0)
ON_LARGE, ON_SMALL = LARGE.device_type, SMALL.device_type


def config(**gpu: Any) -> SweepConfig:
    return SweepConfig.model_validate({"command": "true", "metric": "x", "direction": "max", "trials": 9, "gpu": gpu})


def profile(device: str, each_gib: float, best: int) -> Profile:
    subject = Subject("experiment", {}, "", "float32", device, None, 32, {})
    points = tuple(
        Point("process", n, samples_per_s=100.0 * min(n, best), gain=float(min(n, best)), device_gib=each_gib)
        for n in (1, 2, 3, 5, 8)
    )
    return Profile(subject, 1000, points)


def test_what_is_asked_for_holds_unless_it_is_known_not_to_fit() -> None:
    nodes = [SMALL, LARGE]
    unknown = allocation.requested_share(nodes, 0.2, {})
    assert unknown == {ON_LARGE: Choice(Share(5), "gpu.fraction 0.2"), ON_SMALL: Choice(Share(5), "gpu.fraction 0.2")}
    need = Affine(0.0, 4.0)
    held = allocation.requested_share(nodes, 0.2, {ON_LARGE: need, ON_SMALL: need})
    assert (held[ON_LARGE].share, held[ON_SMALL].share) == (Share(5), Share(1))
    assert held[ON_SMALL].reason == "gpu.fraction 0.2, but 4.0 GiB each was measured, and 6.5 GiB are free"
    alone = allocation.requested_share([SMALL], 0.2, {ON_SMALL: need})
    assert alone[ON_SMALL].share == Share(5), "a person who names a fraction for one card means that card"


@given(st.floats(0.02, 1), st.floats(0.1, 30), st.floats(0, 2, allow_subnormal=False))
def test_no_more_than_memory_holds_and_no_more_than_asked(fraction: float, each: float, fixed: float) -> None:
    need = Affine(fixed, each)
    for node in (LARGE, SMALL):
        choice = allocation.requested_share([SMALL, LARGE], fraction, {node.device_type: need})[node.device_type]
        n = choice.share.trials_per_gpu
        assert choice.share.part >= 0
        assert 1 <= n <= max(1, round(1 / fraction) + 1)
        assert n == 1 or need.at(n) <= RESERVE * (node.free_gib or 0) + 1e-9


def test_automatic_is_told_for_each_type() -> None:
    choices = allocation.automatic_share([SMALL, LARGE])
    assert (choices[ON_LARGE].share, choices[ON_SMALL].share) == (Share(8), Share(4))
    assert "6.5 GiB free" in choices[ON_SMALL].reason


def test_measured_memory_is_compared_with_each_types_own() -> None:
    here = profile("large", 2.5, best=5)
    part = ProfiledGroup(here, Size(trials=64, epochs=5, at_once=64), fusable=False)
    best = Option("process", 5, (False,), 10.0, None, "throughput peaks at 5")
    choices = allocation.measured_share([SMALL, LARGE], best, {ON_LARGE: part, ON_SMALL: part}, 2, "large")
    assert (choices[ON_LARGE].share, choices[ON_SMALL].share) == (Share(5), Share(2))
    assert choices[ON_SMALL].reason == "device memory: 2.50 GiB each, 6.5 GiB free"
    own = ProfiledGroup(profile("small", 1.0, best=3), part.size, fusable=False)
    choices = allocation.measured_share([SMALL, LARGE], best, {ON_LARGE: part, ON_SMALL: own}, 2, "large")
    assert choices[ON_SMALL] == Choice(Share(3), "throughput peaks at 3"), "its own profile"
    fewer = replace(best, n=2, bound="asked by the sweep's size")
    choices = allocation.measured_share([SMALL, LARGE], fewer, {ON_LARGE: part, ON_SMALL: own}, 2, "large")
    assert choices[ON_LARGE] == Choice(Share(2), "asked by the sweep's size"), "what was chosen for it holds"
    under = replace(best, way="mps")
    choices = allocation.measured_share([SMALL, LARGE], under, {ON_LARGE: part, ON_SMALL: own}, 2, "large")
    assert choices[ON_SMALL].share == Share(3), "of processes, where nothing is known of MPS"
    failed = replace(own.profile, points=(*own.profile.points, Point("mps", 2, fault="not attached to MPS")))
    parts = {ON_LARGE: part, ON_SMALL: replace(own, profile=failed)}
    choices = allocation.measured_share([SMALL, LARGE], under, parts, 2, "large")
    assert choices[ON_SMALL].share == Share(3), "of processes, where MPS failed"


def test_a_card_that_takes_one_process_is_not_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeNvml(["NVIDIA A100", "NVIDIA A100"]).install(monkeypatch)
    fake.devices[1].compute_mode = 3
    nodes = host.nodes(gpus())
    assert len(nodes) == 2, "the other one can be packed"
    made = make_plan(nodes, config(fraction=0.25), 100)
    free, alone = sorted(made.parts, key=lambda part: -part.share.trials_per_gpu)
    assert (free.share, alone.share) == (Share(4), Share(1))
    assert "only under MPS or fused" in alone.reason
    assert {part.share for part in make_plan(nodes, config(fraction=0.25), 100, mps=True).parts} == {Share(4)}
    arrays = make_fused_plan(nodes, config(mode="fused"), 100).arrays
    assert {part.share for part in arrays.parts} == {Share(1)}


def test_a_card_that_computes_for_nobody_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeNvml(["NVIDIA T4", "NVIDIA A100"]).install(monkeypatch)
    fake.devices[1].compute_mode = 2
    left, lines = host.computing(gpus())
    assert [gpu.name for gpu in left] == ["NVIDIA T4"]
    assert lines == [f"left out: {host.packing_refusal(gpus()[1])}"]
    fake.devices[0].compute_mode = 2
    with pytest.raises(BadInput, match="compute mode prohibited"):
        host.computing(gpus())


def test_cards_that_the_wheel_has_no_code_for_are_left_out() -> None:
    old = Node(8, 1, 100, device="NVIDIA GTX 1080", device_gib=8.0, capability=(6, 1))
    new = Node(8, 1, 100, device="NVIDIA A100", device_gib=40.0, capability=(8, 0))
    built_for = ("sm_75", "sm_80", "sm_90")
    nodes, lines = usable([old, new], built_for)
    assert nodes == [new]
    assert lines[0].startswith("plan: left out: NVIDIA GTX 1080 (compute capability 6.1) is too old")
    with pytest.raises(BadInput, match=r"too old .*pip install 'torch>=2.11,<2.15' --index-url"):
        usable([old], built_for)
    assert usable([old, new], None) == ([old, new], []), "of another framework nothing is known"
    nodes, lines = usable([old, new], ())
    assert nodes == [old, new]
    assert lines[1].startswith("plan: trials train on the CPU: NVIDIA A100: the installed torch is built without CUDA")


def test_a_box_is_divided_by_type(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeNvml(["NVIDIA T4", "NVIDIA A100", "NVIDIA T4"]).install(monkeypatch)
    monkeypatch.setattr(host, "num_cpus", lambda: 6)
    found: list[Gpu] = gpus()
    first, second = host.nodes(found)
    assert (first.device, first.num_gpus, first.num_cpus) == ("NVIDIA T4", 2, 4.0)
    assert (second.device, second.num_gpus, second.num_cpus) == ("NVIDIA A100", 1, 2.0)
    assert first.free_gib == fake.devices[2].total_gib - 3.0 - 0.25, "of the one that has less"
    assert [[gpu.index for gpu in of] for of in host.types(found)] == [[0, 2], [1]]
    (both,) = host.nodes(found, apart=False)
    assert (both.device, both.num_gpus, both.num_cpus) == ("NVIDIA T4 + NVIDIA A100", 3, 6)
