"""Reasons in an error of torch's are told with their cause."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import nn

from tests.training.fused.refusals import Head, Make, Of, reason


class SparseBuffer(Head):
    """A layer of a graph whose adjacency matrix is a sparse buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("adjacency", torch.eye(8).to_sparse())

    def inside(self, x: torch.Tensor) -> torch.Tensor:
        """Return each feature with that of its neighbours."""
        return torch.sparse.mm(self.adjacency, x.T).T


def embedding(hp: Mapping[str, object]) -> nn.Module:
    """Return an embedding with sparse gradients, of images as words."""

    class Words(nn.Embedding):
        """An embedding of pixels."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """Return the vectors of an image's pixels."""
            return super().forward((16 * x).long()).flatten(1)

    return nn.Sequential(Words(17, 2, sparse=True), nn.Linear(128, 10))


@pytest.mark.parametrize("make", [lambda hp: SparseBuffer(), embedding], ids=["buffer", "embedding"])
def test_a_sparse_tensor(make: Make) -> None:
    assert reason(Of(make)).startswith("a tensor is sparse, as an adjacency matrix or the gradient of an embedding")
