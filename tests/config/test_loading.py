"""Values of flags whose names a person chooses, and files that no person writes."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from hypothesis import given, settings
from hypothesis import strategies as st

from raygpu.config import (
    PackConfig,
    PlaceConfig,
    ProblemConfig,
    SweepConfig,
    TrainConfig,
    literal,
    load,
    read_toml,
    unread_line,
    validated,
)
from raygpu.errors import BadInput

TIMES = (st.datetimes() | st.times()).map(lambda moment: moment.replace(fold=0))
SCALARS = st.one_of(st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(), st.text(), st.dates(), TIMES)


@settings(deadline=None)
@given(st.recursive(SCALARS, lambda inner: st.lists(inner), max_leaves=5))
def test_a_value_written_as_toml_keeps_its_type(value: Any) -> None:
    written = tomli_w.dumps({"value": value}).removeprefix("value = ").strip()
    assert repr(literal(written)) == repr(value)


def test_a_hyperparameters_flag_keeps_the_dots_and_dashes_of_its_name() -> None:
    given = {"experiment": "m:f", "hyperparameters": {"net.lr": 0.1, "my-lr": 0.1}}
    flags = {"hyperparameters.net.lr": "0.2", "hyperparameters.my_lr": "0.3", "hyperparameters.new": "4"}
    assert load(None, flags, TrainConfig, given).hyperparameters == {"net.lr": 0.2, "my-lr": 0.3, "new": 4}


def test_a_flag_prefers_the_name_that_has_no_dash() -> None:
    given = {"experiment": "m:f", "hyperparameters": {"my_lr": 0.1, "my-lr": 0.1}}
    flags = {"hyperparameters.my_lr": "0.3"}
    assert load(None, flags, TrainConfig, given).hyperparameters == {"my_lr": 0.3, "my-lr": 0.1}


def test_a_hyperparameters_flag_reaches_a_nested_table() -> None:
    net = {"lr": 0.1, "my-width": 8, "block": {"size": 2}}
    given = {"experiment": "m:f", "hyperparameters": {"net": net, "my-head": {"lr": 1.0}, "net.depth": 3}}
    values = {
        "net.lr": "0.5",
        "net.my_width": "16",
        "net.block.size": "4",
        "net.new": "1",
        "my_head.lr": "2.0",
        "net.depth": "5",
        "other.lr": "6",
    }
    flags = {f"hyperparameters.{name}": text for name, text in values.items()}
    assert load(None, flags, TrainConfig, given).hyperparameters == {
        "net": {"lr": 0.5, "my-width": 16, "block": {"size": 4}, "new": 1},
        "my-head": {"lr": 2.0},
        "net.depth": 5,
        "other.lr": 6,
    }
    assert net == {"lr": 0.1, "my-width": 8, "block": {"size": 2}}, "of the trial, as it was"


LOSS = {"experiment": "m:f", "metric": "loss", "direction": "max"}


@pytest.mark.parametrize(
    ("flags", "direction", "maximize"),
    [
        ({"metric": "accuracy"}, None, True),
        ({"metric": "mae"}, None, False),
        ({"metric": "loss"}, "max", True),  # the file's own metric keeps the file's direction
        ({"metric": "width", "direction": "min"}, "min", False),
        ({"direction": "min"}, "min", False),
    ],
)
def test_a_flag_for_the_metric_takes_no_direction_of_another_metric(
    flags: dict[str, str], direction: str | None, maximize: bool
) -> None:
    """A training would keep and register its worst epoch, and a sweep would rank its trials in reverse."""
    config = load(None, flags, TrainConfig, LOSS)
    assert (config.direction, config.maximize) == (direction, maximize)


def test_a_file_laid_over_a_trial_takes_no_direction_of_another_metric(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('metric = "accuracy"\n')
    trial = LOSS | {"direction": "min", "source": {"metric": "loss", "direction": "min"}}
    config = load(file, {}, TrainConfig, trial)
    assert (config.metric, config.maximize) == ("accuracy", True)
    assert config.source == trial["source"]
    file.write_text('metric = "accuracy"\ndirection = "min"\n')
    assert load(file, {}, TrainConfig, trial).direction == "min"


def test_several_metrics_by_a_flag_take_no_directions_of_others() -> None:
    given = {
        "experiment": "m:f",
        "trials": 2,
        "space": {"x": 1},
        "metrics": ["loss", "speed"],
        "directions": ["min", "max"],
    }
    same = load(None, {"metrics": "loss, speed"}, SweepConfig, given)
    assert same.directions == ("min", "max")
    other = load(None, {"metrics": "accuracy,mae"}, SweepConfig, given | {"direction": "min"})
    assert (other.directions, other.maximize, other.further_metrics) == ((), True, (("mae", False),))


SEVERAL = {"metrics": ["accuracy_gap", "speed"], "directions": ["min", "max"]}


@pytest.mark.parametrize(
    ("given", "flags", "maximize"),
    [
        ({"metric": "accuracy_gap", "direction": "min"}, {"metrics": "accuracy_gap,latency_loss"}, [False, False]),
        (SEVERAL, {"metric": "accuracy_gap"}, [False, True]),
        (SEVERAL, {"metrics": "accuracy_gap,accuracy"}, [False, True]),  # min stays with the first one
        (SEVERAL, {"metrics": "accuracy_gap,accuracy", "directions": "max,min"}, [True, False]),
        (SEVERAL, {"metrics": "accuracy,mae"}, [True, False]),
        ({"directions": ["max", "min"]}, {"metrics": "width,speed"}, [True, False]),  # the file leaves metrics to flags
    ],
)
def test_the_first_of_several_metrics_keeps_its_direction(
    given: dict[str, Any], flags: dict[str, str], maximize: list[bool]
) -> None:
    """A sweep would rank its trials in reverse."""
    config = load(None, flags, SweepConfig, {"experiment": "m:f", "trials": 2, "space": {"x": 1}} | given)
    assert [config.maximize, *(larger for _, larger in config.further_metrics)] == maximize


def test_a_direction_without_a_metric_is_for_that_of_a_flag(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('experiment = "m:f"\ndirection = "min"\n')
    lines: list[str] = []
    assert not load(file, {"metric": "accuracy_gap"}, TrainConfig, say=lines.append).maximize
    trial = {"metric": "loss", "direction": "max"}
    assert load(file, {"metric": "width"}, TrainConfig, trial).direction == "min"
    file.write_text('metric = "width"\n')
    assert load(file, {}, TrainConfig, {"experiment": "m:f"} | trial, lines.append).direction is None
    assert lines == [f"{file}: direction: max is left out, as it was given with another metric"]


BELOW = {"bias": True, "lr": 0.1, "layers": 2, "hidden": [64, 32], "activation": "relu", "table": {"x": 1}}


@pytest.mark.parametrize(
    ("name", "text", "wanted"),
    [
        ("bias", "False", "true or false is wanted"),
        ("bias", "off", "true or false is wanted"),
        ("new", "False", "true or false is wanted"),
        ("lr", ".001", "a number is wanted"),
        ("layers", "two", "a number is wanted"),
        ("hidden", "64,32", "a list is wanted"),
        ("table", "wide", "a table is wanted"),
        ("new", ".001", "a number is wanted"),
        ("new", "NaN", "a number is wanted"),
        ("new", "64,32", "a list is wanted"),
        ("new", "[True]", "a list is wanted"),
        ("new", "{x: 1}", "a table is wanted"),
        ("new", "None", "a value is wanted, or no flag"),
    ],
)
def test_a_flag_whose_text_is_no_toml_replaces_text_alone(name: str, text: str, wanted: str) -> None:
    """Any text is true, the text False too, so that a model would be trained with what its flag turns off."""
    given = {"experiment": "m:f", "hyperparameters": BELOW}
    with pytest.raises(BadInput) as refused:
        load(None, {f"hyperparameters.{name}": text}, TrainConfig, given)
    quoted = f"'\"{text}\"'"
    assert str(refused.value) == f"--hyperparameters.{name}: read '{text}'; {wanted}; text is given in quotes: {quoted}"
    quoted_flag = {f"hyperparameters.{name}": f'"{text}"'}
    assert load(None, quoted_flag, TrainConfig, given).hyperparameters[name] == text


def test_a_flag_of_toml_or_for_text_replaces_any_value() -> None:
    given = {"experiment": "m:f", "hyperparameters": BELOW}
    texts = {"bias": "false", "lr": "1e-3", "layers": "0.5", "hidden": "[8]", "activation": "True", "new": "gelu"}
    flags = {f"hyperparameters.{name}": text for name, text in texts.items()}
    wanted = {"bias": False, "lr": 0.001, "layers": 0.5, "hidden": [8], "activation": "True", "new": "gelu"}
    assert load(None, flags, TrainConfig, given).hyperparameters == {**wanted, "table": {"x": 1}}
    flags = {"hyperparameters.activation": "None", "hyperparameters.new": "runs/first.pt"}
    changed = load(None, flags, TrainConfig, given).hyperparameters
    assert (changed["activation"], changed["new"]) == ("None", "runs/first.pt")


def test_a_number_of_thousands_of_digits_gets_a_line() -> None:
    with pytest.raises(BadInput, match=r"numbers: .*limit"):
        validated({"experiment": "m:f", "space": {"x": 1}, "numbers": "9" * 5000}, PackConfig, "here")


@pytest.mark.parametrize("values", [{"time_budget_s": float("inf")}, {"cluster": {"max_gpus": 1e-9}}])
def test_numbers_without_sense_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=r"read (inf|1e-09)"):
        validated({"experiment": "m:f", "trials": 1, "space": {"x": 1}, **values}, SweepConfig, "here")


@pytest.mark.parametrize("text", ["relu", "True", "None", "(1, 2)", "", "a = 1", "'open", "0x"])
def test_other_text_stays(text: str) -> None:
    assert literal(text) == text


@pytest.mark.parametrize("text", ["[" * 5000 + "]" * 5000, "9" * 5000])
def test_monstrous_values_stay_text(text: str) -> None:
    assert literal(text) == text


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("x = " + "[" * 5000 + "]" * 5000, "tables and lists lie too deep in each other"),
        ("x = " + "9" * 5000, "not valid TOML: Exceeds the limit"),
        ("".join(f"key{number} = 1\n" for number in range(200_000)), "bytes; a configuration has at most 1,048,576"),
    ],
    ids=["deep", "long", "many"],
)
def test_monstrous_files_get_a_line(text: str, fault: str, tmp_path: Path) -> None:
    file = tmp_path / "case.toml"
    file.write_text(text)
    with pytest.raises(BadInput, match=fault) as found:
        read_toml(file)
    assert len(str(found.value).splitlines()) == 1


def test_a_file_that_begins_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    file = tmp_path / "case.toml"
    file.write_text("trials = 8\n", encoding="utf-8-sig")
    assert read_toml(file) == {"trials": 8}


def test_a_thousand_million_trials_are_refused_at_once() -> None:
    with pytest.raises(BadInput, match="--trials: read '1000000000'; input should be less than or equal to 1000000"):
        load(None, {"trials": "1000000000", "experiment": "a:B"}, SweepConfig)


def test_a_name_that_is_no_folder_gets_the_characters_that_are_allowed() -> None:
    with pytest.raises(BadInput, match=r"--name: read '\.\./x'; letters, digits, '\.', '_' and '-' are allowed"):
        load(None, {"name": "../x", "experiment": "a:B"}, SweepConfig)


@pytest.mark.parametrize(
    "values",
    [
        {"trials": True},
        {"seed": False},
        {"gpu": {"fraction": True}},
        {"search": {"generation": True}},
        {"epochs": True},
    ],
    ids=str,
)
def test_true_is_no_number(values: dict[str, Any]) -> None:
    whole = {"experiment": "mine.py:train", "trials": 1, "metric": "loss", "space": {"x": 1}}
    SweepConfig.model_validate(whole)
    with pytest.raises(ValueError, match=r"a number is wanted|allowed: "):
        SweepConfig.model_validate({**whole, **values})


def test_a_sweep_refuses_hyperparameters_of_a_training(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('experiment = "m:f"\ntrials = 2\n[space]\nx = 1\n[hyperparameters]\nweight_decay = 0.01\n')
    with pytest.raises(BadInput, match=r"mine\.toml: hyperparameters: .*; write constants in \[space\]"):
        load(file, {}, SweepConfig)


@pytest.mark.parametrize(
    ("schema", "values", "unread"),
    [
        (SweepConfig, "accumulate = 4", "accumulate: raygpu sweep"),
        (SweepConfig, "ways = 'mps'\nwindow_s = 3\n[slurm]\ntime = '1:00:00'", None),
        (PackConfig, "trials = 8\nmetric = 'accuracy'\n[stopping]\npatience = 2", None),
        (PackConfig, "[hyperparameters]\nlr = 0.1", "[hyperparameters]: raygpu pack"),
        (TrainConfig, "folds = 5\n[stopping]\npatience = 2", "folds, [stopping]: raygpu train"),
        (TrainConfig, "batches = 'auto'\nrounds = 3\n[placements]\na = { b = 0 }", None),
        (PlaceConfig, "accumulate = 2\n[source]\nsweep = 'a'", None),
    ],
)
def test_keys_of_other_files_are_named(
    schema: type[ProblemConfig], values: str, unread: str | None, tmp_path: Path
) -> None:
    """A sweep's file serves a pack, too, and a training's file a balance and a place."""
    file = tmp_path / "mine.toml"
    file.write_text(values)
    line = unread_line(file, read_toml(file), schema)
    assert line == (None if unread is None else f"{file}: {unread} does not read this")


def test_a_named_pipe_is_read_once(tmp_path: Path) -> None:
    """A second reading would wait for a writer without end."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    values = 'experiment = "m:f"\nfolds = 5\n'
    writer = threading.Thread(target=pipe.write_text, args=[values], daemon=True)
    writer.start()
    lines: list[str] = []
    reader = threading.Thread(target=load, args=[pipe, {}, TrainConfig, None, lines.append], daemon=True)
    reader.start()
    reader.join(10)
    assert lines == [f"{pipe}: folds: raygpu train does not read this"]
