"""Torch experiments whose models are awkward to shard, each in its own way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from raygpu import Mean
from tests.training.distributed.parallel_cases import Plain, Sparse


class _Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner = nn.Sequential(nn.Linear(width, 2 * width + 1), nn.GELU(), nn.Linear(2 * width + 1, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(self.norm(x))  # type: ignore[no-any-return]


class Deep(Plain):
    """Blocks in a list, with first dimensions that 2 and 3 do not divide, and fewer than ranks in the last layer."""

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.first = nn.Linear(64, 7)
                self.blocks = nn.ModuleList(_Block(7) for _ in range(12))
                self.gate, self.last = nn.Linear(7, 1), nn.Linear(7, 10)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                x = torch.tanh(self.first(x))
                for block in self.blocks:
                    x = block(x)
                return self.last(x) * self.gate(x).sigmoid()  # type: ignore[no-any-return]

        return Model()


class TiedTokens(Sparse):
    """The output layer is the embedding, tied as a parameter, and read once more by a functional call."""

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.parts = nn.ModuleDict(
                    {"tokens": nn.Embedding(31, 9), "row": nn.ModuleList([_Block(9), _Block(9)])}
                )
                self.out, self.last = nn.Linear(9, 31, bias=False), nn.Linear(31, 10)
                self.out.weight = self.parts["tokens"].weight  # type: ignore[assignment]

            def forward(self, tokens: torch.Tensor) -> torch.Tensor:
                x = self.parts["tokens"](tokens).mean(1)
                for block in self.parts["row"]:  # type: ignore[union-attr]
                    x = block(x)
                both = self.out(x) + functional.linear(x, self.parts["tokens"].weight)  # type: ignore[arg-type]
                return self.last(both)  # type: ignore[no-any-return]

        return Model()


class Shared(Plain):
    """One block is used twice, another one not at all, and one is frozen."""

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.first, twice, frozen = nn.Linear(64, 9), _Block(9), _Block(9)
                frozen.requires_grad_(False)
                self.row = nn.Sequential(twice, frozen, twice)
                self.unused = nn.ModuleList([_Block(9), nn.Linear(3, 3)])
                self.last = nn.Linear(9, 10)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.last(self.row(self.first(x)))  # type: ignore[no-any-return]

        return Model()


class Recurrent(Plain):
    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.rows, self.last = nn.LSTM(8, 5, num_layers=2, batch_first=True), nn.Linear(5, 10)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.last(self.rows(x.unflatten(1, (8, 8)))[0][:, -1])  # type: ignore[no-any-return]

        return Model()


class Attention(Plain):
    """torch's own encoder, whose evaluation reads the weights of its layers without calling these."""

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        layer = nn.TransformerEncoderLayer(8, 2, 13, dropout=0.0, batch_first=True)
        encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        return nn.Sequential(nn.Unflatten(1, (8, 8)), encoder, nn.Flatten(), nn.Linear(64, 10))


class WeightNormed(Plain):
    """A weight that is computed from two parameters, and one that is cut by its own norm."""

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        normed = nn.utils.parametrizations.weight_norm
        return nn.Sequential(normed(nn.Linear(64, 9)), nn.Tanh(), normed(nn.Linear(9, 9)), nn.Linear(9, 10))


class OwnStep(Deep):
    """Two views of a batch, and a loss of two parts."""

    def training_step(self, model: nn.Module, inputs: Any, targets: Any, hp: Mapping[str, Any]) -> Any:
        one, other = model(inputs), model(0.9 * inputs)
        return Mean(
            functional.cross_entropy(one, targets, reduction="sum") + (one - other).square().sum(), len(targets)
        )


class ByParts(Deep):
    """The step calls the model's blocks, and not the model."""

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(nn.Linear(64, 9), nn.Tanh(), nn.Linear(9, 9), nn.Linear(9, 10))

    def training_step(self, model: nn.Module, inputs: Any, targets: Any, hp: Mapping[str, Any]) -> Any:
        for layer in model:  # type: ignore[attr-defined]
            inputs = layer(inputs)
        return functional.cross_entropy(inputs, targets)


class Freezes(Deep):
    """The step freezes a layer and a block before the forward pass, and a block after it; it unfreezes one again.

    It counts its calls: parts of a batch are calls of their own.
    """

    steps = 0

    def training_step(self, model: Any, inputs: Any, targets: Any, hp: Mapping[str, Any]) -> Any:
        self.steps += 1
        if self.steps > 2:
            model.first.requires_grad_(False)
        model.blocks[3].requires_grad_(self.steps != 3)
        loss = super().training_step(model, inputs, targets, hp)
        if self.steps == 4:
            model.blocks[5].requires_grad_(False)
        return loss


EXACT: dict[str, type[Plain]] = {
    kind.__name__: kind
    for kind in (Deep, TiedTokens, Shared, Recurrent, Attention, WeightNormed, OwnStep, ByParts)
}  # fmt: skip


class ByMethod(Deep):
    """The step calls a method of the model, whose own parameters are not gathered there."""

    def training_step(self, model: Any, inputs: Any, targets: Any, hp: Mapping[str, Any]) -> Any:
        return functional.cross_entropy(model.last(torch.tanh(model.first(inputs))), targets)


class BlockPenalty(Deep):
    """The step reads the weights of a block itself."""

    def training_step(self, model: Any, inputs: Any, targets: Any, hp: Mapping[str, Any]) -> Any:
        loss = functional.cross_entropy(model(inputs), targets)
        return loss + 0.1 * sum(p.square().sum() for p in model.blocks[0].parameters())


