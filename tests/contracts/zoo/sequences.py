"""Embeddings, recurrent layers and attention one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from tests.contracts.zoo.entry import CHANNELS, CLASSES, LENGTH, VOCABULARY, Call, Series, Tokens, classes, ended

SLOW = r"aten::\w*{} (runs as a slow loop|has no rule)|aten::_thnn\w* |slow loop under vmap"


class Embedding(Tokens):
    compiled = True

    def model(self, hp: Any) -> nn.Module:
        return ended(nn.Embedding(VOCABULARY, 4), features=4 * LENGTH)


class LatePadding(Tokens, base=True):
    """Padding is in the last samples only, which a look at the first ones does not show."""

    def part(self, generator: np.random.Generator, count: int) -> tuple[Any, Any]:
        tokens = generator.integers(1, VOCABULARY, (count, LENGTH))
        tokens[-6:, 5:] = 0
        return tokens, classes(generator, count)


class PaddedEmbedding(LatePadding):
    """The padding's row is not trained."""

    compiled = True

    def model(self, hp: Any) -> nn.Module:
        return ended(nn.Embedding(VOCABULARY, 4, padding_idx=0), features=4 * LENGTH)


class NegativePadding(LatePadding):
    """The padding's index counts from the end."""

    def model(self, hp: Any) -> nn.Module:
        return ended(Call(lambda x: (x - 1) % VOCABULARY), nn.Embedding(VOCABULARY, 4, padding_idx=-1), features=36)


class FunctionalPadding(LatePadding):
    """The padding is an argument of a function: no layer tells it."""

    def model(self, hp: Any) -> nn.Module:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.rows, self.last = nn.Parameter(torch.randn(VOCABULARY, 4)), nn.Linear(4 * LENGTH, CLASSES)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.last(nn.functional.embedding(x, self.rows, padding_idx=0).flatten(1))

        return Model()


class EmbeddingOfBoundedNorm(Tokens):
    """The rows that are looked up are scaled down in place."""

    fused = r"max_norm|embedding_renorm|in place|in-place"
    production = r"max_norm|renorm|in place"

    def model(self, hp: Any) -> nn.Module:
        return ended(nn.Embedding(VOCABULARY, 4, max_norm=1.0), features=4 * LENGTH)


class EmbeddingScaledByFrequency(Tokens):
    """The gradient of a row is divided by how often the batch has it: a batch's parts have it less often."""

    fused = r"scale_grad_by_freq|frequen|slow loop|has no rule|embedding"
    production = r"scale_grad_by_freq|frequen|not the mean|mean over|parts"

    def model(self, hp: Any) -> nn.Module:
        return ended(nn.Embedding(VOCABULARY, 4, scale_grad_by_freq=True), features=4 * LENGTH)


class SparseEmbedding(Tokens):
    fused = r"sparse"
    production = r"sparse"

    def model(self, hp: Any) -> nn.Module:
        return ended(nn.Embedding(VOCABULARY, 4, sparse=True), features=4 * LENGTH)


class EmbeddingBag(Tokens):
    fused = SLOW.format("embedding_bag")

    def model(self, hp: Any) -> nn.Module:
        return ended(nn.EmbeddingBag(VOCABULARY, 8, mode="mean"), features=8)


class Recurrent(nn.Module):
    def __init__(self, cell: nn.Module, features: int = 5) -> None:
        super().__init__()
        self.cell, self.last = cell, nn.Linear(features, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.cell(x)[0][:, -1])


class Lstm(Series):
    fused = SLOW.format("lstm")

    def model(self, hp: Any) -> nn.Module:
        return Recurrent(nn.LSTM(CHANNELS, 5, batch_first=True))


class Gru(Series):
    fused = SLOW.format("gru")

    def model(self, hp: Any) -> nn.Module:
        return Recurrent(nn.GRU(CHANNELS, 5, num_layers=2, batch_first=True))


class Rnn(Series):
    fused = SLOW.format("rnn_tanh")

    def model(self, hp: Any) -> nn.Module:
        return Recurrent(nn.RNN(CHANNELS, 5, batch_first=True, bidirectional=True), 10)


class LstmCell(Series):
    """A loop over the steps, by hand."""

    fused = SLOW.format("lstm_cell")

    def model(self, hp: Any) -> nn.Module:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.cell, self.last = nn.LSTMCell(CHANNELS, 5), nn.Linear(5, CLASSES)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                state = None
                for step in x.unbind(1):
                    state = self.cell(step, state)
                assert state is not None
                return self.last(state[0])

        return Model()


class Attention(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(CHANNELS, 8), nn.Linear(8, CLASSES)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True, **options)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        return self.last(self.attention(hidden, hidden, hidden)[0].mean(1))


class MultiheadAttention(Series):
    def model(self, hp: Any) -> nn.Module:
        return Attention()


class AttentionWithBiases(Series):
    def model(self, hp: Any) -> nn.Module:
        return Attention(add_bias_kv=True, add_zero_attn=True)


class TransformerEncoderLayer(Series):
    def model(self, hp: Any) -> nn.Module:
        layer = nn.TransformerEncoderLayer(CHANNELS, 2, 8, dropout=0.0, batch_first=True)
        return ended(layer, features=CHANNELS * LENGTH)


class PreNormTransformer(Series):
    def model(self, hp: Any) -> nn.Module:
        layer = nn.TransformerEncoderLayer(CHANNELS, 2, 8, 0.0, "gelu", batch_first=True, norm_first=True)
        stack = nn.TransformerEncoder(layer, 2, nn.LayerNorm(CHANNELS), enable_nested_tensor=False)
        return ended(stack, features=CHANNELS * LENGTH)


class EncoderDecoder(Series):
    def model(self, hp: Any) -> nn.Module:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.both = nn.Transformer(CHANNELS, 2, 1, 1, 8, dropout=0.0, batch_first=True)
                self.queries, self.last = nn.Parameter(torch.randn(1, 2, CHANNELS)), nn.Linear(12, CLASSES)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.last(self.both(x, self.queries.expand(len(x), -1, -1)).flatten(1))

        return Model()


class ScaledDotProductAttention(Series):
    def model(self, hp: Any) -> nn.Module:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.projection, self.last = nn.Linear(CHANNELS, 24), nn.Linear(8, CLASSES)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                q, k, v = self.projection(x).unflatten(2, (3, 2, 4)).permute(2, 0, 3, 1, 4)
                mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
                return self.last(mixed.transpose(1, 2).flatten(2).mean(1))

        return Model()
