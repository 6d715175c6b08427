"""The progress of a production training whose loop raygpu does not run: a function's."""

from __future__ import annotations

import io
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from raygpu.cli.training_view import TrainConsole, ending
from raygpu.config import TrainConfig
from raygpu.engines.cluster.prometheus import TRAINING_SAMPLES, of_training
from raygpu.planning.worker_devices import WorkerDevices
from raygpu.records.clock import Stages
from raygpu.records.device import Device
from raygpu.records.training_progress import Best, History, Progress, Restored
from raygpu.search.scoring import Scoring
from raygpu.search.trials import EpochResult
from raygpu.workflow.summary import summarize_training

PLACING = WorkerDevices(1, 1, 1, 1.0, 2.0, "", False, False)


def report(epoch: int, *, diverged: bool = False, **metrics: float) -> Progress:
    """Of a function: one report."""
    return Progress(
        epoch=epoch,
        step=1,
        steps=1,
        lr=None,
        wall_s=0.5,
        samples=(),
        rates=(),
        shares=(),
        noise=None,
        request="",
        result=EpochResult(epoch, metrics),
        diverged=diverged,
    )


@pytest.fixture
def history() -> History:
    """Of a function with two of five reports, on the first of two GPUs."""
    found = History(
        Scoring("score", maximize=True), [Device(0, "node", "0", "A"), Device(1, "node", "1", "B")], epochs=5
    )
    found.join(0, 0)
    for epoch in (1, 2):
        assert found.advance(report(epoch, score=float(epoch)))
    found.keep(2, 2.0, best=True)
    return found


def test_curves_have_no_values_that_do_not_exist(history: History) -> None:
    assert history.curves() == {}
    assert history.samples_per_s is None
    assert history.by_device() == {}
    assert history.metrics == {"score": 2.0}
    assert history.time_left_s is not None


def test_a_training_that_goes_on_has_time_left(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last steps may take longer than all earlier ones, on a machine that has become busy."""
    history.advance(report(4, score=4.0))
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 1e6)
    assert history.time_left_s == 1.0


def test_seconds_are_kept_by_activity(history: History) -> None:
    history.keep(2, 2.0, best=True, took_s=0.25)
    joining = history.spent.pop("joining")
    assert 0 <= joining < 60
    assert history.spent == {"program": 1.0, "evaluation": 0.0, "checkpoints": 0.25}, "a function runs its own loop"
    own = replace(report(3, score=3.0), samples=(100,), wall_s=2.0)
    history.advance(replace(own, result=EpochResult(3, {"score": 3.0}, 100, 2.0, validate_s=0.5)))
    assert history.spent == {"program": 1.0, "evaluation": 0.5, "checkpoints": 0.25, "train": 2.0}


def test_the_console_shows_metrics_and_no_speed(history: History) -> None:
    stream = io.StringIO()
    console = TrainConsole(stream=stream)
    console.start(history)
    console.update(history, {0: {"util_pct": 50.0}})
    console.stop(history)
    shown = stream.getvalue()
    assert "epoch 2/5 | score 2 | best checkpoint score 2 (epoch 2)" in shown
    for word in ("samples/s", "learning rate", "together", "shares", "nan", "None"):
        assert word not in shown


def test_the_table_has_the_device_and_its_readings(history: History) -> None:
    assert TrainConsole(stream=io.StringIO())._ranks(history, {0: {"util_pct": 50.0}}) == [["50 %", "gpu 0 A"]]


def test_prometheus_gets_no_samples(history: History) -> None:
    points = list(of_training("mine", history, history.last, {}))
    assert points
    assert TRAINING_SAMPLES not in [point.metric for point in points]


def test_the_summary_has_none(history: History) -> None:
    config = TrainConfig(experiment="train.py:train", name="mine", epochs=5)
    summary = summarize_training(config, history, PLACING, None, SimpleNamespace(kept=None), Stages())  # type: ignore[arg-type]
    assert [summary[name] for name in ("global_batch", "shares", "samples_per_s", "noise_scale")] == [None] * 4
    assert [gpu["samples_per_s"] for gpu in summary["gpus"]] == [None, None]
    assert summary["best"] == {"score": 2.0, "epoch": 2}


def test_one_that_ends_by_itself_has_nothing_left(history: History) -> None:
    assert not history.has_ended
    history.keep(2, 2.0, best=False, ended=True)
    assert history.has_ended
    assert history.time_left_s == 0.0
    lines = ending(TrainConfig(experiment="train.py:train", epochs=5), history, None)
    assert "the function ended by itself after 2 of 5 epochs" in lines


def test_what_comes_after_a_resume_is_new_from_its_epoch_on() -> None:
    again = History(Scoring("score", maximize=True), [Device(0, "node", "0", "A")], epochs=5)
    for epoch in (1, 2, 3):
        again.advance(report(epoch, score=1.0))
    again.restore(Restored(2, {"score": 1.0}, Best(1.0, 1)))
    again.join(0, 0)
    assert [again.advance(report(epoch, score=float(epoch))) for epoch in (3, 4)] == [True, True]
    assert again.curve() == [1.0, 1.0, 3.0, 4.0]
    assert not again.has_ended


def test_a_diverged_report_says_so(history: History) -> None:
    history.advance(report(3, diverged=True, score=float("nan")))
    lines = ending(TrainConfig(experiment="train.py:train", epochs=5), history, None)
    assert "diverged: a loss or the metric of epoch 3 is not finite" in lines
