"""A first training step finds faults of the experiment and converts number types, in torch and in Keras alike."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raygpu import KerasExperiment, Splits, TorchExperiment
from raygpu.config import SweepConfig
from raygpu.errors import BadInput
from raygpu.experiment import Arrays
from raygpu.workflow.first_step import _few, _not_finite
from raygpu.workflow.user_code import Problem, find, problem
from raygpu.workflow.validation import prepare
from tests.workflow.tried_experiments import problem_of

PIXELS = np.random.default_rng(0).normal(size=(400, 8)).astype(np.float32)
LABELS = (PIXELS.sum(axis=1) > 0).astype(np.int64)
ONE_WRONG = LABELS + 5 * (np.arange(400) == 77)
PATH = "tests/workflow/test_first_step.py"


class Torch(TorchExperiment):
    inputs: Arrays = PIXELS
    targets: Arrays = LABELS

    def data(self) -> Splits:
        return Splits.of(self.inputs, self.targets)

    def model(self, hp: Any) -> Any:
        from torch import nn

        return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))


class TorchWrongLabel(Torch):
    targets = ONE_WRONG


class TorchDoubles(Torch):
    inputs = PIXELS.astype(np.float64)


class TorchBytes(Torch):
    inputs = np.abs(10 * PIXELS).astype(np.uint8)


class TorchShortLabels(Torch):
    targets = LABELS.astype(np.int32)


class TorchByteLabels(Torch):
    targets = LABELS.astype(np.uint8)


class TorchColumns(Torch):
    """Doubles beside the numbers of categories, as a data frame's columns are."""

    def data(self) -> Splits:
        return Splits.of({"numbers": PIXELS.astype(np.float64), "kind": LABELS}, self.targets)

    def model(self, hp: Any) -> Any:
        from torch import nn

        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.kinds, self.linear = nn.Embedding(2, 2), nn.Linear(8, 2)

            def forward(self, numbers: Any, kind: Any) -> Any:
                return self.linear(numbers) + self.kinds(kind)

        return Model()


class TorchBinary(Torch):
    """Class indices for a loss that wants numbers."""

    def model(self, hp: Any) -> Any:
        from torch import nn

        return nn.Sequential(nn.Linear(8, 1), nn.Flatten(0))

    def loss(self, outputs: Any, targets: Any) -> Any:
        from torch.nn.functional import binary_cross_entropy_with_logits

        return binary_cross_entropy_with_logits(outputs, targets)

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        return {}


class TorchWrongSize(Torch):
    def model(self, hp: Any) -> Any:
        from torch import nn

        return nn.Linear(9, 2)


class TorchNoModel(Torch):
    def model(self, hp: Any) -> Any:
        raise ValueError("no such layer")


class TorchVector(Torch):
    def loss(self, outputs: Any, targets: Any) -> Any:
        from torch.nn.functional import cross_entropy

        return cross_entropy(outputs, targets, reduction="none")


class TorchLateBuffer(Torch):
    def model(self, hp: Any) -> Any:
        from torch import nn

        class Model(nn.Linear):
            def forward(self, x: Any) -> Any:
                if not hasattr(self, "spread"):
                    self.register_buffer("spread", x.std(0) + 1)
                return super().forward(x / self.spread)

        return Model(8, 2)


class TorchLossTwice(Torch):
    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        return {"loss": outputs.mean()}


class TorchExits(Torch):
    def model(self, hp: Any) -> Any:
        sys.exit("no model today")


class TorchBroadcast(Torch):
    targets = PIXELS.sum(axis=1)

    def model(self, hp: Any) -> Any:
        from torch import nn

        return nn.Linear(8, 1)

    def loss(self, outputs: Any, targets: Any) -> Any:
        return ((outputs - targets) ** 2).mean()

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        return {}


class TorchWholeBatches(Torch):
    """Takes batches of 32 samples alone, as they are in every step."""

    def data(self) -> Splits:
        return Splits(PIXELS[:320], LABELS[:320], PIXELS[320:352], LABELS[320:352])

    def loss(self, outputs: Any, targets: Any) -> Any:
        return super().loss(outputs.reshape(32, 2), targets)


class TorchSometimes(Torch):
    """Raises for the first draw of the space, and not for the second one."""

    def model(self, hp: Any) -> Any:
        from torch import nn

        if hp["x"] == 0:
            raise ValueError("x is 0")
        return nn.Linear(8, 2)


class TorchOnGpu(Torch):
    def model(self, hp: Any) -> Any:
        raise RuntimeError("Found no NVIDIA driver on your system")


