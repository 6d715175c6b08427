"""What is exported of a run, without a Ray to export it."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from raygpu.devices.nvml import Reading
from raygpu.engines.cluster import prometheus
from raygpu.engines.cluster.prometheus import MetricSample, SweepExporter, TrainingExporter, of_sweep, of_training
from raygpu.records.device import Device
from raygpu.records.training_progress import History, Progress
from raygpu.records.trial_records import Records
from raygpu.search.scoring import Scoring
from raygpu.search.trials import EpochResult, Trial

DEVICES = [Device(0, "node", "0", "A"), Device(1, "node", "1", "B")]
SCORING = Scoring("score", maximize=True)
PROGRESS = Progress(
    epoch=1,
    step=2,
    steps=4,
    lr=0.1,
    wall_s=2.0,
    samples=(600, 200),
    rates=(400.0, 100.0),
    shares=(3, 1),
    noise=None,
    request="",
)


def reading(memory_gib: float | None) -> Reading:
    return Reading(memory_gib=memory_gib, util_pct=None, power_w=None, temperature_c=None)


def swept(num_trials: int = 6) -> Records:
    """Of six trials, one of each end, two that run on GPU 0, and one that was not begun."""
    records = Records(num_trials, SCORING, DEVICES, epochs=None)
    for index, rate in enumerate([100.0, 20.0, 3.0, None, None]):
        records.start(Trial(f"t{index}", index, {}))
        records.hold(f"a{index}", [f"t{index}"], 0.2)
        records.report(f"a{index}", [1.0], rate and 1.0, 0 if rate else None, rate)
        told = EpochResult(1, {"score": 1.0}, num_samples=rate and round(rate), train_s=rate and 1.0)
        records.add(f"t{index}", [told], 0 if rate else None)
    for index, end in ((2, "finished"), (3, "stopped"), (4, "failed")):
        records.end(f"t{index}", end)
        records.release(f"a{index}")
    records.retries, records.out_of_memory = 2, 1
    return records


def values(points: Iterable[MetricSample], metric: prometheus.Metric) -> dict[tuple[str, ...], float]:
    """By all tags but the run's name."""
    found = {}
    for point in points:
        assert tuple(point.tags) == point.metric.tags
        assert point.tags["run"] == "mine"
        if point.metric is metric:
            found[tuple(point.tags.values())[1:]] = point.value
    return found


class Gauges:
    """In place of Ray's: keeps what it was set to, in order."""

    def __init__(self) -> None:
        self.fault: Exception | None = None
        self.made: list[str] = []
        self.set: list[tuple[str, float, dict[str, str]]] = []

    def __call__(self, name: str, description: str, tags: tuple[str, ...]) -> Any:
        self.made.append(name)
        gauges = self

        class Gauge:
            def set(self, value: float, tags: dict[str, str]) -> None:
                if gauges.fault is not None:
                    raise gauges.fault
                gauges.set.append((name, value, tags))

        return Gauge()

    def of(self, metric: prometheus.Metric) -> list[float]:
        return [value for name, value, _ in self.set if name == metric.name]


