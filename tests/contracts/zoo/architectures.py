"""Architectures far from layers in a row: routing, state spaces, cross attention, codebooks, graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from tests.contracts.zoo.entry import (
    CHANNELS,
    CLASSES,
    LENGTH,
    Entry,
    Inside,
    Series,
    Vectors,
    classes,
    normal,
)


class Capsules(Vectors):
    """Three rounds of routing by agreement."""

    def model(self, hp: Any) -> nn.Module:
        class Model(Inside):
            def __init__(self) -> None:
                super().__init__()
                self.weight = nn.Parameter(torch.randn(2, CLASSES, 5, 4) * 0.3)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                votes = torch.einsum("nkde,bne->bnkd", self.weight, self.squashed(self.first(x).view(-1, 2, 4)))
                logits = torch.zeros(votes.shape[:3], dtype=votes.dtype, device=votes.device)
                for _ in range(3):
                    found = self.squashed((logits.softmax(-1).unsqueeze(-1) * votes).sum(1))
                    logits = logits + (votes * found.unsqueeze(1)).sum(-1)
                return found.norm(dim=-1)

            def squashed(self, x: torch.Tensor) -> torch.Tensor:
                square = x.square().sum(-1, keepdim=True)
                return square / (1 + square) * x / (square + 1e-9).sqrt()

        return Model()


class StateSpace(Series):
    """A selective state space, scanned by cumulative sums."""

    def model(self, hp: Any) -> nn.Module:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.decay = nn.Parameter(torch.arange(1.0, 5.0).log().repeat(CHANNELS, 1))
                self.project, self.step = nn.Linear(CHANNELS, 9), nn.Linear(1, CHANNELS)
                self.last = nn.Linear(CHANNELS, CLASSES)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                step, entry, leave = self.project(x).split([1, 4, 4], -1)
                step = functional.softplus(self.step(step)).unsqueeze(-1)
                kept = (-step * self.decay.exp()).cumsum(1)
                taken = step * entry.unsqueeze(2) * x.unsqueeze(-1)
                state = (taken * (-kept).clamp(max=20).exp()).cumsum(1) * kept.exp()
                return self.last((state * leave.unsqueeze(2)).sum(-1)[:, -1] + x.mean(1))

        return Model()


class Perceiver(Entry):
    """Latent vectors that attend to series of which a mask leaves parts out."""

    def part(self, generator: np.random.Generator, count: int) -> tuple[Any, Any]:
        there = generator.random((count, LENGTH)) < 0.7
        there[:, 0] = True
        return {"x": normal(generator, count, LENGTH, CHANNELS), "there": there}, classes(generator, count)

    def model(self, hp: Any) -> nn.Module:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.latent = nn.Parameter(torch.randn(3, 8))
                self.cross = nn.MultiheadAttention(8, 2, kdim=CHANNELS, vdim=CHANNELS, batch_first=True)
                self.within = nn.MultiheadAttention(8, 2, batch_first=True)
                self.norm, self.last = nn.LayerNorm(8), nn.Linear(8, CLASSES)

            def forward(self, x: torch.Tensor, there: torch.Tensor | None = None) -> torch.Tensor:
                latent = self.latent.expand(x.shape[0], -1, -1)
                absent = None if there is None else ~there
                latent = self.norm(latent + self.cross(latent, x, x, key_padding_mask=absent)[0])
                later = torch.triu(torch.ones(3, 3, dtype=torch.bool, device=x.device), 1)
                latent = latent + self.within(latent, latent, latent, attn_mask=later, need_weights=False)[0]
                return self.last(latent.mean(1))

        return Model()


class MovingCodebook(Vectors):
    """Nearest codes, passed straight through; the codebook follows its inputs without a gradient."""

    production = "buffers that training changes"

    def model(self, hp: Any) -> nn.Module:
        class Model(Inside):
            def __init__(self) -> None:
                super().__init__()
                self.register_buffer("book", torch.randn(5, 8))
                self.register_buffer("counts", torch.ones(5))
                self.register_buffer("sums", self.book.clone())

            def inside(self, x: torch.Tensor) -> torch.Tensor:
                nearest = torch.cdist(x, self.book).argmin(1)
                found = self.book[nearest]
                if self.training:
                    with torch.no_grad():
                        chosen = functional.one_hot(nearest, 5).to(x)
                        self.counts.mul_(0.9).add_(chosen.sum(0), alpha=0.1)
                        self.sums.mul_(0.9).add_(chosen.t() @ x, alpha=0.1)
                        self.book.copy_(self.sums / self.counts.clamp(min=1e-3).unsqueeze(1))
                return x + (found - x).detach()

        return Model()


class GraphOfABatch(Entry):
    """The graphs of a batch as one, whose messages are added and maximised by index."""

    def part(self, generator: np.random.Generator, count: int) -> tuple[Any, Any]:
        inputs = {"x": normal(generator, count, 5, 4), "edges": generator.integers(0, 5, (count, 7, 2))}
        return inputs, classes(generator, count)

    def model(self, hp: Any) -> nn.Module:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.node, self.edge, self.last = nn.Linear(4, 8), nn.Linear(16, 8), nn.Linear(8, CLASSES)

            def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
                nodes = torch.relu(self.node(x)).flatten(0, 1)
                first = 5 * torch.arange(x.shape[0], device=x.device).view(-1, 1)
                source, target = ((edges[..., end] + first).flatten() for end in (0, 1))
                message = torch.relu(self.edge(torch.cat([nodes[source], nodes[target]], -1)))
                places = target.unsqueeze(-1).expand(-1, 8)
                largest = torch.zeros_like(nodes).scatter_reduce(0, places, message, "amax", include_self=False)
                nodes = nodes + torch.zeros_like(nodes).index_add(0, target, message) + largest
                return self.last(nodes.view(-1, 5, 8).sum(1))

        return Model()


class HeadsByVmap(Vectors):
    """Heads that torch.vmap maps within the model, each with a dropout of its own."""

    random = True

    def model(self, hp: Any) -> nn.Module:
        class Model(Inside):
            def __init__(self) -> None:
                super().__init__()
                self.heads = nn.Parameter(torch.randn(3, 8, 8) * 0.3)

            def inside(self, x: torch.Tensor) -> torch.Tensor:
                def head(weight: torch.Tensor) -> torch.Tensor:
                    return functional.dropout(torch.tanh(x @ weight), 0.4, self.training)

                return torch.vmap(head, randomness="different")(self.heads).mean(0)

        return Model()
