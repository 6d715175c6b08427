"""Why trials cannot be fused, and what is no obstacle."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint

from raygpu import TorchExperiment
from raygpu.experiment import Splits
from raygpu.training.base import Settings
from raygpu.training.fused import member_models
from raygpu.training.fused.dry_run import names_read, num_parameters, obstacle
from raygpu.training.fused.groups import TorchGrouper
from raygpu.training.fused.model_array import TorchArray
from raygpu.training.torch.solo import TorchSolo
from tests.models import MODELS, few
from tests.training.fused.refusals import Head, If, Make, Of, Tempered, reason, trials, why


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


class SlowMetrics(Of):
    """Metrics that vmap would compute in a slow loop, or not at all."""

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        counts = torch.bincount(outputs.argmax(-1), minlength=10)
        return {"ninth": outputs.flatten().quantile(0.9), "classes": (counts > 0).float().sum()}


class SlowQuantile(Of):
    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        return {"ninth": outputs.flatten().quantile(0.9)}


@pytest.mark.parametrize("kind", [NoisyInputs, HostMetrics, SlowMetrics, SlowQuantile])
def test_augmentation_and_metrics_on_the_host_are_no_obstacle(kind: type[Of]) -> None:
    assert why(kind(lambda hp: Head())) is None


class Gaussian(HostMetrics):
    """Outputs that are an object of a class, beside metrics by NumPy."""

    def loss(self, outputs: Any, targets: Any) -> Any:
        return -outputs.log_prob(targets[:, None].to(outputs.mean)).mean()

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        return {"mean": float(outputs.mean.numpy().mean())}


class GaussianHead(Head):
    def forward(self, x: torch.Tensor) -> Any:
        return torch.distributions.Normal(super().forward(x), 1.0)


def test_the_reason_names_outputs_that_are_no_tensors() -> None:
    text = reason(Gaussian(lambda hp: GaussianHead()))
    assert re.search(r"outputs are an object of a class \(torch\.distributions\).*, in Gaussian\.metrics", text)


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


class Checkpointed(Head):
    def inside(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(torch.tanh, x, use_reentrant=False)


class OwnFunction(Head):
    def inside(self, x: torch.Tensor) -> torch.Tensor:
        return Doubled.apply(x)


def averaging(hp: Mapping[str, Any]) -> nn.Module:
    return nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8, momentum=None), nn.Linear(8, 10))


def pruned(hp: Mapping[str, Any]) -> nn.Module:
    model = Head()
    prune.random_unstructured(model.first, "weight", 0.4)
    return model


def renaming(hp: Mapping[str, Any]) -> nn.Module:
    def rename(module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> None:
        """Give all tensors other names."""
        for name in list(state):
            state[f"net.{name}"] = state.pop(name)

    model = Head()
    model.register_state_dict_post_hook(rename)
    return model


@pytest.mark.parametrize(
    ("make", "cause"),
    [
        (pruned, r"Linear\.first\.weight changes while it trains, as torch\.nn\.utils\.prune sets it"),
        (renaming, r"net\.first\.weight: a name in state_dict\(\) of no parameter or buffer cannot be stacked"),
        (lambda hp: Recurrent(nn.LSTM), r"lstm.*(no rule|slow loop)"),
        (lambda hp: Recurrent(nn.GRU), r"gru.*(no rule|slow loop)"),
        (lambda hp: Normed(), r"aten::_weight_norm\w* runs as a slow loop under vmap"),
        (lambda hp: If(), "data-dependent control flow"),
        (lambda hp: Item(), r"data-dependent control flow|\.item\(\)"),
        (lambda hp: Masked(), "boolean-mask indexing.*in Masked.inside"),
        (averaging, r"BatchNorm|item\(\)|number|data-dependent"),
        (lambda hp: OwnFunction(), r"autograd\.Function|setup_context|generate_vmap_rule"),
        (lambda hp: Checkpointed(), r"computes again what it has computed \(torch\.utils\.checkpoint\)"),
    ],
    ids=[
        "pruned",
        "state-dict-hook",
        "lstm",
        "gru",
        "weight-norm",
        "if",
        "item",
        "mask",
        "batchnorm-momentum",
        "own-function",
        "checkpoint",
    ],
)
def test_obstacles_name_their_cause(make: Make, cause: str) -> None:
    text = reason(Of(make))
    assert re.search(cause, text, re.IGNORECASE), text


class Padded(TorchExperiment):
    """A transformer's encoder on sequences with padding, whose outputs there count in a mean over all positions."""

    def __init__(self, *, nested: bool) -> None:
        self.nested = nested

    def data(self) -> Splits:
        generator = np.random.default_rng(0)
        inputs = generator.normal(size=(48, 5, 8)).astype(np.float32)
        padding = np.arange(5)[None] >= generator.integers(2, 6, 48)[:, None]
        parts = {"x": inputs, "padding": padding}
        return Splits(
            parts,
            generator.integers(0, 4, 48),
            {name: part[:32] for name, part in parts.items()},
            padding[:32, 3].astype(np.int64),
        )

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return Encoder(nested=self.nested)


