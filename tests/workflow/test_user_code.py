"""The user's experiment, loaded and tried: notes that depend on the machine's GPUs, and changes that cannot be."""

from __future__ import annotations

import builtins
import subprocess
import sys
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from experiments.digits import Cnn, Mlp
from raygpu.config import SweepConfig, TrainConfig
from raygpu.config.source import Source
from raygpu.errors import BadInput, UnknownMetric
from raygpu.experiment import Splits
from raygpu.workflow.user_code import (
    FULL_PRECISION,
    _metric,
    _require_changes,
    find,
    load_data,
    problem,
    training_problem,
    tried_step,
)
from raygpu.workflow.validation import prepare, prepare_train
from tests.fakes.nvml import FakeNvml
from tests.models import few

SHAPES: dict[Any, dict[str, Any]] = {Mlp: {"hidden": 8}, Cnn: {"blocks": 1, "channels": 2, "channels2": 2}}


def notes(kind: Any, precision: str = "float32") -> tuple[str, ...]:
    config = SweepConfig.model_validate(
        {"experiment": f"experiments.digits:{kind.__name__}", "space": SHAPES[kind], "gpu": {"precision": precision}}
        | {"metric": "accuracy", "trials": 2}
    )
    source = Source("torch", f"experiments.digits:{kind.__name__}", ".")
    return tried_step(config, source, kind(), {**SHAPES[kind], "lr": 0.1, "batch_size": 32}).notes


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Any:
    (device,) = FakeNvml(["NVIDIA A100"]).install(monkeypatch).devices
    return device


def test_convolutions_in_full_precision_are_told_where_torch_takes_tf32(card: Any) -> None:
    assert FULL_PRECISION in notes(Cnn)
    assert FULL_PRECISION not in notes(Cnn, "tf32")
    assert FULL_PRECISION not in notes(Mlp)
    card.capability = (7, 5)
    assert FULL_PRECISION not in notes(Cnn)


def test_nothing_is_told_of_convolutions_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeNvml([]).install(monkeypatch)
    assert FULL_PRECISION not in notes(Cnn)


def test_a_sweep_tells_it_too(card: Any, tmp_path: Path) -> None:
    config = SweepConfig.model_validate(
        {"experiment": "experiments.digits:Cnn", "space": {**SHAPES[Cnn], "lr": 0.1, "batch_size": 32}, "trials": 2}
        | {"metric": "accuracy", "epochs": 1, "runs_dir": str(tmp_path), "tracking": {"enabled": False}}
    )
    prepared = prepare(config, "cnn")
    assert FULL_PRECISION in problem(prepared, *find(prepared.config, Path.cwd())).notes


class Yielding(Mlp):
    """Has the scales of its losses by a generator."""

    def __init__(self) -> None:
        self.scales = (1.0 for _ in range(1000))

    def loss(self, outputs: Any, targets: Any) -> Any:
        return next(self.scales) * super().loss(outputs, targets)


def test_a_generator_that_trials_of_a_worker_share_is_named(tmp_path: Path) -> None:
    config = SweepConfig.model_validate(
        {"experiment": f"{__name__}:Yielding", "space": {**SHAPES[Mlp], "lr": 0.1, "batch_size": 32}, "trials": 2}
        | {"metric": "accuracy", "epochs": 1, "runs_dir": str(tmp_path), "tracking": {"enabled": False}}
    )
    prepared = prepare(config, "yielding")
    notes = problem(prepared, *find(prepared.config, Path.cwd())).notes
    assert [note for note in notes if "self.scales (generator) cannot be copied: the trials of one worker" in note]


def test_an_experiment_does_not_take_two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FakeNvml(["NVIDIA A100", "NVIDIA A100"]).install(monkeypatch)
    config = SweepConfig.model_validate(
        {"experiment": "experiments.digits:Mlp", "space": SHAPES[Mlp], "trials": 2, "metric": "accuracy", "epochs": 1}
        | {"gpu": {"fraction": 2}, "runs_dir": str(tmp_path), "tracking": {"enabled": False}}
    )
    prepared = prepare(config, "two")
    with pytest.raises(BadInput, match=r"gpu.fraction: read 2; a TorchExperiment or KerasExperiment trains on one GPU"):
        problem(prepared, *find(prepared.config, Path.cwd()))


class Half(nn.Linear):
    """A layer of bfloat16."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.bfloat16()).float()


class InHalf(Mlp):
    def model(self, hp: Any) -> nn.Module:
        return Half(64, 10, dtype=torch.bfloat16)


class UnderNoGrad(nn.Sequential):
    """A body that gets no gradient, and a head."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            x = self[0](x)
        return self[1](x)  # type: ignore[no-any-return]


