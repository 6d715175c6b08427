"""`raygpu report`: the report of a sweep and of a training, the comparison, and wrong inputs."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raygpu.records.run_directory import RunDirectory
from raygpu.workflow.run_report import write_report_of
from raygpu.write_report import main
from tests.measured_cases import balance_folder, pack_folder, place_folder
from tests.report_cases import record, sweep_folder, training_folder

Make = Callable[[Path], RunDirectory]


def test_a_sweep_has_a_page_and_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = sweep_folder(tmp_path / "runs" / "digits")
    assert main([str(run.path)]) == 0
    assert capsys.readouterr().out.strip() == str(run.report)
    page = run.report.read_text()
    for told in ("t0019", "gpu.fraction 0.5", "raygpu train", "all 20 trials, the best first", "went on after a lost"):
        assert told in page
    assert sorted(path.name for path in run.plots.iterdir()) == ["gpus.png", "score.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in run.plots.iterdir())
    assert not list(run.path.glob(".*tmp"))


def test_a_training_has_a_page(tmp_path: Path) -> None:
    run = training_folder(tmp_path / "runs" / "winner")
    assert main([str(run.path)]) == 0
    page = run.report.read_text()
    assert "From trial t0007 of the sweep earlier." in page
    assert "75" in page  # the faster GPU's part of the samples
    assert [path.name for path in run.plots.iterdir()] == ["score.png"]


def test_two_runs_stand_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = sweep_folder(tmp_path / "a"), sweep_folder(tmp_path / "b", 12)
    assert main([str(first.path), str(second.path), "--out", str(tmp_path / "both.html")]) == 0
    page = (tmp_path / "both.html").read_text()
    assert "2 runs side by side" in page
    assert '<td class="text">trials</td><td class="text">20</td><td class="text">12</td>' in page
    assert not first.report.exists()
    assert capsys.readouterr().out.strip() == str(tmp_path / "both.html")


def test_a_sweep_without_a_timeline_says_so(tmp_path: Path) -> None:
    run = sweep_folder(tmp_path / "old")
    run.timeline.unlink()
    assert main([str(run.path)]) == 0
    assert "This run has no timeline.jsonl" in run.report.read_text()


def test_a_sweep_without_any_score_has_a_page(tmp_path: Path) -> None:
    run = sweep_folder(tmp_path / "bad", trials=[record(i, None, "failed", lr=0.1) for i in range(3)])
    assert main([str(run.path)]) == 0
    assert "No trial has a finite accuracy." in run.report.read_text()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "read nothing; folders of runs are wanted"),
        (["--wide", "x"], "read --wide; folders of runs are wanted"),
        (["nowhere"], "report: nowhere is no run's folder"),
    ],
)
def test_wrong_words_are_one_line(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert told in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_a_run_without_an_epoch_is_refused_with_the_way_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = sweep_folder(tmp_path / "half")
    run.summary.unlink()
    run.timeline.unlink()
    assert main([str(run.path)]) == 2
    assert f"raygpu sweep --resume {run.path}" in capsys.readouterr().err


def test_a_run_under_way_has_a_page_of_what_it_has_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, other = sweep_folder(tmp_path / "half"), sweep_folder(tmp_path / "whole")
    run.summary.unlink()
    run.trials_csv.unlink()
    lines = run.timeline.read_text().splitlines()
    run.timeline.write_text("\n".join(line for line in lines if '"run"' not in line or '"t0018"' not in line))
    assert main([str(run.path)]) == 0
    page = run.report.read_text()
    assert "19 of 20" in page
    assert f"raygpu sweep --resume {run.path}" in page
    assert '<td class="text">t0018</td><td class="number">0.718</td><td class="text">under way</td>' in page
    assert not run.plots.exists()
    assert main([str(run.path), str(other.path)]) == 2
    assert "has not ended; only runs with an end stand side by side" in capsys.readouterr().err


def test_a_training_under_way_has_a_page_too(tmp_path: Path) -> None:
    run = training_folder(tmp_path / "half")
    run.summary.unlink()
    assert main([str(run.path)]) == 0
    assert f"raygpu train --resume {run.path}" in run.report.read_text()


def go_back(run: RunDirectory, name: str) -> None:
    """Note that a trial, or the training, begins again."""
    with run.timeline.open("a") as file:
        file.write(json.dumps({"event": "again", "trial": name, "at": 1.0, "after": 0}) + "\n")


def test_a_trial_that_begins_again_is_left_out_until_its_first_epoch(tmp_path: Path) -> None:
    run = sweep_folder(tmp_path / "run")
    go_back(run, "t0018")
    assert main([str(run.path)]) == 0, "of an ended sweep, the trial failed then"
    run.summary.unlink()
    assert main([str(run.path)]) == 0
    page = run.report.read_text()
    assert '<td class="text">t0014</td>' in page
    assert '<td class="text">t0018</td>' not in page


def test_a_training_that_begins_again_has_nothing_to_show_yet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = training_folder(tmp_path / "half")
    run.summary.unlink()
    go_back(run, "training")
    assert main([str(run.path)]) == 2
    assert "no epoch in timeline.jsonl yet" in capsys.readouterr().err


def test_a_resumed_run_is_shown_as_it_is_now_and_not_as_it_ended_before(tmp_path: Path) -> None:
    run = sweep_folder(tmp_path / "run", trials=[record(i, 0.5, "interrupted" if i else "stopped") for i in range(2)])
    ended = run.read_summary() or {}
    run.begin_again()
    assert main([str(run.path)]) == 0
    page = run.report.read_text()
    assert "Plan and outcome" in page
    assert "run was resumed at" in page
    noted = {"event": "epochs", "trial": "t0001", "at": 5e9, "rows": [[4, {"validation/accuracy": 0.96}]]}
    with run.timeline.open("a") as file:
        file.write(json.dumps(noted) + "\n")
    assert main([str(run.path)]) == 0
    page = run.report.read_text()
    assert "1 of 2" in page
    assert '<td class="text">t0001</td><td class="number">0.96</td><td class="text">under way</td>' in page
    assert '<td class="text">gelu</td>' in page
    assert "run was resumed at" not in page
    assert '<td class="text">t0000</td><td class="number">0.5</td><td class="text">stopped</td>' in page
    assert "Plan and outcome" not in page
    run.write_summary(ended)
    assert main([str(run.path)]) == 0
    assert "Plan and outcome" in run.report.read_text()
    assert "run was resumed at" not in run.report.read_text()


def test_a_comparison_says_which_run_was_resumed_since(tmp_path: Path) -> None:
    runs = [sweep_folder(tmp_path / name) for name in ("first", "second")]
    runs[1].begin_again()
    out = tmp_path / "comparison.html"
    assert main([*(str(run.path) for run in runs), "--out", str(out)]) == 0
    assert "second was resumed at" in out.read_text()
    assert "first was resumed at" not in out.read_text()


@pytest.mark.parametrize("make", [pack_folder, place_folder, balance_folder])
def test_a_measurement_has_a_page(make: Make, tmp_path: Path) -> None:
    run = make(tmp_path / "measured")
    assert main([str(run.path)]) == 0
    assert "<h2" in run.report.read_text()
    assert not run.plots.exists()


def test_a_summary_that_lacks_what_the_page_needs_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = sweep_folder(tmp_path / "run")
    run.run.write_text(json.dumps({"kind": "balance", "source_folder": "."}))
    assert main([str(run.path)]) == 2
    captured = capsys.readouterr().err
    assert "its files have not what the report needs ('predicted_samples_per_s'); another raygpu wrote" in captured
    assert captured.count("\n") == 1


def test_a_file_that_cannot_be_written_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = sweep_folder(tmp_path / "run")
    assert main([str(run.path), "--out", str(tmp_path / "missing" / "x.html")]) == 2
    assert "cannot be written: No such file or directory" in capsys.readouterr().err


def test_a_report_that_a_full_disk_does_not_take_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")  # without a name, as of a write

    monkeypatch.setattr("raygpu.write_report.write_report", full)
    run = sweep_folder(tmp_path / "run")
    assert main([str(run.path)]) == 2
    assert f"{run.report}: cannot be written: No space left on device" in capsys.readouterr().err
    run.summary.write_text("[]")
    assert main([str(run.path)]) == 2
    assert "summary.json: cannot be read (TypeError: a list in the place of an object)" in capsys.readouterr().err


def test_a_report_that_fails_never_ends_the_run(tmp_path: Path) -> None:
    run = sweep_folder(tmp_path / "run")
    run.trials_csv.write_text("id,score\n1\n")
    lines: list[str] = []
    assert write_report_of(run, lines.append) == []
    assert len(lines) == 1
    assert lines[0].startswith("no report: ")
    assert lines[0].endswith(f"again by: raygpu report {run}")


def test_gpus_that_were_used_too_little_are_told_at_the_end_and_in_the_report(tmp_path: Path) -> None:
    run = sweep_folder(tmp_path / "run")
    stay = {"event": "run", "name": "t0000", "trials": ["t0000"], "share": 1.0, "gpu": 7, "end": "complete"}
    noted: list[dict[str, Any]] = [stay | {"from": 1000.0, "to": 1200.0}]
    noted += [{"event": "gpu", "gpu": 7, "at": 1000.0 + 2 * i, "util_pct": 10.0} for i in range(101)]
    noted += [{"event": "host", "at": 1000.0 + 2 * i, "cpu_pct": 99.0} for i in range(101)]
    with run.timeline.open("a") as file:
        file.write("".join(f"{json.dumps(line)}\n" for line in noted))
    lines = write_report_of(run, print)
    idle = "GPU 7 was idle, without any kernel, for 90 % of 3 min 20 s with trials on it"
    idle += "; the CPUs were 99 % busy meanwhile"
    assert lines[0] == idle
    assert lines[1].startswith("the CPUs bind, not the GPU, often by loading data")
    assert lines[2].startswith("the report, for a browser: ")
    assert f"<p>{idle}.</p>" in run.report.read_text()


def test_a_training_holds_its_gpus_from_begin_to_end(tmp_path: Path) -> None:
    run = training_folder(tmp_path / "run")
    noted: list[dict[str, Any]] = [{"event": "start", "at": 1000.0}]
    noted += [{"event": "gpu", "gpu": 0, "at": 1000.0 + 2 * i, "util_pct": 10.0} for i in range(101)]
    run.timeline.write_text("".join(f"{json.dumps(line)}\n" for line in noted))
    assert write_report_of(run, print)[0].startswith("GPU 0 was idle, without any kernel, for 90 % of 3 min 20 s")
