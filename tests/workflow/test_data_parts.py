"""Folds, test data and the length of an epoch, from the user's `data()` to what a sweep trains on."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raygpu import Splits, TorchExperiment
from raygpu.config import SweepConfig, TrainConfig, validated
from raygpu.errors import BadInput
from raygpu.records.best_trial import training_values
from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from raygpu.workflow.data_parts import part_of
from raygpu.workflow.user_code import Problem, find, problem
from raygpu.workflow.validation import prepare

CODE = """
import numpy as np
import torch
from torch import nn
from raygpu import Splits, TorchExperiment, dataset_splits

class Plain(TorchExperiment):
    shares = {"validation": 0.2, "test": 0.2}

    def data(self):
        x = np.random.default_rng(0).normal(size=(200, 8))
        return Splits.of(x, self.targets(x), **self.shares)

    def targets(self, x):
        return ((x**2).sum(axis=1) > 7).astype(np.int32)

    def model(self, hp):
        return nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))

class Read(Plain):
    def data(self):
        made = super().data()
        return dataset_splits(
            list(zip(made.train_inputs, made.train_targets)), list(zip(made.validation_inputs, made.validation_targets))
        )

class Endless(Read):
    def data(self):
        made = super().data()
        class Stream(torch.utils.data.IterableDataset):
            def __iter__(self):
                return iter(list(zip(np.zeros((40, 8), np.float32), np.arange(40) % 2)))
        return dataset_splits(Stream(), Stream(), num_samples={"train": 40, "validation": 40})

class Rare(Plain):
    shares = {"validation": 0.2}

    def targets(self, x):
        return (np.arange(len(x)) == 7).astype(np.int64)

class Greedy(Plain):
    shares = {"validation": 0.5, "test": 0.5}

class WithoutTest(Plain):
    def data(self):
        made = super().data()
        return Splits(made.train_inputs, made.train_targets, made.validation_inputs, made.validation_targets)
