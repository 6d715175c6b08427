"""A loss that does not follow from the losses of parts is found before it is trained on parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from raygpu import Mean, Splits, Sum, TorchExperiment
from raygpu.training.distributed.loss_check import Difference, differences
from raygpu.training.distributed.torch_loss_check import TorchLossEvaluator
from tests.models import few
from tests.training.distributed.parallel_cases import Clamped, Dice


class Case(TorchExperiment):
    def data(self) -> Splits:
        return few(150)

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        self.m = nn.Sequential(nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10))
        return self.m


def made(**methods: Any) -> Case:
    return type("Made", (Case,), methods)()


def found(experiment: Case, *, with_metrics: bool = False) -> list[Difference]:
    splits = experiment.data()
    inputs, targets = splits.train_inputs, splits.train_targets
    return differences(TorchLossEvaluator(experiment, {}, inputs, targets, with_metrics=with_metrics), inputs, targets)


def with_rare_target(self: Any) -> Splits:
    """One of 3,000 samples has a target that the loss leaves out."""
    draw = np.random.default_rng(0)
    inputs, targets = draw.normal(size=(3000, 64)).astype(np.float32), draw.integers(0, 10, 3000)
    targets[1717] = -1
    return Splits(inputs, targets, inputs[:9], targets[:9])


def with_missing_numbers(self: Any) -> Splits:
    draw = np.random.default_rng(0)
    inputs, targets = draw.normal(size=(3000, 64)).astype(np.float32), draw.normal(size=3000).astype(np.float32)
    targets[[5, 1717]] = np.nan
    return Splits(inputs, targets, inputs[:9], np.zeros(9, np.float32))


def with_mask(self: Any) -> Splits:
    part = few(200)
    masked = {"label": np.asarray(part.train_targets), "mask": np.arange(200) % 67 == 3}
    return Splits(part.train_inputs, masked, part.validation_inputs, {"label": part.validation_targets,
                                                                      "mask": np.ones(64, bool)})  # fmt: skip


def contrastive(self: Any, outputs: Any, targets: Any) -> Any:
    unit = functional.normalize(outputs, dim=1)
    return functional.cross_entropy(unit @ unit.T / 0.1, torch.arange(len(unit)))


def dice(self: Any, outputs: Any, targets: Any) -> Any:
    shares, wanted = outputs.softmax(1), functional.one_hot(targets, 10)
    return 1 - 2 * (shares * wanted).sum() / (shares.square().sum() + wanted.sum())


def masked(self: Any, outputs: Any, targets: Any) -> Any:
    losses = functional.cross_entropy(outputs, targets["label"], reduction="none")
    return (losses * targets["mask"]).sum() / targets["mask"].sum().clamp(min=1)


def present(self: Any, outputs: Any, targets: Any) -> Any:
    there = ~targets.isnan()
    return functional.mse_loss(outputs[there, 0], targets[there])


def weights(outputs: Any) -> Any:
    return torch.linspace(0.5, 2, 10, dtype=outputs.dtype)


REFUSED = {
    "sum": {"loss": lambda self, o, t: functional.cross_entropy(o, t, reduction="sum")},
    "ignore_index": {"loss": lambda self, o, t: functional.cross_entropy(o, t, ignore_index=3)},
    "one target of 3,000 is ignored": {
        "data": with_rare_target,
        "loss": lambda self, o, t: functional.cross_entropy(o, t, ignore_index=-1),
    },
    "class weights": {"loss": lambda self, o, t: functional.cross_entropy(o, t, weight=weights(o))},
    "missing numbers": {"data": with_missing_numbers, "loss": present},
    "a mask by name": {"data": with_mask, "loss": masked},
    "Dice": {"loss": dice},
    "contrastive": {"loss": contrastive},
    "contrastive in training alone": {
        "loss": lambda self, o, t: contrastive(self, o, t) if o.requires_grad else o.mean()
    },
    "a Mean of means": {"loss": lambda self, o, t: Mean(functional.cross_entropy(o, t), len(t))},
    "a Sum with a term for each batch": {
        "loss": lambda self, o, t: Sum(
            functional.cross_entropy(o, t, reduction="sum") + self.m[0].weight.square().sum()
        )
    },
}
ACCEPTED = {
    "a mean": {},
    "with a term of the parameters": {
        "loss": lambda self, o, t: functional.cross_entropy(o, t) + self.m[0].weight.square().sum()
    },
    "with a term that needs what augment() leaves": {
        "loss": lambda self, o, t: functional.cross_entropy(o, t) + (self.inputs.mean() if o.requires_grad else 0)
    },
    "a Sum": {"loss": lambda self, o, t: Sum(functional.cross_entropy(o, t, reduction="sum"))},
    "ignore_index as a Mean": {
        "loss": lambda self, o, t: Mean(
            functional.cross_entropy(o, t, ignore_index=3, reduction="sum"), (t != 3).sum()
        )
    },
    "in float32 alone": {"loss": lambda self, o, t: functional.cross_entropy(o.float(), t, weight=torch.ones(10))},
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_add_up_is_found(name: str) -> None:
    (difference,) = found(made(**REFUSED[name]))
    assert (difference.name, difference.kind) == ("loss", "parts")
    assert difference.whole != difference.together
    assert "but" in str(difference)


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_adds_up_is_not(name: str) -> None:
    assert found(made(**ACCEPTED[name])) == []


class _Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(64, 10)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return functional.dropout(self.last(pixels))  # in evaluation mode too


def test_a_model_that_draws_numbers_is_compared_by_its_outputs() -> None:
    assert found(made(model=lambda self, hp: _Dropping())) == []
    loss = REFUSED["sum"]["loss"]
    assert [each.kind for each in found(made(model=lambda self, hp: _Dropping(), loss=loss))] == ["parts"]


def test_a_loss_that_draws_numbers_or_counts_is_not_known() -> None:
    def drawn(self: Any, outputs: Any, targets: Any) -> Any:
        return functional.cross_entropy(outputs + torch.randn_like(outputs), targets)

    def counted(self: Any, outputs: Any, targets: Any) -> Any:
        self.calls = getattr(self, "calls", 0) + 1
        return functional.cross_entropy(outputs, targets) * (1.0 if self.calls < 9 else float("nan"))

    def rising(self: Any, outputs: Any, targets: Any) -> Any:
        self.calls = getattr(self, "calls", 0) + 1
        return functional.cross_entropy(outputs, targets) * self.calls

    assert [each.kind for each in found(made(loss=drawn))] == ["unsteady"]
    assert [each.kind for each in found(made(loss=counted))] == ["unsteady"]
    assert found(made(loss=rising)) == [], "the same state for each part"


def of_views(self: Any, model: Any, inputs: Any, targets: Any, hp: Any) -> Any:
    """Compares two random views of each sample with those of all others."""
    one, other = (functional.normalize(model(inputs + 0.1 * torch.randn_like(inputs)), dim=1) for _ in range(2))
    return functional.cross_entropy(one @ other.T / 0.1, torch.arange(len(inputs)))


def denoised(self: Any, model: Any, inputs: Any, targets: Any, hp: Any) -> Any:
    return functional.cross_entropy(model(inputs + 0.1 * torch.randn_like(inputs)), targets)


def of_some(self: Any, model: Any, inputs: Any, targets: Any, hp: Any) -> Any:
    """The loss of half of the samples, by chance."""
    chosen = torch.randperm(len(inputs))[: (len(inputs) + 1) // 2]
    return functional.cross_entropy(model(inputs[chosen]), targets[chosen])


@pytest.mark.parametrize(("step", "kind"), [(of_views, "parts"), (denoised, "unsteady"), (of_some, "unsteady")])
def test_a_step_that_draws_noise_and_compares_samples_is_found(step: Any, kind: str) -> None:
    assert [each.kind for each in found(made(training_step=step))] == [kind]


def test_a_model_whose_outputs_depend_on_the_batch() -> None:
    def model(self: Any, hp: Any) -> nn.Module:
        return nn.Sequential(nn.Linear(64, 10), nn.BatchNorm1d(10, track_running_stats=False))

    assert [each.kind for each in found(made(model=model))] == ["outputs"]


def test_metrics() -> None:
    def metrics(self: Any, outputs: Any, targets: Any) -> dict[str, Any]:
        hits, third = outputs.argmax(1) == targets, targets == 3
        return {"accuracy": hits.float().mean(), "precision": hits[third].float().mean(),
                "recall": Mean((hits & third).sum(), third.sum()), "hits": Sum(hits.sum())}  # fmt: skip

    assert [each.name for each in found(made(metrics=metrics), with_metrics=True)] == ["precision"]


def test_samples_that_a_model_needs_at_once_and_buffers_that_move() -> None:
    def look(model: nn.Module) -> TorchLossEvaluator:
        splits = few(20)
        own = made(model=lambda self, hp: model)
        return TorchLossEvaluator(own, {}, splits.train_inputs, splits.train_targets, with_metrics=False)

    plain = look(nn.Linear(64, 10))
    normed = look(nn.Sequential(nn.Linear(64, 10), nn.BatchNorm1d(10)))
    imaged = look(nn.Sequential(nn.Unflatten(1, (1, 8, 8)), nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(64, 10)))
    spectral = look(nn.utils.parametrizations.spectral_norm(nn.Linear(64, 10)))
    assert [each.least_samples() for each in (plain, normed, imaged, spectral)] == [1, 2, 1, 1]
    assert [bool(each.moving_buffers()) for each in (plain, normed, imaged, spectral)] == [False, False, False, True]


class _Quantized(nn.Module):
    """A frozen layer of whole numbers, each row with its scale."""

    def __init__(self) -> None:
        super().__init__()
        self.rounded = nn.Parameter(torch.randint(-127, 128, (10, 64), dtype=torch.int8), requires_grad=False)
        self.scale = nn.Parameter(torch.full((10, 1), 0.01))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the outputs of the layer."""
        return nn.functional.linear(inputs, self.rounded.to(inputs.dtype) * self.scale)


