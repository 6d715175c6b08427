"""What is found again in a folder of profiles, and what is discarded."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raygpu.errors import BadInput
from raygpu.planning.profiles import Point
from raygpu.records.profile_store import ProfileStore
from tests.planning.test_profiles import SUBJECT, points, profile


def test_what_is_kept_is_found_again(tmp_path: Path) -> None:
    store = ProfileStore(tmp_path / "a" / "b")
    store.check()
    kept = profile(points("process", {1: 1.0, 2: 1.7}), [Point("fused", 3, fault="out of memory")], notes=("a note",))
    path = store.keep(kept)
    assert store.find(SUBJECT) == kept
    assert list(store.all()) == [kept]
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    again = replace(kept, measured_at="2026-01-01")
    assert store.keep(again) == path
    assert store.find(SUBJECT) == again


def test_what_was_not_measured_again_stays(tmp_path: Path) -> None:
    store = ProfileStore(tmp_path)
    store.keep(profile(points("process", {1: 1.0, 2: 1.7}), points("fused", {8: 3.0})))
    store.keep(profile(points("process", {1: 1.0, 2: 1.5})))
    found = store.find(SUBJECT)
    assert found is not None
    assert [(point.n, point.gain) for point in found.of("process")] == [(1, 1.0), (2, 1.5)]
    assert [(point.n, point.gain) for point in found.of("fused")] == [(8, 3.0)]


@pytest.mark.parametrize("versions", [{"raygpu": "2", "torch": "2.13"}, {"raygpu": "1"}])
def test_other_versions_are_passed_over_until_they_are_measured(tmp_path: Path, versions: dict[str, str]) -> None:
    """To look, as with --dry-run after an edit of the experiment's file, costs no measurement."""
    store, other = ProfileStore(tmp_path), replace(SUBJECT, versions=versions)
    store.keep(profile(points("process", {1: 1.0})))
    assert store.find(other) is None
    assert store.find(SUBJECT) is not None
    store.keep(replace(profile(points("process", {1: 1.0, 2: 1.5})), subject=other))
    assert store.find(SUBJECT) is None
    found = store.find(other)
    assert found is not None
    assert len(found.points) == 2


def test_the_driver_counts_where_both_have_one(tmp_path: Path) -> None:
    """A login node has none."""
    store, theirs = ProfileStore(tmp_path), {**SUBJECT.versions, "driver": "5"}
    store.keep(replace(profile(points("process", {1: 1.0})), subject=replace(SUBJECT, versions=theirs)))
    assert store.find(SUBJECT) is not None
    assert store.find(replace(SUBJECT, versions=theirs)) is not None
    store.keep(profile(points("fused", {8: 2.0})))
    found = store.find(replace(SUBJECT, versions=theirs))
    assert found is not None
    assert [point.way for point in found.points] == ["fused", "process"]
    assert store.find(replace(SUBJECT, versions={**theirs, "driver": "6"})) is None


@pytest.mark.parametrize(
    "change",
    [{"device": "H100"}, {"hyperparameters": {"hidden": "64"}}, {"precision": "bf16"}, {"num_cpus": 4}, {"data": ""}],
)
def test_another_subject_is_another_file(tmp_path: Path, change: dict[str, Any]) -> None:
    store = ProfileStore(tmp_path)
    store.keep(profile(points("process", {1: 1.0})))
    other = replace(SUBJECT, **change)
    assert store.find(other) is None
    assert store.find(SUBJECT) is not None
    assert SUBJECT.same_training(other) == (set(change) <= {"device", "num_cpus"})


