"""Trainings at growing numbers on the tests' own Ray: every way to end, and the order of the windows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raygpu.config.source import Source, locate
from raygpu.engines.cluster.cluster import Cluster
from raygpu.engines.cluster.remote_cluster import connect
from raygpu.engines.profiling import concurrency_benchmark as module
from raygpu.engines.profiling.concurrency_benchmark import ConcurrencyBenchmark, Measured
from raygpu.engines.profiling.probe_actor import Fault, Taken
from raygpu.engines.profiling.probe_workers import ProbeProcesses
from raygpu.engines.profiling.workload import Repetitions, Workload
from raygpu.planning.profile_coverage import fibonacci
from raygpu.planning.profiles import Point
from raygpu.search.trials import Trial
from tests.fakes.nvml import FakeNvml
from tests.models import few

ROOT = Path(__file__).parents[3]
Make = Callable[..., ConcurrencyBenchmark]

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def cluster(ray_address: str) -> Iterator[Cluster]:
    own = connect(ray_address)
    own.local = True
    yield own
    own.close()


@pytest.fixture
def climb(cluster: Cluster, tmp_path: Path) -> Iterator[Make]:
    probes: list[ProbeProcesses] = []

    def make(name: str | Source, *ways: str, most: int = 2, rounds: int = 1, **hp: Any) -> ConcurrencyBenchmark:
        source = name if isinstance(name, Source) else locate(name, ROOT)[0]
        splits = few() if source.kind in ("torch", "keras") else None
        (tmp_path / "here").mkdir(exist_ok=True)
        trial = Trial("t0000", 1, {"hidden": 8, "folder": str(tmp_path / "here"), **hp})
        probe = ProbeProcesses(cluster, cluster.devices[0], Workload(source, splits, trial, "float32"), str(tmp_path))
        probe.num_cpus = 2
        probes.append(probe)
        return ConcurrencyBenchmark(probe, ways, Repetitions(0.05, rounds), most=most)  # type: ignore[arg-type]

    yield make
    for probe in probes:
        probe.close()
        assert not probe._actors


def found(climb: ConcurrencyBenchmark) -> list[tuple[str, int, str | None]]:
    return [(p.way, p.n, p.fault) for p in climb.points]


def test_numbers() -> None:
    assert list(islice(fibonacci(), 9)) == [1, 2, 3, 5, 8, 13, 21, 34, 55]


def test_numbers_that_were_asked_for_are_measured_whether_they_gain_or_not(climb: Make) -> None:
    own = climb("tests.models:Mlp", "fused", most=6)
    own.numbers = [4, 6, 2, 8]
    own.run()
    assert found(own) == [("process", 1, None), *(("fused", n, None) for n in (1, 2, 4, 6))]


@pytest.mark.slow
def test_ways_take_turns(climb: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[tuple[str, int]] = []
    window = ConcurrencyBenchmark._window

    def noted(self: ConcurrencyBenchmark, measured: Measured) -> float:
        turns.append((measured.way, measured.n))
        return window(self, measured)

    monkeypatch.setattr(ConcurrencyBenchmark, "_window", noted)
    # Two rounds on a busy machine tell nothing.
    monkeypatch.setattr(module, "mark_doubtful", lambda points, alone: points)
    own = climb("tests.models:Mlp", "process", "fused", "threads", rounds=2)
    own.repetitions = replace(own.repetitions, patience=1, again=0)
    own.run()
    alone, fused, threads = ("process", 1), ("fused", 2), ("threads", 2)
    chosen = 2 * module.THREAD_ROUNDS
    assert turns[:chosen] == [alone] * chosen, "with one thread, and with all"
    assert turns[chosen : chosen + 4] == [alone, ("fused", 1), alone, ("fused", 1)]
    assert turns[chosen + 4 :] == [alone, ("process", 2), fused, threads, alone, threads, fused, ("process", 2)]
    assert found(own) == [
        ("process", 1, None),
        ("fused", 1, None),
        ("process", 2, None),
        (*fused, None),
        (*threads, None),
    ]
    for point in own.points:
        assert point.samples_per_s is not None
        assert point.gain is not None
        assert len(point.rounds) == 2
        assert (point.start_s or 0) > 0
        assert (point.evaluation_s or 0) > 0
        assert (point.host_gib or 0) > 0.01
        assert (point.device_gib, point.used_gib, point.power_w, point.util_pct) == (None,) * 4
    assert own.points[0].gain == 1.0
    assert own.notes == []
    assert {p.threads for p in own.points if p.way in ("process", "threads") and p.n == 2} == {1}
    monkeypatch.setattr(module, "HOPELESS", 0.0)  # however slow the array is here
    own.compile()
    compiled = own.points[-1]
    assert (compiled.way, compiled.compiled) == ("fused", True)
    assert own.notes == []


@pytest.mark.slow
def test_one_alone_is_the_reference_whatever_is_asked_for(climb: Make) -> None:
    own = climb("tests.models:Mlp", "threads")
    own.run()
    assert found(own) == [("process", 1, None), ("threads", 2, None)]


def test_memory_ends_at_a_point(climb: Make) -> None:
    own = climb("tests.pack_functions:crowded", "process", most=5, room=3)
    own.run()
    assert found(own) == [("process", 1, None), ("process", 2, None), ("process", 3, "out of memory")]
    assert own.points[2].samples_per_s is None
    assert own.notes == []
    assert own.probe._actors == own._pools.alone, "the others are gone"


@pytest.mark.slow
def test_memory_ends_for_an_array(climb: Make) -> None:
    own = climb("tests.pack_cases:Wide", "fused", "process", most=3, room=2)
    own.run()
    assert ("fused", 2, "out of memory") in found(own)
    assert ("process", 3, None) in found(own)


@pytest.mark.slow
def test_ways_that_do_not_fit_beside_each_other_go_one_after_the_other(climb: Make) -> None:
    own = climb("tests.pack_cases:Crowded", "process", "threads", most=3, room=3)
    own.run()
    (way, n, fault), last = found(own)[-2:]
    assert (way, n, last) == ("process", 3, ("threads", 3, None))
    assert fault is None or "the machine is too busy" in fault


@pytest.mark.slow
def test_too_little_host_memory(climb: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "available_memory_gib", lambda: 0.01)
    own = climb("tests.models:Mlp", "process", "threads", most=5)
    own.run()
    assert found(own) == [("process", 1, None), ("threads", 2, None)]
    process, threads = own.notes
    assert process.startswith("process: 2 at once not tried: 0.")
    assert process.endswith("GiB of host memory each, and 0.0 GiB are free for more")
    assert threads.startswith("threads: 3 at once not tried: 0.")


def test_a_training_that_raises(climb: Make) -> None:
    own = climb("tests.pack_functions:raises", "process", after=1)
    own.run()
    assert found(own) == [("process", 1, "ValueError: this training was meant to fail")]
    own = climb("tests.pack_functions:raises", "process", after=2)
    own.run()
    assert found(own) == [("process", 1, "ValueError: this training was meant to fail")]
    assert own.notes == ["process: 1 at once failed: ValueError: this training was meant to fail"]


def test_one_that_reports_nothing(climb: Make) -> None:
    own = climb("tests.pack_functions:silent", "process")
    own.run()
    ((_, _, fault),) = found(own)
    assert fault is not None
    assert "ended without a report" in fault


def test_a_process_that_is_lost(climb: Make) -> None:
    own = climb("tests.pack_functions:lost", "process", room=0)
    own.run()
    ((_, _, fault),) = found(own)
    assert fault is not None
    assert fault.startswith("a process was lost")
    assert "\n" not in fault


@pytest.mark.slow
def test_a_lost_process_beside_others(climb: Make) -> None:
    """All of them go, the one alone too: what was measured before stays."""
    own = climb("tests.pack_functions:lost", "process", most=3, room=1)
    own.run()
    assert found(own)[0] == ("process", 1, None)
    assert own.points[0].samples_per_s is not None
    assert all(p.fault is not None for p in own.points[1:])
    assert any("a process was lost" in note for note in own.notes)


@pytest.mark.slow
def test_a_script(climb: Make, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        f"import os, time\nopen(f'{tmp_path}/pid-{{os.getpid()}}', 'w')\nwhile True:\n"
        "    print('{\"loss\": 1}', flush=True)\n    time.sleep(0.01)\n"
    )
    own = climb(Source("command", "python train.py", str(tmp_path)), "process")
    own.run()
    assert found(own) == [("process", 1, None), ("process", 2, None)]
    own.probe.close()
    started = [path.name.removeprefix("pid-") for path in tmp_path.glob("pid-*")]
    assert len(started) == 3
    assert not [pid for pid in started if Path("/proc", pid).exists()]


def test_keras_threads_are_those_of_the_process(climb: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorFlow has one pool of threads in a process, so N trainings in it share all; processes have a part each."""
    own = climb("tests.keras_cases:FewKeras", "process", "split", "threads")
    started: list[tuple[str, int, int]] = []

    def ready(way: str, n: int) -> Measured:
        threads = own._threads(way, n)  # type: ignore[arg-type]
        started.append((way, n, threads))
        return Measured(way, n, threads, [])  # type: ignore[arg-type]

    for way in ("process", "split", "threads", "fused"):
        ready(way, 2)
    assert [threads for _, _, threads in started] == [1, 2, 2, 2]


