"""Losses and metrics as numbers: their precision, their shapes, and those in which no sample counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from raygpu import Mean, Sum
from raygpu.training.torch.reduction import Accumulator, as_parts, backward, objective, packed

CPU = torch.device("cpu")
FLOATS = [0.1, 123456789.0, 1e-50, 1e39, np.float64(1e-50)]


@pytest.mark.parametrize("value", FLOATS)
def test_a_float_keeps_its_precision(value: float) -> None:
    for metric in (value, Mean(value, 1.0), Sum(value)):
        alone, members = Accumulator(CPU), Accumulator(CPU, (2,))
        alone.add(metric, 1)
        members.add_packed(torch.stack([packed(metric)] * 2), 1)
        assert alone.value().item() == value
        assert members.value().tolist() == [value] * 2
    assert [each.item() for each in as_parts(value, 1, CPU)] == [value, 1.0]


def test_a_total_of_one_element_is_a_scalar() -> None:
    metric = Mean(torch.ones(1), torch.full((1,), 4.0))
    sums = Accumulator(CPU)
    sums.add(metric, 4)
    assert sums.value().item() == 0.25
    assert packed(metric).tolist() == [1.0, 4.0]


@pytest.mark.parametrize("metric", [torch.ones(3), Mean(torch.ones(3), 3), Sum(torch.ones(3))], ids=lambda m: type(m))
def test_several_numbers_are_refused(metric: Any) -> None:
    with pytest.raises(ValueError, match=r"has shape \(3,\); a scalar is wanted"):
        Accumulator(CPU).add(metric, 3)


@pytest.mark.parametrize("loss", [Mean(0.0, 0), Sum(0.0)], ids=str)
def test_a_loss_in_which_no_sample_counts_has_no_gradient(loss: Any) -> None:
    assert objective(loss).item() == 0
    backward(loss)


def test_the_weight_of_a_gradient() -> None:
    value = torch.ones((), requires_grad=True)
    backward(2 * value, 0.25)
    assert value.grad is not None
    assert value.grad.item() == 0.5
