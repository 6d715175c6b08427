"""Lines on GPUs that were used too little."""

from __future__ import annotations

from raygpu.cli.under_use_view import under_use_lines, waiting_lines
from raygpu.planning.under_use import Underutilization

IDLE = Underutilization(0, "idle", 160.0, 200.0)


def test_each_gpu_has_a_line_and_each_cause_an_advice() -> None:
    lines = under_use_lines(
        [IDLE, Underutilization(1, "idle", 150.0, 200.0), Underutilization(2, "empty", 90.0, 180.0)], "sweep", {}
    )
    assert lines[:3] == [
        "GPU 0 was idle, without any kernel, for 80 % of 3 min 20 s with trials on it",
        "GPU 1 was idle, without any kernel, for 75 % of 3 min 20 s with trials on it",
        "GPU 2 had no trial for 50 % of 3 min 0 s",
    ]
    assert lines[3].startswith("pack more trials on a GPU: raygpu pack measures how many gain")
    assert lines[4].startswith("a GPU without trials: fewer GPUs (--gpu.devices) or more trials")
    assert len(lines) == 5


def test_the_advice_fits_the_cause() -> None:
    (_, own) = under_use_lines([IDLE], "sweep", {"gpu": {"fraction": 0.5}})
    assert "--gpu.fraction auto measures how many" in own
    (line, advice) = under_use_lines([Underutilization(0, "idle", 160.0, 200.0, cpu_pct=97.0)], "sweep", {})
    assert line.endswith("; the CPUs were 97 % busy meanwhile")
    assert advice.startswith("the CPUs bind, not the GPU")
    (_, batch) = under_use_lines([IDLE], "train", {})
    assert "--global-batch" in batch


def test_a_hardly_filled_gpu_is_told_by_its_multiprocessors() -> None:
    (line, _) = under_use_lines([Underutilization(0, "light", 200.0, 200.0, sm_util_pct=12.0)], "sweep", {})
    assert line == (
        "GPU 0 was hardly filled in 3 min 20 s with trials on it; 12 % of its multiprocessors were busy on average"
    )


def test_without_any_there_is_no_line() -> None:
    assert under_use_lines([], "sweep", {}) == []


def test_a_wait_for_samples_is_told_of_if_it_is_long() -> None:
    (line,) = waiting_lines({"train": 30.0, "data": 70.0, "evaluation": 9.0})
    assert line.startswith("trainings waited for samples in 70 % of their time: have decoded samples kept")
    assert waiting_lines({"train": 80.0, "data": 20.0}) == []
    assert waiting_lines({"train": 1.0, "data": 9.0}) == []
    assert waiting_lines({"train": 80.0}) == []
    assert waiting_lines({}) == []
