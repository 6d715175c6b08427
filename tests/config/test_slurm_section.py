"""What may be asked of Slurm."""

from __future__ import annotations

import pytest

from raygpu.config import SlurmSection, SubmitConfig, SweepConfig, load, validated
from raygpu.config.slurm_section import contradictions, seconds, tasks
from raygpu.errors import BadInput


@pytest.mark.parametrize(
    ("time", "wanted"),
    [("90", 5400), ("90:30", 5430), ("2:00:00", 7200), ("1-12", 129600), ("1-0:30", 88200), ("2-1:02:03", 176523)],
)
def test_times_of_sbatch(time: str, wanted: int) -> None:
    assert seconds(time) == wanted


def test_indices_of_an_array() -> None:
    assert tasks("0-3") == [0, 1, 2, 3]
    assert tasks("1,5,7-8%2") == [1, 5, 7, 8]


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("time", "soon", "2:00:00"),
        ("gpus_per_node", "0", "h100:4"),
        ("mem", "64 GB", "64G"),
        ("array", "3-1", "a range counts upward"),
        ("array", "a", "0-3"),
        ("partition", "a b", "without spaces"),
        ("options", ["mail"], "no option of sbatch"),
        ("nodes", 0, "greater than or equal to 1"),
        ("gpu", 4, "did you mean 'slurm.qos'?"),
    ],
)
def test_a_wrong_value_is_one_line(key: str, value: object, wanted: str) -> None:
    with pytest.raises(BadInput) as caught:
        validated({"slurm": {key: value}}, SubmitConfig, "mine.toml")
    assert len(caught.value.faults) == 1
    assert caught.value.faults[0].startswith(f"mine.toml: slurm.{key}")
    if key != "gpu":
        assert wanted in caught.value.faults[0]


def test_values_that_contradict_each_other() -> None:
    assert contradictions(SlurmSection(time="1", signal_s=60)) != []
    assert contradictions(SlurmSection(time="2", signal_s=60)) == []
    assert contradictions(SlurmSection(time="0", signal_s=60)) == []  # no limit
    assert contradictions(SlurmSection(nodes=2)) != []
    assert contradictions(SlurmSection(nodes=2, gpus_per_node="1")) == []


def test_numbers_and_texts_with_commas_are_taken() -> None:
    found = SlurmSection.model_validate(
        {"gpus_per_node": 4, "time": 30, "modules": "python/3.11, arrow", "setup": "a, b"}
    )
    assert (found.gpus_per_node, found.time) == ("4", "30")
    assert found.modules == ("python/3.11", "arrow")
    assert found.setup == ("a, b",)


def test_a_command_leaves_the_table_out(tmp_path) -> None:  # type: ignore[no-untyped-def]
    file = tmp_path / "a.toml"
    file.write_text('experiment = "a:b"\ntrials = 2\n[slurm]\ntime = "10"\nnonsense = 3\n')
    assert load(file, {}, SweepConfig).trials == 2
