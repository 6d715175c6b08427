"""Torch experiments whose gradients do not all come from one pass through the model, each of its own kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from raygpu import Mean, Splits, Sum, TorchExperiment
from tests.models import few


class Plain(TorchExperiment):
    def data(self) -> Splits:
        return few(90, 16)

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 10))

    def augment(self, inputs: Any, hp: Mapping[str, Any]) -> Any:
        self.inputs = inputs
        return inputs


class Penalty(Plain):
    """The loss reads the parameters by itself."""

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        self.m = super().model(hp)
        return self.m

    def loss(self, outputs: Any, targets: Any) -> Any:
        return functional.cross_entropy(outputs, targets) + 0.1 * sum(p.square().sum() for p in self.m.parameters())


class Consistency(Penalty):
    """The loss runs the model a second time."""

    def loss(self, outputs: Any, targets: Any) -> Any:
        again = self.m(0.9 * self.inputs) if torch.is_grad_enabled() else outputs
        return functional.cross_entropy(outputs, targets) + functional.mse_loss(again, outputs)


class Distillation(Plain):
    """The loss keeps a frozen teacher."""

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        self.teacher = super().model(hp).double()
        return super().model(hp)

    def loss(self, outputs: Any, targets: Any) -> Any:
        with torch.no_grad():
            taught = self.teacher(self.inputs) if outputs.requires_grad else outputs
        return functional.cross_entropy(outputs, targets) + functional.mse_loss(outputs, taught)


class Scaled(Plain):
    """A parameter without dimensions is used by the loss alone, and another one by nobody."""

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        self.m = super().model(hp)
        self.m.register_parameter("scale", nn.Parameter(torch.tensor(1.5)))
        self.m.register_parameter("unused", nn.Parameter(torch.ones(3)))
        return self.m

    def loss(self, outputs: Any, targets: Any) -> Any:
        return functional.cross_entropy(outputs * self.m.scale, targets)


class _Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.rare = nn.Linear(64, 16), nn.Linear(16, 10), nn.Linear(16, 10)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.body(pixels))
        chosen = (pixels[:, 10] > 0.9).nonzero()[:, 0]
        found: torch.Tensor = self.head(hidden)
        return found.index_add(0, chosen, self.rare(hidden[chosen])) if len(chosen) else found


class Branch(Plain):
    """A branch that some batches, and some ranks' shares, do not take."""

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return _Branching()


class Tied(Plain):
    """Tied weights, and a frozen parameter."""

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        layers = [nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16), nn.Linear(16, 10)]
        layers[4].weight = layers[2].weight
        layers[0].bias.requires_grad = False  # type: ignore[union-attr]
        return nn.Sequential(*layers)


class _Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.3, dtype=torch.float64))
        self.weight = nn.Parameter(0.1 * torch.randn(64, 10, dtype=torch.complex128))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("flags", torch.tensor([True, False]))

    def to(self, *arguments: Any, **options: Any) -> Any:
        return self

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return (pixels.to(torch.complex128) @ self.weight).abs() * self.scale


class Complex(Plain):
    """Complex numbers, and buffers that are no fractions."""

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return _Complex()


class _Sparse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.last = nn.Embedding(30, 8, sparse=True), nn.Linear(8, 10)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.last(self.tokens(tokens).mean(1))  # type: ignore[no-any-return]


class Sparse(Plain):
    def data(self) -> Splits:
        part = few(90, 16)
        inputs = [np.rint(np.asarray(x) * 16).astype(np.int64) for x in (part.train_inputs, part.validation_inputs)]
        return Splits(inputs[0], part.train_targets, inputs[1], part.validation_targets)

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return _Sparse()


class _Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(64, 16), nn.Linear(16, 16), nn.Linear(16, 10)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.first(pixels))
        for _ in range(2):
            hidden = checkpoint(lambda x: torch.tanh(self.inner(x)), hidden, use_reentrant=True)
        return self.last(hidden)  # type: ignore[no-any-return]


class Checkpointed(Plain):
    """One gradient comes in two pieces."""

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return _Checkpointed()


class ChannelsLast(Plain):
    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        second = nn.Conv2d(4, 6, 3).to(memory_format=torch.channels_last)
        inner = [nn.Conv2d(1, 4, 3), nn.ReLU(), second, nn.Flatten(), nn.Linear(96, 10)]
        return nn.Sequential(nn.Unflatten(1, (1, 8, 8)), *inner)


class Summed(Plain):
    def loss(self, outputs: Any, targets: Any) -> Any:
        return Sum(functional.cross_entropy(outputs, targets, reduction="sum") / 50)


class Masked(Plain):
    """Most shares of a batch have no valid target, and some batches have none."""

    def loss(self, outputs: Any, targets: Any) -> Any:
        valid = targets == 3
        return Mean((functional.cross_entropy(outputs, targets, reduction="none") * valid).sum(), valid.sum())


class Ignored(Plain):
    def loss(self, outputs: Any, targets: Any) -> Any:
        targets = torch.where(targets < 8, -100, targets)
        total = functional.cross_entropy(outputs, targets, ignore_index=-100, reduction="sum")
        return Mean(total, (targets != -100).sum())


class Weighted(Plain):
    def loss(self, outputs: Any, targets: Any) -> Any:
        weights = torch.linspace(0.1, 3, 10, dtype=outputs.dtype)
        total = functional.cross_entropy(outputs, targets, weight=weights, reduction="sum")
        return Mean(total, weights[targets].sum())


class Dice(Plain):
    """The denominator of its mean depends on the model too."""

    def loss(self, outputs: Any, targets: Any) -> Any:
        shares, wanted = outputs.softmax(1), functional.one_hot(targets, 10)
        below = shares.square().sum() + wanted.sum()
        return Mean(below - 2 * (shares * wanted).sum(), below)


class Named(Plain):
    """Named inputs and targets, the loss is masked."""

    def data(self) -> Splits:
        part = few(90, 16)
        inputs = [{"left": np.asarray(x)[:, :32], "right": np.asarray(x)[:, 32:]} for x in
                  (part.train_inputs, part.validation_inputs)]  # fmt: skip
        targets = [{"digit": np.asarray(y), "odd": np.asarray(y) % 2 == 1} for y in
                   (part.train_targets, part.validation_targets)]  # fmt: skip
        return Splits(inputs[0], targets[0], inputs[1], targets[1])

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        from tests.train_cases import Halves

        return Halves(16)

    def augment(self, inputs: Any, hp: Mapping[str, Any]) -> Any:
        return inputs

    def loss(self, outputs: Any, targets: Any) -> Any:
        losses = functional.cross_entropy(outputs, targets["digit"], reduction="none")
        return Mean((losses * targets["odd"]).sum(), targets["odd"].sum())

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        return {}


class _Clamping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 16), nn.Linear(16, 10)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.first(pixels))
        if hidden.requires_grad:
            hidden.register_hook(lambda gradient: gradient.clamp(-1e-3, 1e-3))
        return self.last(hidden)  # type: ignore[no-any-return]


class Clamped(Plain):
    """The gradient of each sample is bounded on its way back, in the scale of the whole batch."""

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return _Clamping()


CASES: dict[str, type[Plain]] = {
    kind.__name__: kind
    for kind in (Penalty, Consistency, Distillation, Scaled, Branch, Tied, Complex, Sparse, Checkpointed, ChannelsLast,
                 Summed, Masked, Ignored, Weighted, Dice, Named, Clamped)
}  # fmt: skip
