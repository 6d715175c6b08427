"""What shapes a trial's program, and why trials cannot be fused."""

from __future__ import annotations

import random
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from raygpu.experiment import ALL_NAMES, Splits, TorchExperiment
from raygpu.search.signature import ITS_OWN, Group
from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from raygpu.training.fused.dry_run import READ_BY_RAYGPU, check, names_read, obstacle
from raygpu.training.fused.groups import Fuser
from raygpu.training.fused.model_array import TorchArray
from raygpu.training.torch.solo import TorchSolo
from tests.models import MODELS, few

Make = Callable[[Mapping[str, Any]], nn.Module]


class Of(TorchExperiment):
    """The experiment of any model."""

    def __init__(self, make: Make) -> None:
        self.make = make

    def data(self) -> Splits:
        return few()

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return self.make(hp)


def trials(shape: Mapping[str, Any] | None = None, own: Sequence[Mapping[str, Any]] | None = None) -> list[Trial]:
    own = own or [{"lr": 0.1}, {"lr": 0.05, "momentum": 0.9, "weight_decay": 1e-2}, {"lr": 0.1, "clip_norm": 0.1}]
    return [Trial(Trial.name(i), 20 + i, {**(shape or {}), **values}) for i, values in enumerate(own)]


def why(experiment: TorchExperiment, found: Sequence[Trial] | None = None) -> str | None:
    return obstacle(experiment, experiment.data(), found or trials())


def reason(experiment: TorchExperiment, found: Sequence[Trial] | None = None) -> str:
    text = why(experiment, found)
    assert text is not None
    assert "\n" not in text
    assert len(text) <= 250
    return text


class Head(nn.Module):
    """A linear layer, the part to be looked at, and a linear layer."""

    def __init__(self, features: int = 8) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, features), nn.Linear(features, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.inside(torch.relu(self.first(x))))

    def inside(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Shapes(TorchExperiment):
    """Reads names in model(), in forward() and in augment()."""

    def data(self) -> Splits:
        return few()

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        class Model(Head):
            def inside(self, x: torch.Tensor) -> torch.Tensor:
                return x * hp.get("slope", 1.0) if "leaky" in hp else x * hp["gain"]

        return Model(hp["features"])

    def augment(self, inputs: Any, hp: Mapping[str, Any]) -> Any:
        return inputs + hp["noise"] * torch.randn_like(inputs)


def test_names_read_in_model_forward_and_augment() -> None:
    hp = {"features": 8, "gain": 2.0, "noise": 0.1, "lr": 0.1, "momentum": 0.9, "unread": 1}
    found = names_read(Shapes(), Trial("t0000", 0, hp), few())
    assert found == {"features", "gain", "leaky", "noise"} | READ_BY_RAYGPU
    leaky = names_read(Shapes(), Trial("t0000", 0, {**hp, "leaky": True}), few())
    assert leaky == {"features", "leaky", "slope", "noise"} | READ_BY_RAYGPU


def test_names_read_of_models_kept_by_name() -> None:
    for kind, shape in MODELS.values():
        found = names_read(kind(), Trial("t0000", 0, {**shape, "lr": 0.1, "dropout": 0.5}), kind().data())
        assert found == set(shape) | READ_BY_RAYGPU


def test_all_names_of_a_model_that_takes_all() -> None:
    hp = {"features": 8, "lr": 0.1}
    experiment = Of(lambda hp: Head(**{name: value for name, value in hp.items() if name == "features"}))
    assert names_read(experiment, Trial("t0000", 0, hp), few()) == {"features", "lr", ALL_NAMES} | READ_BY_RAYGPU


@pytest.mark.parametrize(
    ("hp", "error"), [({"features": 8, "lr": -1.0}, "lr: read -1.0"), ({"batch_size": 0}, "batch_size: read 0")]
)
def test_bad_numbers_are_raised(hp: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        check(Trial("t0000", 0, hp))


def test_what_the_experiment_raises_is_raised() -> None:
    with pytest.raises(KeyError, match="features"):
        names_read(Shapes(), Trial("t0000", 0, {"lr": 0.1}), few())


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_models_that_can_be_fused(name: str, optimizer: str) -> None:
    kind, shape = MODELS[name]
    own = [{"lr": 0.01}, {"lr": 0.005, "weight_decay": 1e-2, "clip_norm": 0.5}]
    assert obstacle(kind(), kind().data(), trials({**shape, "optimizer": optimizer}, own)) is None


class Noisy(Head):
    def inside(self, x: torch.Tensor) -> torch.Tensor:
        return x + 0.1 * torch.randn(x.shape, dtype=x.dtype) + 0.1 * torch.rand_like(x)


class Attention(Head):
    def __init__(self) -> None:
        super().__init__(64)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)

    def inside(self, x: torch.Tensor) -> torch.Tensor:
        return self.encoder(x.unflatten(1, (8, 8))).flatten(1)


def dropping(hp: Mapping[str, Any]) -> nn.Module:
    return nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 10))


