"""The kept profiles that tell of the training in a file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raygpu.planning.profiles import Point, Profile, Subject
from raygpu.records.profile_store import ProfileStore
from raygpu.search.trials import Trial
from raygpu.workflow.packing import subject_of
from raygpu.workflow.profile_lookup import kept, wanted_training

VERSIONS = {"raygpu": "1", "code": "abc", "driver": "580"}
OWN = Subject("a:B", {"hidden": "64"}, "f32", "float32", "NVIDIA A100", 40.0, 16, VERSIONS)
TRIALS = [Trial(f"t000{i}", 0, {"hidden": hidden, "lr": 0.1 * i}) for i, hidden in enumerate((64, 128, 128))]


def profile(measured_at: str = "2026-11-01", **changes: Any) -> Profile:
    return Profile(replace(OWN, **changes), 100, (Point("process", 1, 100.0, 1.0),), measured_at=measured_at)


def test_one_profile_of_each_type_of_device() -> None:
    here, there = profile(), profile(device="NVIDIA L4", device_gib=22.5, num_cpus=4)
    assert kept([here, there], OWN, TRIALS) == [here, there]


def test_the_first_trial_s_comes_first_then_that_of_the_most_trials() -> None:
    first, second = profile(), profile(hyperparameters={"hidden": "128"})
    assert kept([second, first], OWN, TRIALS) == [first]
    rare = profile(hyperparameters={"hidden": "128", "lr": "0.2"}, measured_at="2026-11-05")
    assert kept([rare, second], OWN, TRIALS) == [second]
    assert kept([profile(hyperparameters={"hidden": "256"})], OWN, TRIALS) == []


@pytest.mark.parametrize(
    "changes",
    [{"source": "a:C"}, {"data": "f64"}, {"precision": "bf16"}, {"versions": VERSIONS | {"code": "def"}}],
)
def test_another_training_s_profile_is_none(changes: dict[str, Any]) -> None:
    assert kept([profile(**changes)], OWN, TRIALS) == []


def test_another_machine_s_driver_is_no_other_training() -> None:
    assert len(kept([profile(versions=VERSIONS | {"driver": "570"})], OWN, TRIALS)) == 1


FILE = """
experiment = "train.py:train"
profiles = "{folder}/profiles"

[{table}]
lr = 0.1
"""


@pytest.mark.parametrize("table", ["space", "hyperparameters"])
def test_a_file_of_a_pack_or_of_a_training(table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.py").write_text("print('imported')\ndef train(config): ...\n")
    file = tmp_path / "mine.toml"
    file.write_text(FILE.format(folder=tmp_path, table=table))
    found = wanted_training(file)
    assert (found.name, found.needs) == ("mine.toml", ())
    assert ("with the file of a sweep" in found.advice) == (table == "hyperparameters")
    assert "imported" not in capsys.readouterr().out, "the output may be JSON"

    from raygpu.config import PackConfig, load

    config = load(file, {}, PackConfig)
    _, _, subject = subject_of(config, Trial("t0000", 0, {"lr": 0.1}), [], tmp_path, lambda lines: None)
    points = tuple(Point("process", n, 100.0 * n, float(n), host_gib=0.5) for n in (1, 2))
    ProfileStore.at(config.profiles).keep(Profile(subject, None, points))
    (need,) = wanted_training(file).needs
    assert (need.device, need.most) == (subject.device, 2)
