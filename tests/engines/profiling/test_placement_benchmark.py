"""Turns of placements, in turn and beyond a device's memory, without processes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raygpu.config.source import locate
from raygpu.engines.profiling import placement_benchmark
from raygpu.engines.profiling.placement_benchmark import PlacementBenchmark, PlacementSettings
from raygpu.engines.profiling.workload import Workload
from raygpu.planning.model_placements import MeasuredPlacement, PlacementTurn
from raygpu.search.trials import Trial
from tests.models import few

MEMORY = {"one_device": (0.3, 0.0), "last": (0.2, 0.1), "first": (0.1, 0.2500001)}


def test_a_placement_beyond_the_memory_of_a_device_is_left_out_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(placement_benchmark.ray, "put", lambda value: value)
    taken: list[str] = []

    def turn(benchmark: PlacementBenchmark, placement: MeasuredPlacement, *, profiled: bool) -> PlacementTurn:
        assert profiled == (placement.name not in taken)
        taken.append(placement.name)
        return PlacementTurn(1.0, 2.0, MEMORY[placement.name])

    monkeypatch.setattr(PlacementBenchmark, "_turn", turn)
    source, _ = locate("tests.models:Mlp", Path(__file__).parents[3])
    workload, told = Workload(source, few(), Trial("t0000", 0, {}), "float32"), list[str]()
    cluster: Any = SimpleNamespace(nodes=[SimpleNamespace(num_cpus=2)])
    settings = PlacementSettings(rounds=2, num_devices=2, epochs=1, memory_gib=0.25)
    measured = PlacementBenchmark(cluster, workload, settings, told.append).measure(
        [MeasuredPlacement(name, {}) for name in MEMORY]
    )
    assert taken == ["one_device", "last", "first", "last"]
    assert {each.name: each.fault for each in measured} == {
        "one_device": "out of memory: takes 0.3 GiB of 0.25 on device 0",
        "last": None,
        "first": "out of memory: takes 0.25 GiB of 0.25 on device 1",
    }
    assert [len(each.turns) for each in measured] == [0, 2, 0]
    assert len(told) == 2