"""


@pytest.fixture
def found(tmp_path: Path) -> Any:
    (tmp_path / "mine.py").write_text(CODE)

    def of(name: str, **values: Any) -> Problem:
        config: dict[str, Any] = {
            "experiment": f"mine.py:{name}", "trials": 1, "epochs": 2, "metric": "accuracy", "space": {"lr": 0.1},
            "runs_dir": str(tmp_path / "runs"), "tracking": {"enabled": False},
        }  # fmt: skip
        prepared = prepare(SweepConfig.model_validate(config | values), "test")
        return problem(prepared, *find(prepared.config, tmp_path))

    return of


def first_epoch(found: Problem) -> Any:
    from raygpu.training.torch.solo import TorchSolo

    assert isinstance(found.code, TorchExperiment)
    assert isinstance(found.splits, Splits)
    solo = TorchSolo(found.code, found.splits, Trial("t0000", 5, {"lr": 0.1}), Settings(2, 1, "float32", Path()))
    result = solo.run_epoch()
    assert result is not None
    return result.metrics, {name: value.numpy().tobytes() for name, value in solo.model.state_dict().items()}


def test_a_search_is_equal_to_the_bit_with_and_without_test_data(found: Any) -> None:
    with_test, without = found("Plain"), found("WithoutTest")
    assert with_test.splits.test_inputs is None, "what the trials get has no test data"
    assert first_epoch(with_test) == first_epoch(without)
    assert without.test is None
    assert with_test.test.validation_inputs.shape == (40, 8)
    seen = np.concatenate([with_test.splits.train_inputs, with_test.splits.validation_inputs])
    assert not set(seen[:, 0]) & set(with_test.test.validation_inputs[:, 0])


def test_test_data_is_converted_as_the_other_parts_are(found: Any) -> None:
    problem = found("Plain")
    assert problem.test.validation_inputs.dtype == problem.splits.train_inputs.dtype == np.float32
    assert problem.test.validation_targets.dtype == problem.splits.train_targets.dtype == np.int64
    assert problem.notes[-1] == "data: 40 test samples, kept from all training, for the best model alone"


def test_folds_pool_all_but_the_test_data(found: Any) -> None:
    problem = found("Plain", folds=3)
    assert problem.notes[-2].startswith("data: 3 folds of 53 or 54 samples, stratified by class; each training leaves")
    tested = set(problem.test.validation_inputs[:, 0])
    assert len(problem.folds.targets) == 160
    assert not set(problem.folds.inputs[:, 0]) & tested
    assert problem.splits.num_train == problem.folds.num_train(0), "estimates go by the first fold"
    for fold in range(3):
        trial = Trial(f"t0000-{fold + 1}", 0, {}, repeat=0, fold=fold)
        assert np.array_equal(problem.validation_of(trial)[0], problem.folds.split(fold).validation_inputs)
    inputs, _ = found("Plain").validation_of(Trial("t0000", 0, {}))
    assert np.array_equal(inputs, found("Plain").splits.validation_inputs)


def test_a_fraction_is_of_the_training_part_of_each_fold(found: Any) -> None:
    folds = found("Plain", folds=4, data={"fraction": 0.25}).folds
    assert [folds.sizes(fold) for fold in range(4)] == [(30, 40)] * 4


@pytest.mark.parametrize(
    ("name", "folds", "message"),
    [
        ("Rare", 3, "folds: read 3; 3 folds need 3 samples of each class, and class 1 has 1 of 200 training and"),
        ("Plain", 161, "folds: read 161; 161 folds of 160 training and validation samples; each needs at least one"),
        ("Greedy", None, "data() failed: ValueError: validation=0.5 and test=0.5 of 200 samples leave nothing for one"),
    ],
)
def test_data_that_cannot_be_cut_is_refused_in_one_line(found: Any, name: str, folds: int | None, message: str) -> None:
    with pytest.raises(BadInput) as fault:
        found(name, folds=folds)
    (line,) = fault.value.faults
    assert message in line


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("Plain", {}, "data.samples_per_epoch: read 30; an epoch has at least one batch, here of 32 samples"),
        ("Plain", {"space": {"batch_size": {"choice": [8, 64]}, "lr": 1}}, "at least one batch, here of 64 samples"),
        ("Plain", {"folds": 3}, "folds: read 3; data.samples_per_epoch: read 30; one of the two"),
        ("Read", {"data": {"samples_per_epoch": 500}}, "read 500, of 120 training samples; an epoch of dataset_splits"),
        ("Endless", {"data": {"samples_per_epoch": 36}}, "read 36; a stream begins anew in each epoch: num_samples"),
    ],
)
def test_an_epoch_that_cannot_be_is_refused(found: Any, name: str, values: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput) as fault:
        found(name, **{"data": {"samples_per_epoch": 30}, **values})
    (line,) = fault.value.faults
    assert message in line


@pytest.mark.parametrize("name", ["Plain", "Read"])
def test_the_length_of_an_epoch_is_told_and_kept(found: Any, name: str) -> None:
    problem = found(name, data={"samples_per_epoch": 60})
    assert problem.notes[-1] == "data: an epoch is 60 training samples, 0.5 passes over the 120 there are"
    assert (problem.splits.num_train, problem.splits.samples_per_epoch) == (120, 60)


CODES = {"function": {"experiment": "mine.py:train"}, "command": {"command": "python mine.py {lr}"}}


def of_own_code(folder: Path, kind: str, **values: Any) -> Problem:
    (folder / "mine.py").write_text("def train(config): ...")
    values |= {**CODES[kind], "trials": 1, "metric": "loss", "space": {"lr": 1}, "runs_dir": str(folder)}
    prepared = prepare(SweepConfig.model_validate({**values, "tracking": {"enabled": False}}), "test")
    return problem(prepared, *find(prepared.config, folder))


@pytest.mark.parametrize("kind", CODES)
@pytest.mark.parametrize(("key", "read"), [("samples_per_epoch", 100), ("fraction", 0.5)])
def test_a_function_s_data_is_its_own(tmp_path: Path, kind: str, key: str, read: float) -> None:
    with pytest.raises(BadInput, match=rf"data.{key}: read {read}; a {kind} loads its own data"):
        of_own_code(tmp_path, kind, data={key: read})


@pytest.mark.parametrize("kind", CODES)
@pytest.mark.parametrize("precision", ["tf32", "bf16", "fp16"])
def test_a_function_s_precision_is_its_own(tmp_path: Path, kind: str, precision: str) -> None:
    with pytest.raises(BadInput) as fault:
        of_own_code(tmp_path, kind, gpu={"precision": precision})
    advice = f"a {kind} sets its own precision; give --gpu.precision float32"
    assert fault.value.faults == (f"gpu.precision: read {precision}; {advice}",)


@pytest.mark.parametrize("kind", CODES)
def test_a_width_that_no_function_has_is_told(tmp_path: Path, kind: str) -> None:
    (line,) = of_own_code(tmp_path, kind, gpu={"width": 4}).notes
    assert line.startswith("gpu.width has no effect: only trials of a TorchExperiment or KerasExperiment share")
    assert not of_own_code(tmp_path, kind, gpu={"width": 4, "mode": "process"}).notes, "unused_settings tells of it"
    assert not of_own_code(tmp_path, kind).notes


def test_data_that_raises_names_its_line(found: Any) -> None:
    with pytest.raises(BadInput) as fault:
        found("Greedy")
    (line,) = fault.value.faults
    assert re.search(r"\(mine\.py:\d+, in data\)$", line)


SCRIPT = {"experiment": None, "metric": "loss", "space": {"lr": 0.1}}


@pytest.mark.parametrize(
    ("command", "folds", "message"),
    [
        (
            "python t.py --lr {lr}",
            5,
            "folds: read 5; a script cuts its own data: give it --fold {fold} --folds {folds}",
        ),
        ("python t.py --fold {fold}", None, "command: {fold} is for a cross-validation; give folds, as in folds = 5"),
    ],
)
def test_a_script_has_to_learn_its_fold(tmp_path: Path, command: str, folds: int | None, message: str) -> None:
    values = {**SCRIPT, "command": command, "trials": 1, "folds": folds, "tracking": {"enabled": False}}
    with pytest.raises(BadInput) as fault:
        prepare(SweepConfig.model_validate({**values, "runs_dir": str(tmp_path)}), "test")
    (line,) = fault.value.faults
    assert line.startswith(message)


def test_a_script_and_a_function_may_take_folds(tmp_path: Path) -> None:
    values = {**SCRIPT, "trials": 1, "folds": 5, "tracking": {"enabled": False}, "runs_dir": str(tmp_path)}
    for code in ({"command": "python t.py --lr {lr} --fold {fold}"}, {"experiment": "mine.py:train"}):
        assert prepare(SweepConfig.model_validate({**values, **code}), "test").config.folds == 5


def test_one_fold_is_none() -> None:
    with pytest.raises(ValueError, match="greater than or equal to 2"):
        SweepConfig.model_validate({"experiment": "mine.py:train", "trials": 1, "folds": 1})


def test_a_trained_trial_has_the_samples_that_it_had_in_its_sweep() -> None:
    inputs = np.arange(100, dtype=np.float32)[:, None]
    splits = Splits(inputs, inputs[:, 0], inputs, inputs[:, 0])
    fraction: dict[str, Any] = {"experiment": "m:M", "data": {"fraction": 0.2}}
    sweep = SweepConfig.model_validate(fraction | {"seed": 3, "trials": 1, "space": {"lr": 0.1}})
    values = training_values(sweep, "mine", Trial("t0000", 12345, {"lr": 0.1}), score=None, score_epoch=None, epochs=2)
    trained = TrainConfig.model_validate(values | {"data": {"fraction": 0.2}})
    assert trained.seed == 12345
    own, again = (part_of(config, splits, {}).train_inputs for config in (sweep, trained))
    np.testing.assert_array_equal(own, again)


@pytest.mark.parametrize("seed", [True, -1, "1", 2**32])
def test_a_seed_that_is_none_is_refused(seed: Any) -> None:
    with pytest.raises(BadInput, match="data_seed"):
        validated({"experiment": "m:M", "source": {"data_seed": seed}}, TrainConfig, "best.toml")
