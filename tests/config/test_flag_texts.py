"""Fields from Python reach a job as they were given: its flags are read as those of a command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raygpu import submit, train
from raygpu.api import run_submission, run_sweep, run_training
from raygpu.config import TrainConfig, load
from raygpu.config.flag_texts import flag_texts
from raygpu.errors import BadInput

FILE = """
experiment = "mine:Mine"
metric = "loss"

[hyperparameters]
lr = 0.1
"drop-out" = 0.5
"""


@pytest.fixture
def submitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    file = tmp_path / "t.toml"
    file.write_text(FILE)

    def parsed(**fields: Any) -> TrainConfig:
        """Return the configuration that a job reads, whose command line is written once more on the way."""
        configs: list[TrainConfig] = []

        def read(command: str, words: list[str], *_: Any) -> tuple[None, str]:
            """Read a command line as the job does."""
            arguments = train.COMMAND.flags.parse(words)
            again = train.COMMAND.flags.parse([*arguments.words, *arguments.argv(arguments.overrides)])
            configs.append(load(Path(again.words[0]), again.overrides, TrainConfig))
            return None, "train-t"

        monkeypatch.setattr(submit, "submitted", read)
        assert run_submission("train", file, **fields) == "train-t"
        return configs[0]

    return parsed


@pytest.mark.parametrize(
    "value",
    [
        *(
            "5",
            "true",
            "plain",
            "a, b",
            "64,32",
            "",
            "--lr",
            "-1",
            "a = b",
            'a "quoted" word\nin two lines',
            "ü\u007f",
            "[1]",
        ),
        *(5, -5, 0.1, 1e-9, True, False, [64, 32], [[1, 2], ["a", "1"]], [], {"a b": [1, {"c": "2"}], "😀": 1}),
    ],
)
def test_a_hyperparameter_is_the_same_in_the_job(value: Any, submitted: Any) -> None:
    read = submitted(hyperparameters={"new_value": value}).hyperparameters["new_value"]
    assert (read, type(read)) == (value, type(value))


def test_numpys_numbers_and_tuples_are_as_in_a_file(submitted: Any) -> None:
    given = {"width": np.int64(3), "betas": (0.9, np.float64(0.99)), "drop-out": 0.2}
    read = submitted(hyperparameters=given, name="mine", compile=True, checkpoint={"minutes": 5.0}).model_dump()
    assert read["hyperparameters"] == {"lr": 0.1, "width": 3, "betas": [0.9, 0.99], "drop-out": 0.2}
    assert (read["name"], read["compile"], read["checkpoint"]["minutes"]) == ("mine", True, 5.0)


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"hyperparameters": {"lr": None}}, "hyperparameters.lr: None is no value of a flag; leave it out"),
        ({"name": None}, "name: None is no value of a flag; leave it out"),
        ({"hyperparameters": {"weight-decay": 0.1}}, "hyperparameters.weight-decay: a flag reads - as _"),
        (
            {"hyperparameters": {"a=b": 1}},
            "hyperparameters.a=b: a flag reads - as _, and ends at a =; give this name in",
        ),
        ({"hyperparameters": {"kind": dict}}, "hyperparameters.kind: <class 'dict'> cannot be written to a file"),
    ],
)
def test_what_no_flag_gives_is_one_line(fields: dict[str, Any], line: str, submitted: Any) -> None:
    with pytest.raises(BadInput) as caught:
        submitted(**fields)
    (fault,) = caught.value.faults
    assert line in fault


def test_fields_of_sections_have_dotted_names() -> None:
    assert flag_texts({"metrics": ["accuracy", "loss"]}) == {"metrics": "accuracy,loss"}
    texts = flag_texts({"trials": 3, "gpu": {"fraction": 0.5, "tf32": True}, "cluster": {"address": "a:1"}})
    assert texts == {"trials": "3", "gpu.fraction": "0.5", "gpu.tf32": "true", "cluster.address": "a:1"}


def test_a_name_with_a_dash_is_found_in_a_table() -> None:
    below = {"net": {"my-lr": 0.1}, "a-b": 1, "a_b": 2}
    assert flag_texts({"hyperparameters": {"net.my-lr": 0.5}}, below) == {"hyperparameters.net.my-lr": "0.5"}
    for name in ("net.other-lr", "a-b"):  # whose flag would give net.other_lr and a_b
        with pytest.raises(BadInput, match=f"hyperparameters.{name}: a flag reads - as _"):
            flag_texts({"hyperparameters": {name: 0.5}}, below)


@pytest.mark.parametrize("command", [run_sweep, run_training])
@pytest.mark.parametrize("runs_dir", [None, 5])
def test_a_folder_that_is_none_is_refused(command: Any, runs_dir: Any) -> None:
    with pytest.raises(BadInput, match=f"runs_dir: read {runs_dir}; the path of a folder is wanted"):
        command("mine:Mine", epochs=1, metric="loss", runs_dir=runs_dir)