@pytest.fixture
def gauges(monkeypatch: pytest.MonkeyPatch) -> Gauges:
    made = Gauges()
    monkeypatch.setattr(prometheus, "Gauge", made)
    return made


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Its one item is what the exporters take for the time, in seconds."""
    now = [100.0]
    monkeypatch.setattr(prometheus, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_trials_are_counted_by_status_and_by_gpu() -> None:
    records = swept()
    points = list(of_sweep("mine", records, records.snapshot(), {}))
    trials = values(points, prometheus.TRIALS)
    assert trials == {
        ("waiting",): 1,
        ("running",): 2,
        ("finished",): 1,
        ("stopped",): 1,
        ("failed",): 1,
        ("interrupted",): 0,
        ("diverged",): 0,
    }
    assert values(points, prometheus.TRIALS_PER_GPU) == {("0",): 2, ("1",): 0}
    assert values(points, prometheus.RETRIES) == {("out_of_memory",): 1, ("lost_worker",): 2}


def test_what_nobody_tells_is_absent() -> None:
    records = swept()
    points = list(of_sweep("mine", records, records.snapshot(), {0: reading(None), 1: reading(1.5)}))
    assert values(points, prometheus.SAMPLES) == {("0", "A"): 120.0}
    assert values(points, prometheus.MEMORY) == {("1", "B"): 1.5 * 2**30}
    untouched = Records(6, SCORING, DEVICES, epochs=None)
    points = list(of_sweep("mine", untouched, untouched.snapshot(), {}))
    assert values(points, prometheus.TRIALS)[("waiting",)] == 6
    assert values(points, prometheus.SAMPLES) == values(points, prometheus.MEMORY) == {}


def test_a_trainings_ranks() -> None:
    history = History(SCORING, DEVICES, epochs=2)
    points = list(of_training("mine", history, PROGRESS, {0: reading(2.0)}))
    assert values(points, prometheus.TRAINING_SAMPLES) == {("0",): 300.0, ("1",): 100.0}
    assert values(points, prometheus.MEMORY) == {("0", "A"): 2.0 * 2**30}
    assert values(points, prometheus.RETRIES) == {("lost_worker",): 0}
    for _ in range(2):  # all workers, twice
        history.join(0, 0)
        history.join(1, 1)
    points = list(of_training("mine", history, None, {}))
    assert values(points, prometheus.RETRIES) == {("lost_worker",): 1}
    assert values(points, prometheus.TRAINING_SAMPLES) == {}


def test_a_sweeps_gauges_are_set_again_and_at_its_end(gauges: Gauges) -> None:
    records = swept()
    exporter = SweepExporter("mine", records)
    exporter.update(records.snapshot(), {})
    once = len(gauges.set)
    exporter.update(records.snapshot(), {})
    assert len(gauges.set) == 2 * once
    records.end("t0", "finished")
    records.end("t1", "interrupted")
    exporter.finish(records.snapshot())
    assert gauges.of(prometheus.TRIALS_PER_GPU)[-2:] == [0, 0]
    assert len(gauges.of(prometheus.SAMPLES)) == 2, "nothing trains any more"
    assert len(gauges.made) == len(set(gauges.made)), "each is made once"


def test_a_rank_that_tells_nothing_new_has_no_throughput(clock: list[float], gauges: Gauges) -> None:
    history = History(SCORING, DEVICES, epochs=2)
    exporter = TrainingExporter("mine", history, dict)
    exporter.update()
    assert gauges.of(prometheus.TRAINING_SAMPLES) == []
    for step, expected in ((2, 2), (2, 2), (3, 4)):
        if history.last is None or history.last.step != step:
            history.advance(replace(PROGRESS, step=step))
        clock[0] += 2
        exporter.update()
        assert len(gauges.of(prometheus.TRAINING_SAMPLES)) == expected
    assert len(gauges.of(prometheus.RETRIES)) == 4


def test_a_fault_ends_the_export_alone(caplog: pytest.LogCaptureFixture, gauges: Gauges) -> None:
    records, gauges.fault = swept(), OSError("no")
    exporter = SweepExporter("mine", records)
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            exporter.update(records.snapshot(), {})
        exporter.finish(records.snapshot())
    assert len(caplog.records) == 1
    assert gauges.set == []


def test_a_throughput_that_is_no_number_is_not_set(gauges: Gauges) -> None:
    records = Records(1, SCORING, DEVICES, epochs=None)
    records.start(Trial("t0", 0, {}))
    broken = replace(records.snapshot(), samples_per_s={0: float("nan"), 1: float("inf")})
    SweepExporter("mine", records).update(broken, {})
    assert gauges.of(prometheus.SAMPLES) == []
    assert sum(gauges.of(prometheus.TRIALS)) == 1, "the others are"


def test_ray_takes_the_names() -> None:
    from ray.util.metrics import Gauge

    for metric in prometheus.METRICS:
        gauge = Gauge(metric.name, metric.description, metric.tags)
        assert gauge.info["tag_keys"] == metric.tags
        assert not gauge._discard_metric
        gauge.set(1.0, dict.fromkeys(metric.tags, "x"))
        assert not metric.name.endswith("_total"), "Prometheus keeps that for counters"