class Listed(Deep):
    """The loss reads a list of parameters that it has kept as they were made."""

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        model = super().model(hp)
        self.kept = list(model.parameters())
        return model

    def loss(self, outputs: Any, targets: Any) -> Any:
        return functional.cross_entropy(outputs, targets) + 0.1 * sum(p.square().sum() for p in self.kept)


class Hooked(Deep):
    """A hook halves a gradient."""

    def model(self, hp: Mapping[str, Any]) -> Any:
        model: Any = super().model(hp)
        model.last.weight.register_hook(lambda gradient: gradient / 2)
        return model


class GradientPenalty(Deep):
    """The step takes a gradient by itself."""

    def training_step(self, model: nn.Module, inputs: Any, targets: Any, hp: Mapping[str, Any]) -> Any:
        inputs = inputs.requires_grad_()
        outputs = model(inputs)
        (slope,) = torch.autograd.grad(outputs.sum(), inputs, create_graph=True)
        return functional.cross_entropy(outputs, targets) + slope.square().mean()


class MixedTypes(Deep):
    """Layers of two dtypes."""

    def model(self, hp: Mapping[str, Any]) -> Any:
        model: Any = super().model(hp)
        model.last.weight.data = model.last.weight.data.half()
        return model


class RareBlock(Plain):
    """Samples decide which of two equal blocks is used."""

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.first, self.last = nn.Linear(64, 9), nn.Linear(9, 10)
                self.ways = nn.ModuleList([_Block(9), _Block(9)])

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                chosen = self.ways[int(len(x) > 15)]
                return self.last(chosen(self.first(x)))  # type: ignore[no-any-return]

        return Model()


class RareLayer(RareBlock):
    """The same with layers that are gathered with the root."""

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.first, self.last = nn.Linear(64, 9), nn.Linear(9, 10)
                self.one, self.other = nn.Linear(9, 9), nn.Linear(9, 9)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.last((self.one if len(x) > 15 else self.other)(self.first(x)))  # type: ignore[no-any-return]

        return Model()


class NoGradient(Deep):
    """The loss of some shares has no gradient."""

    def loss(self, outputs: Any, targets: Any) -> Any:
        valid = targets == 3
        if len(targets) < 15:
            return Mean(torch.zeros(()), 0.0)
        return Mean((functional.cross_entropy(outputs, targets, reduction="none") * valid).sum(), valid.sum())


class FreezesInside(Deep):
    """A forward pass freezes a layer."""

    def model(self, hp: Mapping[str, Any]) -> Any:
        model: Any = super().model(hp)
        model.gate.register_forward_hook(lambda *_: model.first.requires_grad_(False) and None)
        return model


class FreezesBlock(Deep):
    """The forward pass of a block freezes its own layer."""

    def model(self, hp: Mapping[str, Any]) -> Any:
        model: Any = super().model(hp)
        block = model.blocks[2]
        block.norm.register_forward_hook(lambda *_: block.inner.requires_grad_(False) and None)
        return model


class FreezesAfter(Deep):
    """The step freezes a layer of the root after the forward pass."""

    def training_step(self, model: Any, inputs: Any, targets: Any, hp: Mapping[str, Any]) -> Any:
        loss = super().training_step(model, inputs, targets, hp)
        model.first.requires_grad_(False)
        return loss


class Unfreezes(Deep):
    """The step unfreezes a block."""

    def model(self, hp: Mapping[str, Any]) -> Any:
        model: Any = super().model(hp)
        model.blocks[4].requires_grad_(False)
        return model

    def training_step(self, model: Any, inputs: Any, targets: Any, hp: Mapping[str, Any]) -> Any:
        model.blocks[4].requires_grad_(True)
        return super().training_step(model, inputs, targets, hp)


class UnfreezesOwn(Unfreezes):
    """The same with an optimizer of its own."""

    def optimizer(self, model: nn.Module, hp: Mapping[str, Any]) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.1)


REFUSED: dict[str, tuple[type[Plain], str]] = {
    kind.__name__: (kind, line)
    for kind, line in (
        (ByMethod, "the loss reads parameters of the model outside its forward pass"),
        (BlockPenalty, "the loss reads parameters of the model outside its forward pass"),
        (Listed, "is held outside the modules of the model"),
        (Hooked, r"the hook of last\.weight would not see its gradient"),
        (GradientPenalty, "computes a gradient of the model by itself"),
        (MixedTypes, "which cannot be sharded together"),
        (RareBlock, "the ranks' samples take other ways through the model .rank 0 at the parameters of ways"),
        (RareLayer, "with gradients of other parameters"),
        (NoGradient, r"rank 1 at the end of the backward pass"),
        (FreezesInside, "freezes or unfreezes parameters inside its forward pass, .*: do it before the forward pass"),
        (FreezesBlock, "freezes or unfreezes parameters inside its forward pass, .*: do it before the forward pass"),
        (FreezesAfter, "freezes or unfreezes parameters inside its forward pass, .*: do it before the forward pass"),
        (Unfreezes, r"blocks\.4\.norm\.weight was frozen when the training began, and now requires a gradient"),
        (UnfreezesOwn, r"blocks\.4\.norm\.weight was frozen when the training began, and now requires a gradient"),
        (Sparse, "has a sparse gradient, which cannot be sharded"),
    )
}