class HeadAlone(Mlp):
    """Its body is of bfloat16, and not trained."""

    kind: type[nn.Sequential] = UnderNoGrad

    def model(self, hp: Any) -> nn.Module:
        return self.kind(Half(64, 16, dtype=torch.bfloat16), nn.Linear(16, 10))


class HeadAndBody(HeadAlone):
    kind = nn.Sequential


class StepsOfItsOwn(InHalf):
    def optimizer(self, model: nn.Module, hp: Any) -> Any:
        return torch.optim.SGD(model.parameters(), lr=0.1)


class NoSteps(InHalf):
    def optimizer(self, model: nn.Module, hp: Any) -> Any:
        return None


@pytest.mark.parametrize(
    ("kind", "told"),
    [(InHalf, True), (HeadAndBody, True), (NoSteps, True), (HeadAlone, False), (StepsOfItsOwn, False), (Mlp, False)],
)
def test_parameters_that_half_precision_rounds_are_told(
    kind: type[Mlp], told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeNvml([]).install(monkeypatch)
    config = SweepConfig.model_validate({"experiment": "cases:InHalf", "space": {}, "metric": "accuracy", "trials": 2})
    source = Source("torch", "cases:InHalf", ".")
    lines = tried_step(config, source, kind(), {**SHAPES[Mlp], "lr": 0.1, "batch_size": 32}).notes
    words = "parameters are trained in bfloat16: of a step that moves one by less than 0.2 %"
    assert [line.startswith(words) for line in lines] == [True] * told


def test_a_large_model_in_half_precision_is_told_without_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeNvml([]).install(monkeypatch)
    monkeypatch.setattr("raygpu.training.base.LARGE", 10)
    test_parameters_that_half_precision_rounds_are_told(InHalf, True, monkeypatch)


class Small(Mlp):
    """A linear model of few samples."""

    def data(self) -> Any:
        return few(300, 20)

    def model(self, hp: Any) -> nn.Module:
        return nn.Linear(64, 10)


class FloatClasses(Small):
    """Class indices of float64, which its loss takes as integers."""

    def data(self) -> Any:
        splits = few(300, 20)
        return Splits(
            splits.train_inputs,
            splits.train_targets.astype(float),
            splits.validation_inputs,
            splits.validation_targets.astype(float),
        )

    def loss(self, outputs: Any, targets: Any) -> Any:
        return nn.functional.cross_entropy(outputs, targets.long())


class IntegerClasses(FloatClasses):
    def data(self) -> Any:
        return few(300, 20)


class OwnMetrics(FloatClasses):
    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        return {}


def test_a_default_accuracy_that_is_missing_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeNvml([]).install(monkeypatch)
    values = {"experiment": "mine:Mine", "space": {}, "metric": "accuracy", "trials": 1}
    source = Source("torch", "mine:Mine", ".")

    def metric(code: Any, name: str = "accuracy") -> str:
        config = SweepConfig.model_validate(values | {"metric": name, "direction": "max"})
        return _metric(config, code, tried_step(config, source, code, {"lr": 0.1}))

    assert metric(IntegerClasses()) == "validation/accuracy"
    assert metric(FloatClasses(), "loss") == "validation/loss"
    why = "the default accuracy takes class indices that are integers, and the targets are float64"
    with pytest.raises(UnknownMetric, match=f"metric: read 'accuracy'; the experiment reports: .*loss; {why}"):
        metric(FloatClasses())
    for code, name in ((FloatClasses(), "f1"), (OwnMetrics(), "accuracy")):
        with pytest.raises(UnknownMetric, match=r"validation/loss$"):
            metric(code, name)


class OwnOptimizer(Small):
    def optimizer(self, model: nn.Module, hp: Any) -> Any:
        return torch.optim.RMSprop(model.parameters(), lr=0.01) if hp.get("rule") == "rmsprop" else None


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"lr": 0.0}, r"^changes: lr cannot change, as tests/.*:OwnOptimizer has an optimizer\(\) of its own, .*"),
        ({"clip_norm": 0.5, "weight_decay": 0.1}, "^changes: weight_decay cannot change, "),
        ({"clip_norm": 0.5}, None),
        ({"clip_norm": 0.5, "ema_decay": 0.5}, None),
    ],
    ids=str,
)
def test_changes_that_an_optimizer_of_its_own_does_not_take(
    change: Any, line: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeNvml([]).install(monkeypatch)

    def loaded(hp: Any) -> None:
        """Load a production training with the change from its second epoch on."""
        config = TrainConfig.model_validate(
            {"experiment": "tests/workflow/test_user_code.py:OwnOptimizer", "epochs": 4, "metric": "loss"}
            | {"hyperparameters": hp, "changes": [{"epoch": 2, **change}], "runs_dir": str(tmp_path)}
        )
        prepared = prepare_train(config, "changing")
        training_problem(prepared, *find(prepared.config, Path.cwd()))

    loaded({"lr": 0.1, "rule": "none", "ema_decay": 0.9})
    with pytest.raises(BadInput, match=line) if line is not None else nullcontext():
        loaded({"rule": "rmsprop", "ema_decay": 0.9})


@pytest.mark.parametrize(("change", "unread"), [({"schedule": "step"}, False), ({"lr": 0.3}, True)], ids=str)
def test_a_number_that_a_later_schedule_reads_is_read(
    change: Any, unread: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best trial of a population has a history whose first epochs may have another schedule."""
    FakeNvml([]).install(monkeypatch)
    hp = {"lr": 0.1, "schedule": "constant", "step_epochs": 2, "gamma": 0.5}
    config = TrainConfig.model_validate(
        {"experiment": "tests/workflow/test_user_code.py:Small", "epochs": 4, "metric": "loss", "hyperparameters": hp}
        | {"changes": [{"epoch": 2, "lr": 0.2}, {"epoch": 3, **change}], "runs_dir": str(tmp_path)}
    )
    prepared = prepare_train(config, "changing")
    shown = training_problem(prepared, *find(prepared.config, Path.cwd())).notes
    assert any("does not read gamma, step_epochs" in line for line in shown) == unread


def test_a_keras_training_may_change_its_learning_rate_and_schedule_alone() -> None:
    values = {"experiment": "a:B", "metric": "loss", "epochs": 9}
    source = Source(kind="keras", name="a:B", folder=".")
    changes = [{"epoch": 2, "schedule": "cosine", "warmup_epochs": 3}, {"epoch": 3, "lr": 0.1}]
    _require_changes(TrainConfig.model_validate(values | {"changes": changes}), source, Mlp())
    changes.append({"epoch": 4, "momentum": 0.5})
    with pytest.raises(BadInput, match=r"changes: momentum cannot change in a Keras training.*allowed: lr, schedule"):
        _require_changes(TrainConfig.model_validate(values | {"changes": changes}), source, Mlp())


DRAWS = """
import sys
from raygpu.config import SweepConfig
from raygpu.config.source import Source
from raygpu.experiment import Splits
from raygpu.training.torch.experiment import TorchExperiment
from raygpu.workflow.user_code import load_data

class Drawn(TorchExperiment):
    def model(self, hp):
        raise NotImplementedError

    def data(self):
        import torch
        return Splits.of(torch.rand(8, 1).numpy(), [0, 1] * 4, validation=0.5)

assert "torch" not in sys.modules, "or nothing is tested"
config = SweepConfig.model_validate({"experiment": "drawn:Drawn", "space": {}, "metric": "loss", "trials": 1})
drawn = [load_data(config, Source("torch", "drawn:Drawn", "."), Drawn()).train_inputs for _ in range(2)]
assert (drawn[0] == drawn[1]).all(), drawn
"""


def test_data_draws_the_same_whether_or_not_it_is_the_first_to_import_torch() -> None:
    """A command's process begins without it; one of the service has imported it."""
    drawn = subprocess.run([sys.executable, "-c", DRAWS], capture_output=True, text=True, check=False)
    assert drawn.returncode == 0, drawn.stderr


class DrawnByKeras(Mlp):
    def data(self) -> Splits:
        import keras

        inputs = keras.ops.convert_to_numpy(keras.random.uniform((8, 1)))
        return Splits.of(inputs, [0, 1] * 4, validation=0.5)


@pytest.mark.skipif(find_spec("tensorflow") is None, reason="TensorFlow is not installed")
def test_data_draws_the_same_from_the_generator_of_keras() -> None:
    values = {"experiment": "drawn:Drawn", "space": {}, "metric": "loss", "trials": 1}
    config, source = SweepConfig.model_validate(values), Source("keras", "drawn:Drawn", ".")
    one, other = (load_data(config, source, DrawnByKeras()).train_inputs for _ in range(2))
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("kind", "module", "extra"),
    [("torch", "torch", "torch"), ("keras", "raygpu.training.keras.quiet_import", "tensorflow")],
)
def test_a_framework_that_cannot_be_loaded_is_a_line(
    kind: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(name: str, *arguments: Any) -> Any:
        """Import a module; of the framework raise what a missing library does."""
        if name == module:
            raise OSError("libcudart.so.12: cannot open shared object file")
        return imported(name, *arguments)

    imported = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", load)
    values = {"experiment": "mine:Mine", "space": {}, "metric": "loss", "trials": 1}
    line = f"experiment: mine:Mine needs {extra}, which cannot be loaded: OSError: libcudart.so.12: cannot"
    with pytest.raises(BadInput, match=line):
        load_data(SweepConfig.model_validate(values), Source(kind, "mine:Mine", "."), Small())
