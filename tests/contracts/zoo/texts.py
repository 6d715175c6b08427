"""Architectures for series and texts at toy size, written out."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tests.contracts.zoo.entry import (
    CLASSES,
    LENGTH,
    VOCABULARY,
    Series,
    Texts,
)


class DeepSet(Series):
    """Sums over the members of a set, of which some are not there."""

    def model(self, hp: Any) -> nn.Module:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.each, self.last = nn.Linear(6, 8), nn.Linear(8, CLASSES)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                there = (x[..., :1] > -0.5).to(x.dtype)
                return self.last((torch.relu(self.each(x)) * there).sum(1) / there.sum(1).clamp(min=1))

        return Model()


class TemporalConvolution(Series):
    """Causal and dilated, with gates, as in WaveNet."""

    def model(self, hp: Any) -> nn.Module:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layers = nn.ModuleList([nn.Conv1d(6, 12, 2, dilation=2**i) for i in range(3)])
                self.last = nn.Linear(6, CLASSES)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                x = x.transpose(1, 2)
                for i, layer in enumerate(self.layers):
                    value, gate = layer(functional.pad(x, (2**i, 0))).chunk(2, dim=1)
                    x = x + torch.tanh(value) * gate.sigmoid()
                return self.last(x[:, :, -1])

        return Model()


class RecurrentByHand(Series):
    """A gated recurrence that is written out: what vmap can do where a layer of torch cannot."""

    def model(self, hp: Any) -> nn.Module:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.gate, self.new, self.last = nn.Linear(10, 4), nn.Linear(10, 4), nn.Linear(4, CLASSES)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                state = x.new_zeros(len(x), 4)
                for step in x.unbind(1):
                    both = torch.cat([step, state], dim=1)
                    gate = self.gate(both).sigmoid()
                    state = gate * state + (1 - gate) * torch.tanh(self.new(both))
                return self.last(state)

        return Model()


class SmallGpt(Texts):
    """Pre-norm blocks with causal attention by hand, and tied weights."""

    def model(self, hp: Any) -> nn.Module:
        class Block(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.norms = nn.ModuleList([nn.LayerNorm(8) for _ in range(2)])
                self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
                self.wide = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
                self.register_buffer("later", torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1), persistent=False)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                q, k, v = self.qkv(self.norms[0](x)).chunk(3, dim=2)
                scores = (q @ k.transpose(1, 2) / 8**0.5).masked_fill(self.later, -torch.inf)
                x = x + self.out(scores.softmax(2) @ v)
                return x + self.wide(self.norms[1](x))

        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.tokens, self.places = nn.Embedding(VOCABULARY, 8), nn.Embedding(LENGTH, 8)
                self.blocks, self.norm = nn.Sequential(Block(), Block()), nn.LayerNorm(8)
                self.last = nn.Linear(8, VOCABULARY, bias=False)
                self.last.weight = self.tokens.weight

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                hidden = self.tokens(x) + self.places(torch.arange(LENGTH, device=x.device))
                return self.last(self.norm(self.blocks(hidden)))

        return Model()


class RotaryAttention(Series):
    """Positions by rotation, root-mean-square norms and gated layers, as in Llama."""

    def model(self, hp: Any) -> nn.Module:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.norm, self.qkv, self.out = nn.RMSNorm(6), nn.Linear(6, 12, bias=False), nn.Linear(4, 6, bias=False)
                self.gate, self.up, self.down = (nn.Linear(*size, bias=False) for size in ((6, 8), (6, 8), (8, 6)))
                angles = torch.outer(torch.arange(LENGTH).float(), torch.tensor([1.0, 0.1]))
                self.register_buffer("cos", angles.cos().repeat(1, 2))
                self.register_buffer("sin", angles.sin().repeat(1, 2))
                self.last = nn.Linear(6, CLASSES)

            def turned(self, x: torch.Tensor) -> torch.Tensor:
                first, second = x.chunk(2, dim=-1)
                return x * self.cos + torch.cat([-second, first], dim=-1) * self.sin

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                q, k, v = self.qkv(self.norm(x)).chunk(3, dim=2)
                mixed = functional.scaled_dot_product_attention(self.turned(q), self.turned(k), v, is_causal=True)
                x = x + self.out(mixed)
                x = x + self.down(functional.silu(self.gate(x)) * self.up(x))
                return self.last(x.mean(1))

        return Model()


class LstmLanguageModel(Texts):
    fused = r"lstm.*(runs as a slow loop|has no rule)"

    def model(self, hp: Any) -> nn.Module:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.embedding, self.cell = nn.Embedding(VOCABULARY, 6), nn.LSTM(6, 6, batch_first=True)
                self.last = nn.Linear(6, VOCABULARY)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.last(self.cell(self.embedding(x))[0])

        return Model()
