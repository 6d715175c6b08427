"""The members that are evaluated at once: those whose largest tensors together fit, and the same scores for each."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from raygpu.training.fused import evaluation, largest_tensor
from raygpu.training.fused.largest_tensor import LargestTensor
from raygpu.training.fused.model_array import TorchArray
from tests.models import MODELS


def array(name: str, count: int) -> TorchArray:
    kind, shape = MODELS[name]
    trials = [Trial(f"t{i:04d}", i, {**shape, "lr": 0.01 * (i + 1)}) for i in range(count)]
    settings = Settings(1, 1, "float32", Path())
    return TorchArray(kind(), kind().data(), trials, settings, width=count, device=torch.device("cpu"))


def test_the_largest_tensor_of_one_member_counts() -> None:
    layer = torch.nn.Linear(4, 10, dtype=torch.float64)

    weights, samples = torch.ones(7, 10, 4, dtype=torch.float64), torch.ones(5, 4, dtype=torch.float64)

    def one(weight: torch.Tensor) -> torch.Tensor:
        torch.cat([samples] * 9)  # all members share it
        return torch.func.functional_call(layer, {"weight": weight}, (samples,)).sum()

    with LargestTensor() as largest:
        torch.vmap(one)(weights)
    assert largest.num_bytes == 5 * 10 * 8


def test_fewer_members_of_larger_tensors_at_once() -> None:
    largest = LargestTensor()
    largest.num_bytes = 3 * 2**20
    assert largest.members == 2
    largest.num_bytes = 2**40
    assert largest.members == 1


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_scores_do_not_depend_on_the_members_at_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = []
    for first, cached in ((1000, 2**40), (2, 1), (3, 2**40)):
        monkeypatch.setattr(evaluation, "FIRST_AT_ONCE", first)
        monkeypatch.setattr(largest_tensor, "CACHED_BYTES", cached)
        found = array(name, 7)
        scores += [found._evaluate(found.tiles[0]).by_member() for _ in range(2)]
    for metrics in scores[1:]:
        for member, wanted in zip(metrics, scores[0], strict=True):
            assert member == pytest.approx(wanted, rel=1e-6)
