"""Architectures of other kinds: experts, graphs, flows, networks that make networks."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from tests.contracts.zoo.entry import (
    CLASSES,
    WIDTH,
    Entry,
    Numbers,
    Vectors,
    classes,
    normal,
)


class MixtureOfExperts(Vectors):
    """Two of four experts for each sample, by the gate's largest values."""

    compiled = True

    def model(self, hp: Any) -> nn.Module:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.gate = nn.Linear(WIDTH, 4)
                self.experts = nn.ModuleList([nn.Linear(WIDTH, CLASSES) for _ in range(4)])

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                weights, chosen = self.gate(x).topk(2, dim=1)
                sparse = torch.zeros(len(x), 4, dtype=x.dtype, device=x.device).scatter(1, chosen, weights.softmax(1))
                return torch.einsum("be,bec->bc", sparse, torch.stack([e(x) for e in self.experts], dim=1))

        return Model()


class TwoTowers(Entry):
    """Named inputs and named targets: users, items, clicks and ratings."""

    def part(self, generator: np.random.Generator, count: int) -> tuple[Any, Any]:
        inputs = {"user": classes(generator, count, number=7), "item": normal(generator, count, 5)}
        return inputs, {"click": normal(generator, count).round().clip(0, 1), "rating": normal(generator, count)}

    def model(self, hp: Any) -> nn.Module:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.users, self.items = nn.Embedding(7, 4), nn.Sequential(nn.Linear(5, 4), nn.LayerNorm(4))

            def forward(self, *, user: torch.Tensor, item: torch.Tensor) -> dict[str, torch.Tensor]:
                first, second = self.users(user), self.items(item)
                return {"click": (first * second).sum(1), "rating": (first - second).norm(dim=1)}

        return Model()

    def loss(self, outputs: Any, targets: Any) -> Any:
        click = functional.binary_cross_entropy_with_logits(outputs["click"], targets["click"])
        return click + functional.mse_loss(outputs["rating"], targets["rating"])

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        return {"error": (outputs["rating"] - targets["rating"]).abs().mean()}


class GraphNetwork(Entry):
    """Nodes and a normalised adjacency matrix."""

    def part(self, generator: np.random.Generator, count: int) -> tuple[Any, Any]:
        links = (generator.random((count, 5, 5)) < 0.4) + np.eye(5)
        links = (links / links.sum(2, keepdims=True)).astype(np.float32)
        return {"nodes": normal(generator, count, 5, 3), "links": links}, classes(generator, count)

    def model(self, hp: Any) -> nn.Module:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layers = nn.ModuleList([nn.Linear(3, 6), nn.Linear(6, 6)])
                self.attention, self.last = nn.Linear(6, 1), nn.Linear(6, CLASSES)

            def forward(self, nodes: torch.Tensor, links: torch.Tensor) -> torch.Tensor:
                for layer in self.layers:
                    nodes = torch.relu(layer(torch.bmm(links, nodes)))
                return self.last((self.attention(nodes).softmax(1) * nodes).sum(1))

        return Model()


class NormalizingFlow(Vectors):
    """Two coupling layers; the loss is the likelihood."""

    def model(self, hp: Any) -> nn.Module:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.nets = nn.ModuleList([nn.Linear(WIDTH // 2, WIDTH) for _ in range(2)])

            def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
                volume = torch.zeros_like(x[:, 0])
                for net in self.nets:
                    first, second = x.chunk(2, dim=1)
                    scale, shift = net(first).chunk(2, dim=1)
                    scale = torch.tanh(scale)
                    x = torch.cat([second * torch.exp(scale) + shift, first], dim=1)
                    volume = volume + scale.sum(1)
                return x, volume

        return Model()

    def loss(self, outputs: Any, targets: Any) -> Any:
        code, volume = outputs
        return (0.5 * code.square().sum(1) - volume).mean() / WIDTH

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        return {"volume": outputs[1].mean()}


class Hypernetwork(Vectors):
    """A network that makes the weights of another, for each sample."""

    def model(self, hp: Any) -> nn.Module:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inside, self.maker = nn.Linear(WIDTH, 3), nn.Linear(3, WIDTH * CLASSES)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                weights = self.maker(torch.tanh(self.inside(x))).view(-1, WIDTH, CLASSES)
                return torch.bmm(x[:, None], weights)[:, 0]

        return Model()


class FunctionalCall(Vectors):
    """Runs a part of itself with weights that it has changed before."""

    def model(self, hp: Any) -> nn.Module:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.body, self.low = nn.Linear(WIDTH, CLASSES), nn.Parameter(0.1 * torch.randn(CLASSES, 1))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                weights = {"weight": self.body.weight + self.low @ self.low.T @ self.body.weight}
                return torch.func.functional_call(self.body, weights, (x,))

        return Model()


class Siren(Numbers):
    """Fourier features of random frequencies, and layers of sines."""

    def model(self, hp: Any) -> nn.Module:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.register_buffer("frequencies", torch.randn(WIDTH, 4))
                self.first, self.last = nn.Linear(8, 6), nn.Linear(6, 2)
                nn.init.uniform_(self.first.weight, -0.5, 0.5)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                turned = x @ self.frequencies
                return self.last(torch.sin(3 * self.first(torch.cat([turned.sin(), turned.cos()], dim=1))))

        return Model()


class KolmogorovArnold(Vectors):
    """A function of its own on each edge, from radial ones."""

    def model(self, hp: Any) -> nn.Module:
        class Edges(nn.Module):
            def __init__(self, before: int, after: int) -> None:
                super().__init__()
                self.register_buffer("centres", torch.linspace(-2, 2, 5))
                self.weights, self.base = nn.Parameter(0.1 * torch.randn(before, 5, after)), nn.Linear(before, after)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                bumps = torch.exp(-(x[..., None] - self.centres).square())
                return self.base(functional.silu(x)) + torch.einsum("bik,ikj->bj", bumps, self.weights)

        return nn.Sequential(Edges(WIDTH, 5), Edges(5, CLASSES))


class NeuralOde(Vectors):
    """Five steps of a flow, with one network."""

    def model(self, hp: Any) -> nn.Module:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.flow, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                for _ in range(5):
                    middle = x + 0.1 * torch.tanh(self.flow(x))
                    x = x + 0.2 * torch.tanh(self.flow(middle))
                return self.last(x)

        return Model()


class PretrainedParts(Vectors):
    """The learning rate of a part is scaled by a factor on its gradient: no hook, a function that passes forward."""

    own: ClassVar[Any] = tuple({**own, "factor": 0.1} for own in Vectors.own)

    def model(self, hp: Any) -> nn.Module:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.body, self.last = nn.Linear(WIDTH, 8), nn.Linear(8, CLASSES)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                hidden = torch.relu(self.body(x))
                return self.last(hp["factor"] * hidden + (1 - hp["factor"]) * hidden.detach())

        return Model()