def test_parameters_of_whole_numbers() -> None:
    splits, own = few(20), made(model=lambda self, hp: _Quantized())
    look = TorchLossEvaluator(own, {}, splits.train_inputs, splits.train_targets, with_metrics=False)
    assert (look.moving_buffers(), look.written_parameters()) == ([], [])


class _Mixing(nn.Module):
    """Mixes samples while it trains, by chance."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return 0.7 * inputs + 0.3 * inputs[torch.randperm(len(inputs))] if self.training else inputs


@pytest.mark.parametrize(
    ("layers", "adds_up"),
    [([_Mixing()], False), ([nn.Dropout(0.3), _Mixing()], False), ([nn.Dropout(0.3), _Dropping()], True),
     ([nn.BatchNorm1d(64), nn.Dropout(0.3), nn.RReLU()], True)],
)  # fmt: skip
def test_a_model_that_mixes_samples_and_draws_random_numbers(layers: list[nn.Module], adds_up: bool) -> None:
    splits, last = few(40), [] if isinstance(layers[-1], _Dropping) else [nn.Linear(64, 10)]
    own = made(model=lambda self, hp: nn.Sequential(*layers, *last))
    look = TorchLossEvaluator(own, {}, splits.train_inputs, splits.train_targets, with_metrics=False)
    assert look.gradient_adds_up() == adds_up


class _Centred(nn.Module):
    """Takes a batch's mean from its samples while it trains, and draws numbers."""

    def __init__(self, draw: Any) -> None:
        super().__init__()
        self.draw, self.last = draw, nn.Linear(64, 10)

    def inner(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.draw(inputs - inputs.mean(0)) if self.training else inputs  # type: ignore[no-any-return]

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.last(self.inner(inputs))  # type: ignore[no-any-return]


def smoothed(self: Any, model: Any, inputs: Any, targets: Any, hp: Any) -> Any:
    return functional.cross_entropy(model(inputs), targets, label_smoothing=0.1)


def by_modules(self: Any, model: Any, inputs: Any, targets: Any, hp: Any) -> Any:
    return functional.cross_entropy(model.last(model.inner(inputs)), targets)


def as_evaluated(self: Any, model: Any, inputs: Any, targets: Any, hp: Any) -> Any:
    noise = torch.randn_like(inputs)
    return functional.cross_entropy(model.eval()(inputs + noise), targets)


def noised(inputs: torch.Tensor) -> torch.Tensor:
    return inputs + 0.1 * torch.randn_like(inputs)


def hidden(inputs: torch.Tensor) -> torch.Tensor:
    return functional.dropout(inputs, 0.1)


def mixed(inputs: torch.Tensor) -> torch.Tensor:
    return inputs + 0.1 * inputs[torch.randperm(len(inputs))]


@pytest.mark.parametrize("draw", [noised, hidden, mixed])
@pytest.mark.parametrize("step", [smoothed, by_modules, as_evaluated])
def test_a_step_whose_model_looks_at_its_batch_and_draws_random_numbers(step: Any, draw: Any) -> None:
    """What a step calls without the model itself is compared with constants in place of numbers, not of an order."""
    splits, own = few(40), made(model=lambda self, hp: _Centred(draw), training_step=step)
    look = TorchLossEvaluator(own, {}, splits.train_inputs, splits.train_targets, with_metrics=False)
    assert look.gradient_adds_up() == (step is as_evaluated or (step is by_modules and draw is mixed))


@pytest.mark.parametrize("step", [smoothed, denoised])
@pytest.mark.parametrize("draw", [noised, hidden])
def test_a_step_that_draws_random_numbers_for_each_sample_adds_up(step: Any, draw: Any) -> None:
    splits, own = few(40), made(training_step=lambda self, model, x, *rest: step(self, model, draw(x), *rest))
    look = TorchLossEvaluator(own, {}, splits.train_inputs, splits.train_targets, with_metrics=False)
    assert look.gradient_adds_up()


def mean_of_all(self: Any, outputs: Any, targets: Any) -> Any:
    return Mean(functional.cross_entropy(outputs, targets, reduction="sum"), len(targets))


@pytest.mark.parametrize(("methods", "adds_up"), [({}, True), ({"loss": mean_of_all}, False)])
def test_a_bound_on_gradients_of_samples_holds_in_the_scale_of_the_batch(methods: Any, adds_up: bool) -> None:
    """The parts of a `Mean` have the gradient of its numerator, of another scale than the whole."""
    splits, own = few(40), made(model=Clamped.model, **methods)
    look = TorchLossEvaluator(own, {}, splits.train_inputs, splits.train_targets, with_metrics=False)
    assert look.gradient_adds_up() == adds_up


@pytest.mark.parametrize("loss", [mean_of_all, REFUSED["sum"]["loss"], Dice.loss])
def test_the_gradient_of_means_and_sums_adds_up(loss: Any) -> None:
    splits = few(40)
    look = TorchLossEvaluator(made(loss=loss), {}, splits.train_inputs, splits.train_targets, with_metrics=False)
    assert look.gradient_adds_up() == (loss is not REFUSED["sum"]["loss"])


class _Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(64, 10)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(64))

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        self.count += int(self.training)  # type: ignore[operator,assignment]
        if self.training and self.count > 3:
            self.mean.lerp_(pixels.detach().mean(0).to(self.mean), 0.5)  # type: ignore[operator,arg-type]
        return self.last(pixels - self.mean)  # type: ignore[no-any-return]


def test_buffers_that_begin_to_move_by_a_count_are_found() -> None:
    splits, own = few(20), made(model=lambda self, hp: _Counting())
    look = TorchLossEvaluator(own, {}, splits.train_inputs, splits.train_targets, with_metrics=False)
    assert look.moving_buffers() == ["count", "mean"]
