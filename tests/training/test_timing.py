"""Trainings in windows: the work that is counted is the work that is done, and between windows there is none."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raygpu.config.sections import Way
from raygpu.config.source import Source, locate
from raygpu.search.trials import Trial
from raygpu.training import timing
from raygpu.training.base import Settings
from raygpu.training.timing import TrainingBenchmark, WorkWindow, _Runner, covered
from tests.models import NUM_TRAIN, few

ROOT = Path(__file__).parents[2]
Make = Callable[..., TrainingBenchmark]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Make]:
    made: list[TrainingBenchmark] = []

    def make(way: Way, source: Source, code: Any, count: int = 1, **hp: Any) -> TrainingBenchmark:
        splits = few() if source.kind in ("torch", "keras") else None
        trials = [Trial(Trial.name(i), i, hp) for i in range(count)]
        made.append(TrainingBenchmark(way, source, code, splits, trials, Settings(1000, 1, "float32", tmp_path)))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_one_torch_training(bench: Make) -> None:
    own = bench("process", *locate("tests.models:Mlp", ROOT), hidden=8, batch_size=64)
    assert own.warm_up() > 0
    (window,) = own.window(time.time(), 0.05)
    assert window.seconds >= 0.04
    # Whole batches, from whichever on: an epoch has 64 + 64 + 64 + 8 samples.
    assert window.work % NUM_TRAIN in (0, 8, 64, 72, 128, 136, 192)
    assert (own.evaluation_s() or 0) > 0


def test_an_array_counts_every_member(bench: Make) -> None:
    own = bench("fused", *locate("tests.models:Mlp", ROOT), count=3, hidden=8, batch_size=64)
    own.warm_up()
    (window,) = own.window(time.time(), 0.05)
    assert window.work % (3 * 64) == 0
    assert (own.evaluation_s() or 0) > 0


def test_threads_work_at_the_same_time(bench: Make) -> None:
    source, code = locate("tests.pack_functions:steady", ROOT)
    own = bench("threads", source, code, count=3, pause_s=0.02)
    own.warm_up()
    windows = own.window(time.time(), 0.2)
    assert len(windows) == 3
    assert all(1 <= window.work <= 11 for window in windows), "sleeping takes no processor"
    assert own.evaluation_s() is None


def test_threads_of_torch_have_no_denormal_numbers(bench: Make) -> None:
    import torch

    source, code = locate("tests.models:Mlp", ROOT)
    own = bench("threads", source, code, count=2, hidden=8)
    assert own._all(lambda runner: (torch.tensor(1e-40) * 1.0).item()) == [0.0, 0.0]


def test_a_function_that_ends_begins_anew(bench: Make) -> None:
    own = bench("process", *locate("tests.pack_functions:steady", ROOT), reports=4, pause_s=0.001)
    own.warm_up()
    (window,) = own.window(time.time(), 0.3)
    assert window.work > 8
    own.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "t0000"]


def test_one_that_never_reports_is_a_fault(bench: Make) -> None:
    own = bench("process", *locate("tests.pack_functions:silent", ROOT))
    with pytest.raises(RuntimeError, match="ended without a report"):
        own.warm_up()


def test_what_a_training_raises_comes_out(bench: Make) -> None:
    own = bench("process", *locate("tests.pack_functions:raises", ROOT), after=2)
    own.warm_up()
    with pytest.raises(ValueError, match="meant to fail"):
        own.window(time.time(), 0.05)


def test_a_script_stands_still_between_windows(bench: Make, tmp_path: Path) -> None:
    body = (
        "import time\nwhile True:\n    print('{\"loss\": 1}', flush=True)\n"
        f"    open('{tmp_path}/ticks', 'a').write('.')\n    time.sleep(0.01)\n"
    )
    (tmp_path / "tick.py").write_text(body)
    own = bench("process", Source("command", f"{sys.executable} tick.py", str(tmp_path)), None)
    own.warm_up()
    ticks = (tmp_path / "ticks").stat().st_size
    time.sleep(0.4)
    assert (tmp_path / "ticks").stat().st_size <= ticks + 1
    for _ in range(2):
        time.sleep(0.4)
        (window,) = own.window(time.time(), 0.3)
        assert 1 <= window.work <= window.seconds / 0.01 + 2, "nothing that was reported before"


def test_a_chunk_shrinks_where_steps_take_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock of the test's own, which other work on the machine does not move."""
    now, takes = 0.0, 0.00005

    def steps() -> Iterator[int]:
        nonlocal now
        while True:
            now += takes
            yield 1

    monkeypatch.setattr(
        timing, "time", SimpleNamespace(time=lambda: now, perf_counter=lambda: now, sleep=lambda _: None)
    )
    runner = _Runner(steps(), lambda: None)
    runner.warm_up()
    assert runner.chunk == pytest.approx(timing.CHUNK_S / takes, abs=1)
    takes = 0.02
    runner.chunk = 64
    assert runner.window(now, 0.01).work < 64
    assert runner.chunk <= 16


def test_one_that_comes_late_is_timed_for_as_long_as_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock of the test's own. A process that heard too late of its window was timed for a single chunk."""
    now = 0.0

    def steps() -> Iterator[int]:
        nonlocal now
        while True:
            now += 0.001
            yield 1

    monkeypatch.setattr(
        timing, "time", SimpleNamespace(time=lambda: now, perf_counter=lambda: now, sleep=lambda _: None)
    )
    runner = _Runner(steps(), lambda: None)
    runner.warm_up()
    late = runner.window(now - 30.0, 1.0)
    assert late.seconds == pytest.approx(1.0, abs=0.05)
    assert late.rate == pytest.approx(1000)
    assert late.since < late.began < late.ended < late.until


def test_rates_add_up_only_where_all_work_at_the_same_time() -> None:
    one = WorkWindow(100, 1.0, began=10.15, since=10.0, until=11.3)
    assert covered([one]) == 1.0
    a_little_later = WorkWindow(100, 1.0, began=10.25, since=10.1, until=11.4)
    assert covered([one, a_little_later]) == 1.0, "the lead covers it"
    late = WorkWindow(300, 1.0, began=10.85, since=10.7, until=12.0)
    assert covered([one, late]) == pytest.approx(0.45)
    apart = WorkWindow(300, 1.0, began=12.0, since=11.8, until=13.0)
    assert covered([one, apart]) == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("way", ["process", "split"])
def test_keras(way: str) -> None:
    """In a process of its own: TensorFlow splits a device before it starts, and only once."""
    import subprocess

    code = f"""
import time
from pathlib import Path
from raygpu.config.source import locate
from raygpu.training.base import Settings
from raygpu.training.timing import TrainingBenchmark
from raygpu.search.trials import Trial
from tests.models import NUM_TRAIN, few
source, code = locate("tests.keras_cases:FewKeras", Path())
count = 2 if {way!r} == "split" else 1
trials = [Trial(Trial.name(i), i, {{"hidden": 8, "batch_size": 64}}) for i in range(count)]
bench = TrainingBenchmark({way!r}, source, code, few(), trials, Settings(1000, 2, "float32", Path()))
bench.warm_up()
places = [runner.steps.gi_frame.f_locals["self"].model.weights[0].value.device for runner in bench._runners]
windows = bench.window(time.time(), 0.1)
assert len(windows) == count and all(window.work >= 64 for window in windows), windows
assert bench.evaluation_s() > 0
bench.close()
print(places)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    count = 2 if way == "split" else 1
    assert all(f"CPU:{place}" in done.stdout for place in range(count)), done.stdout