@pytest.mark.parametrize("text", ["", "{", "[]", '{"points": [{"way": "process"}], "subject": {}}', '{"subject": 1}'])
def test_a_file_that_is_no_profile_is_passed_over(tmp_path: Path, text: str) -> None:
    store = ProfileStore(tmp_path)
    (tmp_path / SUBJECT.file_name).write_text(text)
    assert store.find(SUBJECT) is None
    assert list(store.all()) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"samples_per_s": 1000.0', '"samples_per_s": "fast"'),
        ('"samples_per_s": 1000.0', '"samples_per_s": NaN'),
        ('"samples_per_s": 1000.0', '"samples_per_s": -1'),
        ('"n": 1', '"n": null'),
        ('"n": 1', '"n": 1.5'),
        ('"way": "process"', '"way": "magic"'),
        ('"measured_at": ""', '"measured_at": null'),
        ('"num_train": 1437', '"num_train": "all"'),
        ('"hidden": "128"', '"hidden": null'),
        ('"ended_s": {}', '"ended_s": null'),
        ('"num_cpus": 8', '"num_cpus": "eight"'),
        ('"device": "A100"', '"device": null'),
    ],
)
def test_a_file_with_values_of_other_types_is_passed_over(tmp_path: Path, old: str, new: str) -> None:
    store = ProfileStore(tmp_path)
    path = store.keep(profile(points("process", {1: 1.0})))
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    assert list(store.all()) == []
    assert store.find(SUBJECT) is None


def test_a_file_without_hyperparameters_is_passed_over(tmp_path: Path) -> None:
    store = ProfileStore(tmp_path)
    path = store.keep(profile(points("process", {1: 1.0})))
    for table in ("hyperparameters", "versions"):
        values = json.loads(path.read_text())
        values["subject"][table] = None
        path.with_name("other.json").write_text(json.dumps(values))
        assert len(list(store.all())) == 1


def test_where_they_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert ProfileStore.at(None).folder == Path("/cache/raygpu/profiles")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert ProfileStore.at(None).folder == tmp_path / ".cache/raygpu/profiles"
    assert ProfileStore.at("~/mine").folder == tmp_path / "mine"


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (Path("/proc/profiles"), Path("/proc"), tmp_path / "file"):
        with pytest.raises(BadInput, match=f"profiles: {folder} cannot be written .*; choose another --profiles"):
            ProfileStore(folder).check()


def test_a_folder_that_can_no_longer_be_written_costs_no_measurement(tmp_path: Path) -> None:
    measured = profile(points("process", {1: 1.0}))
    assert ProfileStore(tmp_path).told(measured) == f"kept for later sweeps in {tmp_path / SUBJECT.file_name}"
    (tmp_path / "file").touch()
    for folder in (Path("/proc/profiles"), tmp_path / "file"):
        assert ProfileStore(folder).told(measured).startswith(f"not kept: {folder} cannot be written (")
        assert ProfileStore(folder).find(SUBJECT) is None
        assert list(ProfileStore(folder).all()) == []


def test_points_in_doubt_are_not_kept_and_replace_nothing(tmp_path: Path) -> None:
    store = ProfileStore(tmp_path)
    store.keep(profile(points("fused", {8: 2.0, 13: 3.0})))
    wrong = Point("fused", 13, samples_per_s=678e3, gain=16.9, doubt="its own windows measured less")
    found = profile(points("fused", {8: 2.1}), [wrong])
    assert [p.n for p in found.of("fused")] == [8]
    store.keep(found)
    kept = store.find(SUBJECT)
    assert kept is not None
    assert [(p.n, p.gain) for p in kept.of("fused")] == [(8, 2.1), (13, 3.0)]


def test_a_file_that_tells_nothing_of_the_probe_s_time_is_read(tmp_path: Path) -> None:
    store = ProfileStore(tmp_path)
    path = store.keep(profile(points("process", {1: 1.0}), notes=("process: 4 at once not tried: a quarter",)))
    path.write_text(path.read_text().replace(',\n "ended_s": {}', ""))
    assert "ended_s" not in path.read_text()
    assert store.find(SUBJECT) == profile(points("process", {1: 1.0})), "without the note of that moment"


def test_what_failed_earlier_may_not_fail_again(tmp_path: Path) -> None:
    store = ProfileStore(tmp_path)
    busy = [Point("fused", 8, fault="out of memory")]
    store.keep(profile(points("process", {1: 1.0}), busy, notes=("fused: 8 at once failed", "mps: no")))
    store.keep(profile(points("process", {1: 1.0}), points("fused", {4: 2.0})))
    found = store.find(SUBJECT)
    assert found is not None
    assert [point.n for point in found.of("fused")] == [4]
    assert found.notes == ("mps: no",)
