"""Samples of large arrays."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from raygpu.training.array_sample import SAMPLED, spread
from raygpu.training.torch.value_texts import tensor_text


@pytest.mark.parametrize("shape", [(64, 128, 256), (10**6,), (3, 10**6), (10**6, 3), (0, 4), (5, 3)])
def test_a_sample_is_a_view_of_elements_from_all_over(shape: tuple[int, ...]) -> None:
    array = np.zeros(shape).T
    sample = spread(array)
    assert min(array.size, SAMPLED // 4) <= sample.size <= SAMPLED
    assert np.shares_memory(sample, array) or not array.size


def test_a_large_tensor_with_any_strides_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = torch.zeros(64, 128, 256).permute(0, 2, 1)
    before = tensor_text(tensor)
    tensor += 1
    assert tensor_text(tensor) != before
    monkeypatch.setattr(torch.Tensor, "contiguous", lambda each: each.clone() if each.numel() <= SAMPLED else None)
    assert tensor_text(tensor) != before