@pytest.mark.slow
def test_what_a_gpu_tells(climb: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeNvml(["NVIDIA A100-SXM4-40GB"]).install(monkeypatch)
    own = climb("tests.pack_functions:steady", "process", most=3)
    own.probe.device = replace(own.probe.device, uuid=fake.uuids[0], memory_gib=16.0)
    own.run()
    assert found(own) == [("process", 1, None), ("process", 2, None), ("process", 3, None)]
    point: Point = own.points[-1]
    assert (point.used_gib, point.util_pct, point.power_w, point.temperature_c) == (1.0, 40.0, 150.0, 61.0)
    assert point.sm_util_pct is None


def test_processes_past_mps_are_no_measurement_of_it(climb: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    own = climb("tests.models:Mlp", "process", "mps")
    monkeypatch.setattr(module, "answers", lambda calls: [Taken([10, 11], 0.1, 0.2), Taken([12], 0.1, 0.2)])
    for clients, fault in (([11, 12], None), ([11], "1 of 2 processes were not attached to MPS")):
        own.mps = SimpleNamespace(clients=lambda clients=clients: clients)  # type: ignore[assignment]
        measured = Measured("mps", 2, 1, [], rates=[1.0], references=[1.0])
        own._weigh(measured)
        assert (measured.point().fault, measured.point().gain) == (fault, None if fault else 1.0)


def test_the_free_memory_is_noted_where_memory_ended(climb: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeNvml(["NVIDIA A100-SXM4-40GB"]).install(monkeypatch)
    own = climb("tests.models:Mlp", "process")
    own.probe.device = replace(own.probe.device, uuid=fake.uuids[0], memory_gib=16.0)
    fault = Fault("CUDA out of memory", out_of_memory=True)
    monkeypatch.setattr(own, "_ready", lambda way, n: Measured(way, n, 1, [], fault=fault))
    assert not own.begin()
    (point,) = own.points
    assert (point.fault, point.free_gib) == ("out of memory", 14.75)
