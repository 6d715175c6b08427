"""A run's timeline: what is written is what is read, after a crash and a full disk, too."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from raygpu.records.timeline import Timeline, read
from raygpu.search.trials import EpochResult
from tests.full_disk import full_for


def test_what_is_written_is_read(tmp_path: Path) -> None:
    timeline = Timeline(tmp_path / "timeline.jsonl", "accuracy")
    timeline.hold("x1", "a0000", ["t0000", "t0001"], 1 / 3)
    timeline.place("x1", 1)
    timeline.epochs("t0000", [EpochResult(1, {"train/loss": 2.0, "validation/accuracy": 0.25, "lr": 0.1})])
    timeline.epochs("t0000", [EpochResult(2, {"train/loss": math.nan, "validation/accuracy": 0.5, "lr": 0.1})])
    timeline.gpu(1, {"samples_per_s": 1234567.0, "power_w": 301.123456})
    timeline.release("x1", "complete")
    timeline.close()

    found = read(tmp_path / "timeline.jsonl")
    (stay,) = found.occupancies
    assert (stay.name, stay.trial_ids, stay.gpu, stay.share) == ("a0000", ("t0000", "t0001"), 1, 0.3333)
    assert stay.end == "complete"
    assert found.starts[0] <= stay.began_s <= stay.ended_s
    assert list(found.curves["t0000"][1].items()) == [("validation/accuracy", 0.25), ("train/loss", 2.0)]
    assert math.isnan(found.curves["t0000"][2]["train/loss"])
    assert found.readings[1][0][1] == {"samples_per_s": 1234570.0, "power_w": 301.123}


def test_a_later_start_adds_to_the_file_and_a_repeated_epoch_counts_once(tmp_path: Path) -> None:
    for value in (1.0, 2.0):
        timeline = Timeline(tmp_path / "timeline.jsonl", "loss")
        timeline.epochs("t0000", [EpochResult(1, {"loss": value})])
        timeline.close()
    found = read(tmp_path / "timeline.jsonl")
    assert len(found.starts) == 2
    assert found.curves == {"t0000": {1: {"loss": 2.0}}}


def test_a_line_that_a_crash_cut_off_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "timeline.jsonl"
    timeline = Timeline(path, "loss")
    timeline.epochs("t0000", [EpochResult(1, {"loss": 1.0})])
    timeline.close()
    with path.open("a") as file:
        file.write('{"event":"gpu","gpu":0,"a\n[1]\n{"event":"run","name":"t0000"}\n')
    found = read(path)
    assert found.curves["t0000"] == {1: {"loss": 1.0}}


def test_what_still_holds_a_gpu_at_the_end_was_interrupted(tmp_path: Path) -> None:
    timeline = Timeline(tmp_path / "timeline.jsonl")
    timeline.hold("x1", "t0000", ["t0000"], 0.5)
    timeline.hold("x1", "t0000", ["t0000"], 0.5)  # was paused meanwhile
    timeline.release("never held", "lost")
    timeline.close()
    assert [stay.end for stay in read(tmp_path / "timeline.jsonl").occupancies] == ["interrupted", "interrupted"]


@pytest.mark.parametrize("room", [0, 20])
def test_what_a_full_disk_did_not_take_is_written_once_there_is_space(room: int, tmp_path: Path) -> None:
    path = tmp_path / "timeline.jsonl"
    timeline = Timeline(path, "loss")
    timeline.epochs("t0000", [EpochResult(1, {"loss": 1.0})])
    timeline.flush()
    before = path.read_bytes()
    with full_for(path, room):
        for epoch in (2, 3):
            timeline.epochs("t0000", [EpochResult(epoch, {"loss": 1.0})])
            timeline.flush()
            assert path.read_bytes() == before
    timeline.epochs("t0000", [EpochResult(4, {"loss": 1.0})])
    assert timeline.close() is None
    assert list(read(path).curves["t0000"]) == [1, 2, 3, 4]
    assert len(path.read_text().splitlines()) == 5


def test_a_disk_that_never_takes_more_fails_nothing(tmp_path: Path) -> None:
    timeline = Timeline(tmp_path / "missing" / "timeline.jsonl")
    timeline.flush()
    timeline.gpu(0, {"samples_per_s": 1.0})
    assert timeline.close() == (
        f"{tmp_path}/missing/timeline.jsonl cannot be written: No such file or directory; its last 2 lines are lost"
    )
    assert read(tmp_path / "missing" / "timeline.jsonl").starts == []


def test_the_start_after_a_crash_is_no_part_of_the_line_that_it_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "timeline.jsonl"
    Timeline(path).close()
    with path.open("a") as file:
        file.write('{"event":"gpu","gpu":0,"a')
    Timeline(path).close()
    assert len(read(path).starts) == 2


def test_many_losses_keep_the_score_first(tmp_path: Path) -> None:
    timeline = Timeline(tmp_path / "timeline.jsonl", "auc")
    metrics = {f"part{i}_loss": 1.0 for i in range(9)} | {"validation/auc": 0.5, "auc_of_no_one": 3.0}
    timeline.epochs("t0000", [EpochResult(1, metrics)])
    timeline.close()
    names = list(read(tmp_path / "timeline.jsonl").curves["t0000"][1])
    assert names == ["validation/auc", "part0_loss", "part1_loss", "part2_loss"]


def test_epochs_of_an_attempt_that_was_given_up_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "timeline.jsonl"
    timeline = Timeline(path, "loss")
    timeline.epochs("t0000", [EpochResult(epoch, {"loss": 1.0}) for epoch in range(1, 7)])
    timeline.close()
    later = Timeline(path, "loss")
    assert not later.go_back("t0001", 0)
    assert not later.go_back("t0000", 6)
    assert later.go_back("t0000", 2)
    assert not later.go_back("t0000", 2)
    later.epochs("t0000", [EpochResult(3, {"loss": 5.0})])
    later.close()
    found = read(path)
    assert found.curves == {"t0000": {1: {"loss": 1.0}, 2: {"loss": 1.0}, 3: {"loss": 5.0}}}
    assert found.ended_s["t0000"].keys() == {1, 2, 3}
    assert found.furthest == {"t0000": 6}


def test_a_trial_that_begins_again_has_no_curve_until_its_next_epoch(tmp_path: Path) -> None:
    timeline = Timeline(tmp_path / "timeline.jsonl", "loss")
    for trial in ("t0000", "t0001"):
        timeline.epochs(trial, [EpochResult(1, {"loss": 1.0})])
    assert timeline.go_back("t0000", 0)
    timeline.flush()
    found = read(tmp_path / "timeline.jsonl")
    assert (list(found.curves), list(found.ended_s)) == (["t0001"], ["t0001"])
    assert found.furthest == {"t0000": 1, "t0001": 1}
    timeline.epochs("t0000", [EpochResult(1, {"loss": 2.0})])
    timeline.flush()
    assert read(tmp_path / "timeline.jsonl").curves["t0000"] == {1: {"loss": 2.0}}


def test_a_fault_without_a_number_is_named_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failed(*_: object) -> None:
        raise OSError("the file system is read-only")

    monkeypatch.setattr("raygpu.records.timeline.append_lines", failed)
    line = Timeline(tmp_path / "timeline.jsonl").close()
    assert line is not None
    assert "cannot be written: OSError: the file system is read-only;" in line