class Keras(KerasExperiment):
    inputs: Arrays = PIXELS
    targets: Arrays = LABELS

    def data(self) -> Splits:
        return Splits.of(self.inputs, self.targets)

    def model(self, hp: Any) -> Any:
        import keras

        return keras.Sequential([keras.layers.Dense(2)])


class KerasExits(Keras):
    def model(self, hp: Any) -> Any:
        sys.exit("no model today")


class KerasLossTwice(Keras):
    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        return {"loss": outputs[0, 0]}


class KerasWrongLabel(Keras):
    targets = ONE_WRONG


class KerasVector(Keras):
    def loss(self, outputs: Any, targets: Any) -> Any:
        import keras

        return keras.losses.sparse_categorical_crossentropy(targets, outputs, from_logits=True)


class KerasBroadcast(Keras):
    targets = PIXELS.sum(axis=1)

    def model(self, hp: Any) -> Any:
        import keras

        return keras.Sequential([keras.layers.Dense(1)])

    def loss(self, outputs: Any, targets: Any) -> Any:
        import keras

        return keras.ops.mean((outputs - targets) ** 2)

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        return {}


@pytest.fixture
def tried(tmp_path: Path) -> Callable[..., Problem]:
    """What a sweep's start makes of an experiment of this module."""

    def load(name: str, space: dict[str, Any] | None = None) -> Problem:
        return problem_of(PATH, name, space or {"lr": 0.1}, tmp_path)

    return load


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("TorchWrongLabel", r"Target 6 is out of bounds.*; with inputs .*, targets int64 \(8,\) from 0 to 6"),
        ("TorchWrongSize", r"mat1 and mat2 shapes cannot be multiplied \(8x8 and 9x2\)"),
        ("TorchNoModel", rf"ValueError: no such layer \({PATH}:\d+, in model\)"),
        ("TorchVector", r"loss\(\) returned a tensor of shape \(8,\); a scalar is wanted"),
        ("TorchLateBuffer", "spread is in the model's state after a step, and not before it"),
        ("TorchLossTwice", r"metrics\(\) returned 'loss', the name of what loss\(\) returns"),
        ("KerasLossTwice", r"metrics\(\) returned 'loss', the name of what loss\(\) returns"),
        ("TorchExits", r"model\(hp\) exits, by SystemExit: no model today"),
        ("KerasExits", r"model\(hp\) exits, by SystemExit: no model today"),
        ("TorchBroadcast", r"outputs \(8, 1\) and targets \(8,\), and compares each with each"),
        ("KerasWrongLabel", r"Received a label value of 6 which is outside the valid range of \[0, 2\)"),
        ("KerasVector", r"a loss or metric has shape \(None,\); a scalar is wanted"),
        ("KerasBroadcast", r"outputs \(8, 1\) and targets \(8,\), and compares each with each"),
    ],
)  # fmt: skip
def test_a_fault_of_the_experiment_is_told_before_anything_starts(
    tried: Callable[..., Problem], name: str, words: str
) -> None:
    with pytest.raises(BadInput, match=f"experiment: {PATH}:{name}: a first training step fails: .*{words}"):
        tried(name)


@pytest.mark.parametrize(
    ("name", "part", "before", "after"),
    [
        ("TorchDoubles", "inputs", "float64", "float32"),
        ("TorchBytes", "inputs", "uint8", "float32"),
        ("TorchShortLabels", "targets", "int32", "int64"),
        ("TorchByteLabels", "targets", "uint8", "int64"),
        ("TorchBinary", "targets", "int64", "float32"),
    ],
)
def test_number_types_are_converted_with_a_note(
    tried: Callable[..., Problem], name: str, part: str, before: str, after: str
) -> None:
    found = tried(name)
    lines = [f"data: the {part} are {before}; converted to {after}, which the model takes"]
    assert found.notes == lines
    assert found.splits is not None
    for which in ("train", "validation"):
        assert getattr(found.splits, f"{which}_{part}").dtype == after


def test_doubles_beside_whole_numbers_are_converted_alone(tried: Callable[..., Problem]) -> None:
    found = tried("TorchColumns")
    assert found.notes == ["data: the inputs are float64; converted to float32, which the model takes"]
    assert found.splits is not None
    for inputs in (found.splits.train_inputs, found.splits.validation_inputs):
        assert isinstance(inputs, dict)
        assert {name: array.dtype for name, array in inputs.items()} == {"numbers": np.float32, "kind": np.int64}


