"""What models are made of, beside layers: ties, frozen parts, buffers, kinds of parameters, and functions of torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from tests.contracts.zoo.entry import CLASSES, WIDTH, Entry, Inside, Numbers, Texts, Vectors, mlp, normal

COUNTED = r"buffer|statistic|state"


class TiedLayers(Vectors):
    """One layer in two places."""

    compiled = True

    def model(self, hp: Any) -> nn.Module:
        layer = nn.Linear(8, 8)
        return mlp(nn.Tanh(), layer, nn.Tanh(), layer)


class TiedWeights(Texts):
    """The embedding is the output layer as well."""

    def model(self, hp: Any) -> nn.Module:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.embedding, self.last = nn.Embedding(20, 6), nn.Linear(6, 20, bias=False)
                self.last.weight = self.embedding.weight

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.last(torch.tanh(self.embedding(x)))

        return Model()


class FrozenPart(Vectors):
    def model(self, hp: Any) -> nn.Module:
        model = mlp(nn.ReLU(), nn.Linear(8, 8))
        model[0].requires_grad_(False)
        model[2].bias.requires_grad_(False)
        return model


class FrozenBatchNorm(Vectors):
    """In evaluation mode for ever: `train()` does not reach it."""

    def model(self, hp: Any) -> nn.Module:
        class Frozen(nn.BatchNorm1d):
            def train(self, mode: bool = True) -> nn.Module:
                return super().train(False)

        return mlp(Frozen(8), nn.ReLU())


class TrainWithoutReturn(Vectors):
    """`train()`, which freezes BatchNorm as many repositories do, returns nothing, and so does `eval()`."""

    def model(self, hp: Any) -> nn.Module:
        class Frozen(Inside):
            def __init__(self) -> None:
                super().__init__()
                self.norm = nn.BatchNorm1d(8)

            def train(self, mode: bool = True) -> None:  # type: ignore[override]
                super().train(mode)
                self.norm.eval()

            def inside(self, x: torch.Tensor) -> torch.Tensor:
                return self.norm(x)

        return Frozen()


class UnusedPart(Vectors):
    """A layer that no step uses: no optimizer moves it, its weight decay included."""

    def model(self, hp: Any) -> nn.Module:
        model = Inside()
        model.unused = nn.Linear(3, 3)
        return model


class DetachedPart(Vectors):
    """A layer that is used, and gets no gradient."""

    def model(self, hp: Any) -> nn.Module:
        class Model(Inside):
            def __init__(self) -> None:
                super().__init__()
                self.side = nn.Linear(8, 8)

            def inside(self, x: torch.Tensor) -> torch.Tensor:
                return x + self.side(x).detach()

        return Model()


class ConstantBuffer(Vectors):
    """A random projection in a buffer, and one that the state dict leaves out."""

    compiled = True

    def model(self, hp: Any) -> nn.Module:
        class Model(Inside):
            def __init__(self) -> None:
                super().__init__()
                self.register_buffer("projection", torch.randn(8, 8))
                self.register_buffer("shift", torch.randn(8), persistent=False)

            def inside(self, x: torch.Tensor) -> torch.Tensor:
                return x @ self.projection + self.shift

        return Model()


class CountingBuffer(Vectors):
    """Counts its steps in whole numbers, in place, and warms up by them."""

    production = COUNTED

    def model(self, hp: Any) -> nn.Module:
        class Model(Inside):
            def __init__(self) -> None:
                super().__init__()
                self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

            def inside(self, x: torch.Tensor) -> torch.Tensor:
                if self.training:
                    self.steps += 1
                return x * (self.steps / 5).clamp(max=1.0).to(x.dtype)

        return Model()


class ReplacedBuffer(Vectors):
    """A moving average in a buffer, which each step replaces by a new tensor."""

    production = COUNTED

    def model(self, hp: Any) -> nn.Module:
        class Model(Inside):
            def __init__(self) -> None:
                super().__init__()
                self.register_buffer("mean", torch.zeros(8))

            def inside(self, x: torch.Tensor) -> torch.Tensor:
                if self.training:
                    self.mean = 0.8 * self.mean + 0.2 * x.detach().mean(0)
                return x - self.mean

        return Model()


class MomentumEncoder(Vectors):
    """A copy of the weights that follows them slowly, in buffers."""

    production = COUNTED

    def model(self, hp: Any) -> nn.Module:
        class Model(Inside):
            def __init__(self) -> None:
                super().__init__()
                self.register_buffer("slow", self.first.weight.detach().clone())

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                if self.training:
                    self.slow.mul_(0.9).add_(0.1 * self.first.weight.detach())
                return super().forward(x) + 0.1 * self.last(x @ self.slow.T)

        return Model()


class VectorQuantisation(Vectors):
    """The nearest of some codes, by a straight-through gradient."""

    def model(self, hp: Any) -> nn.Module:
        class Model(Inside):
            def __init__(self) -> None:
                super().__init__()
                self.codes = nn.Parameter(torch.randn(5, 8))

            def inside(self, x: torch.Tensor) -> torch.Tensor:
                nearest = (x[:, None] - self.codes).square().sum(2).argmin(1)
                code = self.codes[nearest]
                return x + (code - x).detach() + 0.1 * code

        return Model()


class ComplexParameters(Vectors):
    """In single precision, as they are: `to(torch.float64)` would make real numbers of them."""

    dtype = None
    tolerance = 1e-4
    fused = r"complex"
    production = r"complex"

    def model(self, hp: Any) -> nn.Module:
        class Model(Inside):
            def __init__(self) -> None:
                super().__init__()
                self.turns = nn.Parameter(torch.randn(8, dtype=torch.complex64))

            def inside(self, x: torch.Tensor) -> torch.Tensor:
                return (x * self.turns).abs().to(x.dtype)

        return Model()


class ScalarParameter(Vectors):
    """A parameter without dimensions."""

    def model(self, hp: Any) -> nn.Module:
        class Model(Inside):
            def __init__(self) -> None:
                super().__init__()
                self.slope = nn.Parameter(torch.tensor(0.3))

            def inside(self, x: torch.Tensor) -> torch.Tensor:
                return x * self.slope

        return Model()


class ParameterListsAndDicts(Vectors):
    def model(self, hp: Any) -> nn.Module:
        class Model(Inside):
            def __init__(self) -> None:
                super().__init__()
                self.several = nn.ParameterList([torch.randn(8) for _ in range(3)])
                self.named = nn.ParameterDict({"shift": nn.Parameter(torch.randn(8))})

            def inside(self, x: torch.Tensor) -> torch.Tensor:
                return sum(torch.tanh(x * p) for p in self.several) + self.named["shift"]

        return Model()


class Fourier(Vectors):
    """A filter between two Fourier transforms."""

    def model(self, hp: Any) -> nn.Module:
        class Model(Inside):
            def __init__(self) -> None:
                super().__init__()
                self.filter = nn.Parameter(torch.randn(5))

            def inside(self, x: torch.Tensor) -> torch.Tensor:
                return torch.fft.irfft(torch.fft.rfft(x) * self.filter, n=8)

        return Model()


class Einsum(Vectors):
    def model(self, hp: Any) -> nn.Module:
        class Model(Inside):
            def __init__(self) -> None:
                super().__init__()
                self.core = nn.Parameter(torch.randn(8, 3, 8))

            def inside(self, x: torch.Tensor) -> torch.Tensor:
                return torch.einsum("bi,ikj,bj->bk", x, self.core, x).repeat(1, 3)[:, :8]

        return Model()


class SortAndCumulate(Vectors):
    def model(self, hp: Any) -> nn.Module:
        class Model(Inside):
            def inside(self, x: torch.Tensor) -> torch.Tensor:
                ordered, places = x.sort(dim=1)
                return ordered.cumsum(1).gather(1, places) + x.topk(2, dim=1).values.sum(1, keepdim=True)

        return Model()


class LinearAlgebra(Numbers):
    """A linear system that is solved in each forward pass."""

    def model(self, hp: Any) -> nn.Module:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.first, self.ridge = nn.Linear(WIDTH, 8), nn.Parameter(torch.ones(4))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                parts = self.first(x).view(-1, 2, 4)
                gram = parts.transpose(1, 2) @ parts + torch.diag(self.ridge.square() + 1)
                return torch.linalg.solve(gram, parts.sum(1)[..., None])[:, :2, 0]

        return Model()


class InPlaceActivations(Vectors):
    def model(self, hp: Any) -> nn.Module:
        return mlp(nn.ReLU(inplace=True), nn.Linear(8, 8), nn.Hardswish(inplace=True))


class WritesIntoSlices(Vectors):
    """Fills a new tensor in place."""

    def model(self, hp: Any) -> nn.Module:
        class Model(Inside):
            def inside(self, x: torch.Tensor) -> torch.Tensor:
                out = torch.zeros_like(x)
                out[:, :4] = x[:, 4:]
                out[:, 4:] += 2 * x[:, :4]
                return out

        return Model()


class WritesIntoNewZeros(Vectors):
    """As the one above, into a tensor that depends on no input."""

    fused = r"in place|in-place|inplace|vmap"

    def model(self, hp: Any) -> nn.Module:
        class Model(Inside):
            def inside(self, x: torch.Tensor) -> torch.Tensor:
                out = torch.zeros(len(x), 8, dtype=x.dtype, device=x.device)
                out[:, :4] = x[:, 4:]
                return out + x

        return Model()


class Scatter(Entry):
    """Nodes of a graph, with its edges as an adjacency matrix and as a list."""

    def part(self, generator: np.random.Generator, count: int) -> tuple[Any, Any]:
        edges = generator.integers(0, 5, (count, 2, 7))
        return {"nodes": normal(generator, count, 5, 3), "edges": edges}, generator.integers(0, CLASSES, count)

    def model(self, hp: Any) -> nn.Module:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.message, self.last = nn.Linear(3, 6), nn.Linear(6, CLASSES)

            def forward(self, nodes: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
                messages = torch.relu(self.message(nodes))
                sources, ends = edges[:, 0, :, None].expand(-1, -1, 6), edges[:, 1, :, None].expand(-1, -1, 6)
                received = torch.zeros_like(messages).scatter_add(1, ends, messages.gather(1, sources))
                return self.last(received.mean(1))

        return Model()


class LazyLayers(Vectors):
    """Their shapes are known after the first batch only: an optimizer needs them before."""

    fused = r"lazy|uninitialized|LazyLinear|the parameter 0\.weight"
    alone = r"(?i)lazy|uninitialized"

    def model(self, hp: Any) -> nn.Module:
        return nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(CLASSES))