@pytest.mark.parametrize(
    "make", [dropping, lambda hp: Noisy(), lambda hp: Attention()], ids=["dropout", "randn", "attention"]
)
def test_chance_and_attention_are_no_obstacle(make: Make) -> None:
    assert why(Of(make)) is None


class NoisyInputs(Of):
    def augment(self, inputs: Any, hp: Mapping[str, Any]) -> Any:
        kept = torch.rand(len(inputs), 1, dtype=inputs.dtype, device=inputs.device) > 0.5
        return torch.where(kept, inputs, inputs.flip(1)) + 0.1 * torch.randn_like(inputs)


class HostMetrics(Of):
    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        return {"accuracy": float(np.mean(outputs.argmax(-1).numpy() == targets.numpy()))}


@pytest.mark.parametrize("kind", [NoisyInputs, HostMetrics])
def test_augmentation_and_metrics_on_the_host_are_no_obstacle(kind: type[Of]) -> None:
    assert why(kind(lambda hp: Head())) is None


class Recurrent(Head):
    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__(64)
        self.cell = kind(8, 8, batch_first=True)

    def inside(self, x: torch.Tensor) -> torch.Tensor:
        return self.cell(x.unflatten(1, (8, 8)))[0].flatten(1)


class Normed(Head):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.utils.parametrizations.weight_norm(self.first)


class If(Head):
    def inside(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


class Item(Head):
    def inside(self, x: torch.Tensor) -> torch.Tensor:
        return x * x.mean().item()


class Masked(Head):
    def inside(self, x: torch.Tensor) -> torch.Tensor:
        return x + x[x > 0].mean()


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return 2 * gradient


class OwnFunction(Head):
    def inside(self, x: torch.Tensor) -> torch.Tensor:
        return Doubled.apply(x)


def averaging(hp: Mapping[str, Any]) -> nn.Module:
    return nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8, momentum=None), nn.Linear(8, 10))


@pytest.mark.parametrize(
    ("make", "cause"),
    [
        (lambda hp: Recurrent(nn.LSTM), r"lstm.*(no rule|slow loop)"),
        (lambda hp: Recurrent(nn.GRU), r"gru.*(no rule|slow loop)"),
        (lambda hp: Normed(), r"aten::_weight_norm\w* runs as a slow loop under vmap"),
        (lambda hp: If(), "data-dependent control flow"),
        (lambda hp: Item(), r"data-dependent control flow|\.item\(\)"),
        (lambda hp: Masked(), "boolean-mask indexing.*in Masked.inside"),
        (averaging, r"BatchNorm|item\(\)|number|data-dependent"),
        (lambda hp: OwnFunction(), r"autograd\.Function|setup_context|generate_vmap_rule"),
    ],
    ids=["lstm", "gru", "weight-norm", "if", "item", "mask", "batchnorm-momentum", "own-function"],
)
def test_obstacles_name_their_cause(make: Make, cause: str) -> None:
    text = reason(Of(make))
    assert re.search(cause, text, re.IGNORECASE), text