class Encoder(nn.Module):
    def __init__(self, *, nested: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 8, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=nested)
        self.last = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        return self.last(self.encoder(x, src_key_padding_mask=padding).mean(1))


@pytest.mark.filterwarnings("ignore:.*nested tensors")
def test_evaluations_by_the_fast_path_of_attention() -> None:
    assert re.search("fast path of attention gives 0 at padded positions", reason(Padded(nested=True)))
    assert why(Padded(nested=False)) is None
    assert torch.backends.mha.get_fastpath_enabled(), "an array leaves it to others"


class Clamped(Head):
    """Meets a number in double precision."""

    def inside(self, x: torch.Tensor) -> torch.Tensor:
        return x.clamp(max=x.detach().double().abs().mean())


def test_a_number_of_a_wider_dtype() -> None:
    text = reason(Of(lambda hp: Clamped()))
    assert re.search(r"wider dtype of a number.*in Head\.forward", text), text


@pytest.fixture
def by_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave a differing attribute to the comparison of steps."""
    monkeypatch.setattr(member_models, "differing_attributes", lambda *_: [])


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
    assert "Scaled.scale differs between trials" in reason(experiment, found)
    assert why(experiment, trials({"scale": 2.0})) is None


@pytest.mark.usefixtures("by_steps")
@pytest.mark.parametrize(
    ("optimizer", "lr", "scale"), [("sgd", 1e-7, 2.0), ("adam", 1e-3, 1.001)], ids=["tiny steps", "adam"]
)
def test_a_value_whose_effect_on_a_step_is_small(optimizer: str, lr: float, scale: float) -> None:
    """Adam's first step is nearly the gradient's sign."""
    experiment = Of(lambda hp: Scaled(getattr(hp, "_values", hp)["scale"]))
    found = trials({"optimizer": optimizer, "lr": lr}, [{"scale": 1.0}, {"scale": scale}])
    assert "Scaled.scale differs between trials" in reason(experiment, found)


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
    assert "the parameter first.weight differs" in reason(
        Of(lambda hp: Head(getattr(hp, "_values", hp)["features"])), found
    )


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
        "import sys; from raygpu.training.fused.groups import TorchGrouper; from tests.models import Mlp;"
        "from raygpu.search.trials import Trial;"
        "own = [Trial(Trial.name(i), i, {'hidden': 8, 'lr': 0.1 * i}) for i in (1, 2)]; experiment = Mlp();"
        "[group] = TorchGrouper(experiment, experiment.data()).groups(own);"
        "sys.exit(group.reason or 'torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


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


def test_a_batch_of_one_keeps_no_other_size_from_being_fused() -> None:
    def model(hp: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10))

    own = [{"lr": lr, "batch_size": size} for size in (1, 16) for lr in (0.1, 0.2)]
    groups = TorchGrouper(Of(model), few()).groups(trials(own=own))
    assert groups[1].reason is None


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


@pytest.mark.usefixtures("by_steps")
def test_steps_suit_the_size_of_the_gradient() -> None:
    deep = Raw(lambda hp: nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10)))
    found = trials(own=[{"lr": 1e-9 * (i + 1)} for i in range(7)])
    assert why(deep, found) is None
    scaled = Raw(lambda hp: Scaled(float(torch.rand(()))))
    assert "Scaled.scale differs between trials" in reason(scaled, found)


def test_parameters_are_counted_without_their_memory_or_not_at_all() -> None:
    trial, *_ = trials()
    assert num_parameters(Of(lambda hp: nn.Linear(10**6, 10**6)), trial) == 10**12 + 10**6
    assert num_parameters(Of(lambda hp: nn.LazyLinear(3)), trial) is None
    assert num_parameters(Of(lambda hp: nn.Linear(int(torch.rand(1).item()) + 3, 3)), trial) is None