@pytest.mark.parametrize("name", ["Torch", "TorchWholeBatches", "Keras"])
def test_what_works_is_left_as_it_is(tried: Callable[..., Problem], name: str) -> None:
    found = tried(name)
    assert found.notes == []
    assert found.splits is not None
    assert (found.splits.train_inputs.dtype, found.splits.train_targets.dtype) == (np.float32, np.int64)


def test_a_fault_of_some_trials_is_theirs_and_noted(tried: Callable[..., Problem]) -> None:
    (note,) = tried("TorchSometimes", {"x": {"grid_search": [0, 1]}}).notes
    assert note.startswith("a first step fails with {'x': 0}: ValueError: x is 0")


class TorchDoubleWrongLabel(TorchWrongLabel):
    inputs = PIXELS.astype(np.float64)


def test_the_fault_beside_float64_is_told(tried: Callable[..., Problem]) -> None:
    with pytest.raises(BadInput, match=r"Target 6 is out of bounds.*; with inputs float32"):
        tried("TorchDoubleWrongLabel")


class TorchHidden(Torch):
    def model(self, hp: Any) -> Any:
        from torch import nn

        return nn.Linear(hp["hidden"], 2)


def test_a_list_that_was_meant_as_a_choice_is_told(tried: Callable[..., Problem]) -> None:
    with pytest.raises(BadInput) as error:
        tried("TorchHidden", {"hidden": [8, 16]})
    hint = "space.hidden: [8, 16] is one value of every trial; to try each: { choice = [8, 16] }"
    assert error.value.faults[1:] == (hint,)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("learning_rate", "a first step does not read learning_rate: if nothing does, did you mean lr?"),
        ("momentun", "a first step does not read momentun: if nothing does, did you mean momentum?"),
        ("banana", "a first step does not read banana: what nothing reads changes nothing"),
    ],
)
def test_a_name_that_nothing_reads_is_told(tried: Callable[..., Problem], name: str, line: str) -> None:
    assert tried("Torch", {name: {"uniform": [0, 1]}}).notes == [f"space: {line}"]


def test_a_script_that_is_not_there_is_refused(tmp_path: Path) -> None:
    values = {"command": "python mainn.py --lr {lr}", "trials": 1, "metric": "accuracy", "space": {"lr": 1}}
    values |= {"runs_dir": str(tmp_path), "tracking": {"enabled": False}}
    prepared = prepare(SweepConfig.model_validate(values), "test")
    with pytest.raises(BadInput, match=r"command: mainn\.py: no such file in "):
        problem(prepared, *find(prepared.config, tmp_path))


def test_what_only_a_gpu_can_run_is_left_to_the_trials(tried: Callable[..., Problem]) -> None:
    (note,) = tried("TorchOnGpu").notes
    assert note.startswith("a first step on this machine's CPU fails: RuntimeError: Found no NVIDIA driver")


@pytest.mark.parametrize(
    ("space", "line"),
    [
        (
            {"lr": [0.1, 0.2]},
            "space.lr: read [0.1, 0.2]; a number from 0 to inf is wanted; [0.1, 0.2] is one value of every trial; to"
            " try each: { choice = [0.1, 0.2] }",
        ),
        ({"lr": -1}, "space.lr: read -1; a number from 0 to inf is wanted"),
        ({"optimizer": {"choice": ["sgd", "lion"]}}, "space.optimizer: read 'lion'; allowed: sgd, adam, adamw"),
        ({"batch_size": {"randint": [0, 9]}}, "space.batch_size: read 0; a whole number of at least 1 is wanted"),
    ],
)
def test_a_value_that_no_optimizer_takes_is_refused(
    tried: Callable[..., Problem], space: dict[str, Any], line: str
) -> None:
    with pytest.raises(BadInput) as error:
        tried("Torch", space)
    assert error.value.faults == (line,)


def test_numbers_that_are_not_finite_are_told() -> None:
    data = Torch().data()
    inputs, held = np.array(data.train_inputs), np.array(data.validation_inputs)
    inputs[3, 5], inputs[7], held[0, 0] = np.nan, np.inf, -np.inf
    told = _not_finite(replace(data, train_inputs={"a": inputs, "b": data.train_targets}, validation_inputs=held))
    assert told == [
        f"data: 2 of {len(inputs)} train inputs have NaN or infinite values",
        f"data: 1 of {len(held)} validation inputs have NaN or infinite values",
    ]
    assert _not_finite(data) == []


def test_the_few_samples_have_the_rare_label_among_them() -> None:
    targets = (np.arange(len(PIXELS)) == 77).astype(np.float32)
    few = _few(Splits(PIXELS, targets, PIXELS, targets), 8)
    assert set(np.asarray(few.train_targets)) == set(np.asarray(few.validation_targets)) == {0, 1}