class Scaled(Head):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def inside(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


def test_a_value_read_past_the_record() -> None:
    experiment = Of(lambda hp: Scaled(getattr(hp, "_values", hp)["scale"]))
    found = trials({}, [{"lr": 0.1, "scale": 1.0}, {"lr": 0.1, "scale": 2.0}])
    assert "scale" not in names_read(experiment, found[0], experiment.data())
    text = reason(experiment, found)
    assert "t0001 differs" in text
    assert "Scaled.scale differs between trials" in text
    assert why(experiment, trials({"scale": 2.0})) is None


@pytest.mark.parametrize(
    ("optimizer", "lr", "scale"), [("sgd", 1e-7, 2.0), ("adam", 1e-3, 1.001)], ids=["tiny steps", "adam"]
)
def test_a_value_whose_effect_on_a_step_is_small(optimizer: str, lr: float, scale: float) -> None:
    """Adam's first step is nearly the gradient's sign."""
    experiment = Of(lambda hp: Scaled(getattr(hp, "_values", hp)["scale"]))
    found = trials({"optimizer": optimizer, "lr": lr}, [{"scale": 1.0}, {"scale": scale}])
    assert "Scaled.scale differs between trials" in reason(experiment, found)


class Tempered(Head):
    """Reads a name in evaluation alone."""

    def __init__(self, hp: Mapping[str, Any]) -> None:
        super().__init__()
        self.hp = hp

    def inside(self, x: torch.Tensor) -> torch.Tensor:
        return x if self.training else x * self.hp["temperature"]


def test_names_read_in_evaluation() -> None:
    hp = {"lr": 0.1, "temperature": 2.0}
    assert "temperature" in names_read(Of(Tempered), Trial("t0000", 0, hp), few())


class TemperedPastTheRecord(Tempered):
    def __init__(self, hp: Mapping[str, Any]) -> None:
        super().__init__(dict(getattr(hp, "_values", hp)))


def test_a_value_read_past_the_record_in_evaluation() -> None:
    found = trials({}, [{"lr": 0.1, "temperature": 1.0}, {"lr": 0.1, "temperature": 9.0}])
    assert why(Of(TemperedPastTheRecord), found) is not None


class Projected(Head):
    """A random tensor that is neither a parameter nor a buffer: functional calls do not see it."""

    def __init__(self) -> None:
        super().__init__()
        self.projection = torch.randn(8, 8)

    def inside(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.projection.to(x.dtype)


def test_a_random_tensor_that_is_no_buffer() -> None:
    assert "Projected.projection differs between trials" in reason(Of(lambda hp: Projected()))


class Permuted(Head):
    def __init__(self) -> None:
        super().__init__()
        self.order = torch.randperm(8)

    def inside(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, self.order]


def test_a_random_order_that_is_no_buffer() -> None:
    assert "Permuted.order differs between trials" in reason(Of(lambda hp: Permuted()))


def test_a_model_of_another_size() -> None:
    found = trials({}, [{"lr": 0.1, "features": 8}, {"lr": 0.1, "features": 9}])
    assert "size" in reason(Of(lambda hp: Head(getattr(hp, "_values", hp)["features"])), found)


class Failing(Head):
    def inside(self, x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("this model was meant to fail")


def test_a_model_that_fails_alone() -> None:
    assert "meant to fail" in reason(Of(lambda hp: Failing()))


class ExtraState(Head):
    """Its state dict holds what is no tensor."""

    def get_extra_state(self) -> dict[str, int]:
        return {"version": 1}

    def set_extra_state(self, state: dict[str, int]) -> None:
        assert state == {"version": 1}


def test_extra_state_is_kept_or_named() -> None:
    found = why(Of(lambda hp: ExtraState()))
    assert found is None or "extra" in found


class Single(Head):
    """Knows float32 only."""

    def inside(self, x: torch.Tensor) -> torch.Tensor:
        return x @ torch.eye(8)


def test_a_model_of_one_precision_is_compared_in_it() -> None:
    assert why(Of(lambda hp: Single())) is None


def test_the_random_state_decides_nothing() -> None:
    torch.manual_seed(1)
    first = why(Of(dropping))
    torch.manual_seed(2)
    assert why(Of(dropping)) is first is None


def ids(groups: Sequence[Group]) -> list[list[str]]:
    return [[trial.trial_id for trial in group.trials] for group in groups]


def test_fuser_groups_by_signature_and_asks_once(monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = MODELS["mlp"][0]()
    asked: list[list[str]] = []

    def counted(experiment: TorchExperiment, splits: Splits, chosen: Sequence[Trial], *more: Any) -> str | None:
        asked.append([trial.trial_id for trial in chosen])
        return obstacle(experiment, splits, chosen, *more)

    monkeypatch.setattr("raygpu.training.fused.dry_run.obstacle", counted)
    fuser = Fuser(experiment, experiment.data())
    own = [
        {"hidden": 4, "lr": 0.1},
        {"hidden": 8, "lr": 0.1},
        {"hidden": 4, "lr": 0.2},
        {"hidden": 4, "lr": 0.2, "optimizer": "adam"},
        {"lr": 0.1},
        {"hidden": 4, "lr": 0.3, "optimizer": "adam"},
    ]
    groups = fuser.groups(trials({}, own))
    assert ids(groups) == [["t0000", "t0002"], ["t0001"], ["t0003", "t0005"], ["t0004"]]
    assert [group.reason for group in groups[:3]] == [None, ITS_OWN, None]
    assert "hidden" in (groups[3].reason or "")
    assert asked == [["t0000", "t0002"]]
    assert ids(fuser.groups(trials({}, own))) == ids(groups)
    assert len(asked) == 1


def test_fuser_tells_the_obstacle_of_a_group() -> None:
    experiment = Of(lambda hp: If())
    (group,) = Fuser(experiment, experiment.data()).groups(trials())
    assert len(group.trials) == 3
    assert "data-dependent" in (group.reason or "")


@pytest.mark.parametrize("bad", [{"lr": -1.0}, {"lr": 0.1, "nesterov": True, "momentum": 0.0}], ids=["lr", "nesterov"])
def test_a_trial_with_bad_numbers_fails_alone(bad: dict[str, Any]) -> None:
    kind, shape = MODELS["mlp"]
    experiment = kind()
    good = [{"lr": 0.1, "nesterov": True, "momentum": 0.9}, {"lr": 0.2}]
    groups = Fuser(experiment, experiment.data()).groups(trials(shape, [*good, bad]))
    assert ids(groups) == [["t0000", "t0001"], ["t0002"]]
    assert groups[0].reason is None


@pytest.mark.parametrize("name", MODELS)
def test_mixed_precision_is_fused(name: str) -> None:
    kind, shape = MODELS[name]
    experiment = kind()
    found = trials(shape)
    assert obstacle(experiment, experiment.data(), found, "bf16") is None
    settings = Settings(1, 1, "bf16", Path())
    fused = TorchArray(experiment, experiment.data(), found, settings).run_epoch()
    assert fused is not None
    for trial in found:
        alone = TorchSolo(experiment, experiment.data(), trial, settings).run_epoch()
        assert alone is not None
        assert fused[trial.trial_id].metrics["train/loss"] == pytest.approx(alone.metrics["train/loss"], rel=0.02)


def test_the_dry_run_does_not_import_the_compiler() -> None:
    """That would take seconds of every sweep's start."""
    script = (
        "import sys; from raygpu.training.fused.groups import Fuser; from tests.models import Mlp;"
        "from raygpu.search.trials import Trial;"
        "own = [Trial(Trial.name(i), i, {'hidden': 8, 'lr': 0.1 * i}) for i in (1, 2)]; experiment = Mlp();"
        "[group] = Fuser(experiment, experiment.data()).groups(own);"
        "sys.exit(group.reason or 'torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


class Counting(nn.Module):
    """Puts new buffers in place of old ones, and lets its output depend on them."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(64, 10)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.register_buffer("mean", torch.zeros(10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.last(x)
        if self.training:
            self.steps = self.steps + 1
            self.mean = 0.9 * self.mean + 0.1 * y.detach().mean(0)
        return torch.where(self.steps > 1, 2.0, 1.0) * (y - self.mean)


def test_buffers_that_are_replaced_are_kept() -> None:
    experiment = Of(lambda hp: Counting())
    found = trials()
    assert why(experiment, found) is None
    settings = Settings(2, 1, "float32", Path())
    array = TorchArray(experiment, few(), found, settings)
    while array.run_epoch() is not None:
        pass
    for trial in found:
        alone = TorchSolo(experiment, few(), trial, settings)
        while alone.run_epoch() is not None:
            pass
        state = array.member_state(trial.trial_id)["model"]
        assert state["steps"] == alone.model.state_dict()["steps"] > 1
        assert torch.allclose(state["mean"], alone.model.state_dict()["mean"], rtol=1e-4, atol=1e-6)


class Hooked(nn.Linear):
    """Its weight's gradient is nothing, by a hook that vmap does not see."""

    def __init__(self) -> None:
        super().__init__(64, 10)
        self.weight.register_hook(torch.zeros_like)


def test_hooks_are_refused_by_name() -> None:
    assert "the parameter weight has a hook" in reason(Of(lambda hp: Hooked()))


class Swapped(nn.Linear):
    """Another function of the weights than autograd takes the gradient of, by a value that is in no record."""

    def __init__(self, scale: float) -> None:
        super().__init__(64, 10)
        self.__dict__["_scale"] = [scale]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._scale[0] * super().forward(x)


@pytest.mark.parametrize("lr", [1e-8, 1e-2])
def test_small_steps_hide_no_gradient(lr: float) -> None:
    experiment = Of(lambda hp: Swapped(getattr(hp, "_values", hp)["scale"]))
    found = trials(own=[{"lr": lr, "scale": 1.0}, {"lr": 2 * lr, "scale": 1.01}])
    assert "of t0001 differs" in reason(experiment, found)


class Unfreezing(Head):
    """Detaches its first layer in the first 20 steps, counted in Python."""

    steps = 0

    def inside(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += self.training
        return x if self.steps > 20 else x.detach()


class OfTheBatch(Head):
    """Reads a hyper-parameter in large batches alone."""

    def __init__(self, hp: Mapping[str, Any]) -> None:
        super().__init__()
        self.hp = hp

    def inside(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.hp["scale"] if len(x) > 8 else x


class OwnGenerator(Head):
    def __init__(self) -> None:
        super().__init__()
        self.generator = np.random.default_rng(0)

    def inside(self, x: torch.Tensor) -> torch.Tensor:
        return x * float(self.generator.random())


class Catching(Head):
    def inside(self, x: torch.Tensor) -> torch.Tensor:
        try:
            return 3 * x if (self.last.weight.mean() - 7).abs() < 1 else x
        except RuntimeError:
            return x


class Clamping(Head):
    def inside(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.last.weight.clamp_(-0.1, 0.1)
        return x


class Remembering(Head):
    kept: torch.Tensor | None = None

    def inside(self, x: torch.Tensor) -> torch.Tensor:
        if self.kept is None:
            self.kept = x.detach().mean(0)
        return x - self.kept


class Reseeding(Head):
    def inside(self, x: torch.Tensor) -> torch.Tensor:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            return x @ torch.randn(8, 8, dtype=x.dtype)


class HookedActivation(Head):
    def inside(self, x: torch.Tensor) -> torch.Tensor:
        if x.requires_grad:
            x.register_hook(lambda gradient: 2 * gradient)
        return x


@pytest.mark.parametrize(
    ("make", "cause"),
    [
        (Unfreezing, "Unfreezing.steps changes while it trains"),
        (OwnGenerator, "OwnGenerator.generator changes while it trains"),
        (Catching, r"data-dependent control flow.*in Catching.inside .*goes on after the error"),
        (Clamping, "a forward pass changes the parameter last.weight in place"),
        (Remembering, "Remembering.kept is set while it trains"),
        (Reseeding, "the model seeds torch's generator"),
        (HookedActivation, "a hook on a tensor does not run in an array, in HookedActivation.inside"),
    ],
)
def test_python_state_and_hidden_errors_are_refused_by_name(make: type[nn.Module], cause: str) -> None:
    assert re.search(cause, reason(Of(lambda hp: make())))


def test_a_name_that_only_large_batches_read_is_part_of_the_signature() -> None:
    hp = {"lr": 0.1, "scale": 2.0, "batch_size": 16}
    assert "scale" in names_read(Of(OfTheBatch), Trial("t0000", 0, hp), few())
    assert "scale" not in names_read(Of(OfTheBatch), Trial("t0000", 0, {**hp, "batch_size": 8}), few())


class Gambler(nn.Linear):
    """Draws from random numbers that are not torch's, in a way that shows in few results."""

    def __init__(self, draw: Callable[[], float]) -> None:
        super().__init__(64, 10)
        self.draw = draw

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x) if self.draw() < 1e-9 else super().forward(x)


@pytest.mark.parametrize("draw", [random.random, lambda: random.uniform(0, 1), np.random.rand])
def test_random_numbers_that_are_not_torch_s_are_no_member_s_own(draw: Callable[[], float]) -> None:
    assert "Python's or NumPy's random numbers" in (why(Of(lambda hp: Gambler(draw))) or "")


def test_another_thread_may_draw() -> None:
    over = threading.Event()

    def draws() -> None:
        while not over.wait(0.001):
            random.random()

    other = threading.Thread(target=draws)
    other.start()
    try:
        assert why(Of(lambda hp: nn.Linear(64, 10))) is None
    finally:
        over.set()
        other.join()


class NoisyLoss(Of):
    """Its loss draws random numbers, and its model returns something that is no tensor."""

    def loss(self, outputs: Any, targets: Any) -> Any:
        return super().loss(outputs[0] + 0.1 * torch.randn_like(outputs[0]), targets)

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        return super().metrics(outputs[0], targets)


class Pair(nn.Linear):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override] # as some models do
        return super().forward(x), None


def test_a_loss_that_draws_and_outputs_that_are_no_tensors() -> None:
    assert why(NoisyLoss(lambda hp: Pair(64, 10))) is None


def test_which_names_there_are_is_part_of_the_signature() -> None:
    def model(hp: Mapping[str, Any]) -> nn.Module:
        depth = sum(name.startswith("layer") for name in hp)
        return nn.Sequential(*[nn.Linear(64, 64) for _ in range(depth)], nn.Linear(64, 10))

    experiment = Of(model)
    own = [{"lr": 0.1}, {"lr": 0.2}, {"lr": 0.1, "layer1": 1}, {"lr": 0.3, "layer1": 2}]
    groups = Fuser(experiment, few()).groups(trials(own=own))
    assert ids(groups) == [["t0000", "t0001"], ["t0002", "t0003"]]
    assert [group.reason for group in groups] == [None, None]


def test_relative_paths_start_where_the_experiment_lies(tmp_path: Path) -> None:
    torch.save(torch.ones(10, 64), tmp_path / "start.pt")

    def model(hp: Mapping[str, Any]) -> nn.Module:
        layer = nn.Linear(64, 10)
        layer.weight.data = torch.load("start.pt")
        return layer

    assert [group.reason for group in Fuser(Of(model), few(), folder=tmp_path).groups(trials())] == [None]


def test_a_batch_of_one_keeps_no_other_size_from_being_fused() -> None:
    def model(hp: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10))

    own = [{"lr": lr, "batch_size": size} for size in (1, 16) for lr in (0.1, 0.2)]
    groups = Fuser(Of(model), few()).groups(trials(own=own))
    assert groups[1].reason is None


COUNTED = [0]


def counted_by_a_helper(training: bool) -> bool:
    COUNTED[0] += training
    return COUNTED[0] > 500


class ByAHelper(Head):
    def inside(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x if counted_by_a_helper(self.training) else x


class ByADefault(Head):
    def inside(self, x: torch.Tensor, counts: list[int] = [0]) -> torch.Tensor:  # noqa: B006 - what is to be found
        counts[0] += 1
        return 2 * x if counts[0] > 500 else x


class ByAnIterator(Head):
    def __init__(self) -> None:
        super().__init__()
        self.scales = iter([1.0] * 500 + [2.0] * 500)

    def inside(self, x: torch.Tensor) -> torch.Tensor:
        return x * next(self.scales)


class Slotted:
    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class BySlots(Head):
    def __init__(self) -> None:
        super().__init__()
        self.slotted = Slotted()

    def inside(self, x: torch.Tensor) -> torch.Tensor:
        self.slotted.count += 1
        return 2 * x if self.slotted.count > 500 else x


@pytest.mark.parametrize(
    ("make", "cause"),
    [
        (ByAHelper, "the global COUNTED changes"),
        (ByADefault, "the default 0 of ByADefault.inside changes"),
        (ByAnIterator, "ByAnIterator.scales changes"),
        (BySlots, "BySlots.slotted changes"),
    ],
)
def test_state_that_lies_deeper_is_found(make: type[nn.Module], cause: str) -> None:
    assert cause in reason(Of(lambda hp: make()))


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
@pytest.mark.parametrize("zero", [True, False])
def test_a_bias_whose_gradient_is_rounding_is_no_obstacle(optimizer: str, zero: bool) -> None:
    """A bias before BatchNorm: Adam makes a step of full size of whatever rounding leaves."""

    def model(hp: Mapping[str, Any]) -> nn.Module:
        first = nn.Linear(64, 8)
        if zero:
            nn.init.zeros_(first.bias)
        return nn.Sequential(first, nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10))

    experiment = Of(model)
    found = trials({"optimizer": optimizer}, [{"lr": 0.01}, {"lr": 0.03}, {"lr": 0.1}])
    assert why(experiment, found) is None
    array = TorchArray(experiment, few(), found, Settings(4, 1, "float32", Path()))
    while array.run_epoch() is not None:  # its audits raise nothing
        pass


class Raw(Of):
    """Inputs and losses of thousands: a step of a usual size would leave every number infinite."""

    def data(self) -> Splits:
        digits = few()
        return Splits(
            255 * digits.train_inputs, digits.train_targets, 255 * digits.validation_inputs, digits.validation_targets
        )

    def loss(self, outputs: Any, targets: Any) -> Any:
        return (outputs - 255 * nn.functional.one_hot(targets, 10)).square().mean()


def test_steps_suit_the_size_of_the_gradient() -> None:
    deep = Raw(lambda hp: nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10)))
    found = trials(own=[{"lr": 1e-9 * (i + 1)} for i in range(7)])
    assert why(deep, found) is None
    scaled = Raw(lambda hp: Scaled(float(torch.rand(()))))
    assert "Scaled.scale differs between trials" in reason(scaled, found)


def test_a_cache_that_all_trials_share_is_no_obstacle() -> None:
    cache: dict[int, torch.Tensor] = {}

    class Cached(Head):
        def inside(self, x: torch.Tensor) -> torch.Tensor:
            if len(x) not in cache:
                cache[len(x)] = torch.arange(8)
            return x + cache[len(x)].to(x)

    assert why(Of(lambda hp: Cached())) is None
