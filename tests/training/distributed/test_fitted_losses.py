"""A loss that adds up for an untrained model alone is found too, and a step that needs a model in training is looked
at."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from raygpu import Mean
from raygpu.training.distributed.torch_loss_check import TorchLossEvaluator
from tests.training.distributed.test_loss_check import found, made


def hard(outputs: Any, targets: Any) -> tuple[Any, Any]:
    """The losses that are large, and their number: of all samples, until some of them are learned."""
    losses = functional.cross_entropy(outputs, targets, reduction="none")
    chosen = (losses.detach() > 0.5).to(losses)
    return (losses * chosen).sum(), chosen.sum()


def mean_of_hard(self: Any, outputs: Any, targets: Any) -> Any:
    total, count = hard(outputs, targets)
    return total / count.clamp(min=1)


def mean_of_far(self: Any, outputs: Any, targets: Any) -> Any:
    far = (outputs - outputs.detach().new_tensor(1.0e3)).square().mean(1)
    chosen = (far.detach() > 1e5).to(far)
    return (far * chosen).sum() / chosen.sum().clamp(min=1)


def step_on_hard(self: Any, model: Any, inputs: Any, targets: Any, hp: Any) -> Any:
    return mean_of_hard(self, model(inputs), targets)


def confident(model: Any, inputs: Any, targets: Any) -> tuple[Any, Any, Any]:
    """The loss of the targets; of confident samples, that of a second view, and their number."""
    outputs = model(inputs)
    confidence, found = outputs.detach().softmax(1).max(1)
    chosen = (confidence > 0.9).to(outputs)
    second = functional.cross_entropy(model(0.9 * inputs), found, reduction="none") * chosen
    return functional.cross_entropy(outputs, targets), second, chosen.sum().clamp(min=1)


def step_on_confident(self: Any, model: Any, inputs: Any, targets: Any, hp: Any) -> Any:
    supervised, second, count = confident(model, inputs, targets)
    return supervised + second.sum() / count


def step_on_confident_of_all(self: Any, model: Any, inputs: Any, targets: Any, hp: Any) -> Any:
    supervised, second, _ = confident(model, inputs, targets)
    return supervised + second.mean()


class Weighted(nn.Module):
    """A model that returns a learned weight beside its outputs, once for each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.weight = nn.Linear(64, 10), nn.Parameter(torch.zeros(1))

    def forward(self, inputs: Any) -> dict[str, Any]:
        return {"logits": self.linear(inputs), "weight": self.weight.expand(len(inputs), 1)}


def weighted(self: Any, outputs: Any, targets: Any) -> Any:
    weight = outputs["weight"][0, 0]
    return functional.cross_entropy(outputs["logits"], targets) * (-weight).exp() + weight


REFUSED = {
    "hard samples": {"loss": mean_of_hard},
    "hard samples, of large outputs": {"loss": mean_of_far},
    "hard samples in a step": {"training_step": step_on_hard},
    "confident samples in a step": {"training_step": step_on_confident},
}
ACCEPTED = {
    "hard samples as a Mean": {"loss": lambda self, o, t: Mean(*hard(o, t))},
    "hard samples as a Mean in a step": {
        "training_step": lambda self, model, inputs, targets, hp: Mean(*hard(model(inputs), targets))
    },
    "a learned weight": {"model": lambda self, hp: Weighted(), "loss": weighted},
    "confident samples as a mean over all in a step": {"training_step": step_on_confident_of_all},
    "shares": {
        "model": lambda self, hp: nn.Sequential(nn.Linear(64, 10), nn.Softmax(dim=1)),
        "loss": lambda self, o, t: functional.binary_cross_entropy(o, functional.one_hot(t, 10).to(o)),
    },
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_adds_up_for_an_untrained_model_alone_is_found(name: str) -> None:
    (difference,) = found(made(**REFUSED[name]))
    assert (difference.name, difference.kind) == ("loss", "parts")
    assert str(difference).endswith(", once the model fits some of them")


class Table:
    """Counts its copies."""

    nbytes, copies = 2**30, 0

    def __deepcopy__(self, memo: Any) -> Table:
        type(self).copies += 1
        return Table()


def test_data_of_an_experiment_is_not_copied_and_a_lock_is_no_hindrance() -> None:
    experiment: Any = made(loss=mean_of_hard)
    experiment.table, experiment.lock = Table(), threading.Lock()
    assert [each.outputs for each in found(experiment)] == ["fitted"]
    assert Table.copies == 0


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_always_adds_up_is_not(name: str) -> None:
    assert found(made(**ACCEPTED[name])) == []


class _Auxiliary(nn.Module):
    """Has a second output while it trains, and a buffer that counts."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.dropout = nn.Linear(64, 16), nn.Dropout(0.3)
        self.norm, self.aside, self.last = nn.BatchNorm1d(16), nn.Linear(16, 10), nn.Linear(16, 10)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, pixels: torch.Tensor) -> Any:
        hidden = self.norm(self.dropout(self.first(pixels).tanh()))
        self.count += 1  # type: ignore[operator,assignment]
        return (self.last(hidden), self.aside(hidden)) if self.training else self.last(hidden)


@pytest.mark.parametrize(("reduction", "kinds"), [("mean", []), ("sum", ["parts"])])
def test_a_step_that_needs_outputs_of_training_alone(reduction: str, kinds: list[str]) -> None:
    def step(self: Any, model: Any, inputs: Any, targets: Any, hp: Any) -> Any:
        outputs, auxiliary = model(inputs)
        losses = (functional.cross_entropy(each, targets, reduction=reduction) for each in (outputs, auxiliary))
        return sum(losses)

    own = made(model=lambda self, hp: _Auxiliary(), training_step=step)
    assert [each.kind for each in found(own)] == kinds
    splits = own.data()
    look = TorchLossEvaluator(own, {}, splits.train_inputs, splits.train_targets, with_metrics=False)
    assert look.exact
    assert look.gradient_adds_up() == (not kinds)
    assert look.moving_buffers() == ["count"], "as before the look"
