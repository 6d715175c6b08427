"""The operators and FLOPs of a step, by hand, and what counting must not import."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional

from raygpu.training.torch.step_counter import StepCounter


def counted(model: nn.Module, *shape: int) -> StepCounter:
    """Return the count of a forward and a backward pass."""
    inputs = torch.randn(*shape, requires_grad=True)
    with StepCounter() as counter:
        model(inputs).sum().backward()
    return counter


def test_a_layer_costs_as_much_for_each_gradient_as_forward() -> None:
    counter = counted(nn.Linear(5, 7), 3, 5)
    assert counter.flop == 3 * 2 * 3 * 5 * 7
    assert 3 <= counter.num_operators <= 10


@pytest.mark.parametrize("groups", [1, 4, 8])
def test_a_grouped_convolution_has_the_products_of_its_groups(groups: int) -> None:
    counter = counted(nn.Conv2d(8, 16, 3, padding=1, groups=groups), 2, 8, 6, 6)
    assert counter.flop == 3 * 2 * (2 * 6 * 6) * 16 * (8 // groups) * 9


def test_a_transposed_convolution_has_a_product_for_each_input() -> None:
    assert counted(nn.ConvTranspose2d(4, 6, 2, stride=2), 2, 4, 5, 5).flop == 3 * 2 * (2 * 5 * 5) * 4 * 6 * 4


def test_views_are_no_operators() -> None:
    inputs = torch.randn(4, 6)
    with StepCounter() as counter:
        functional.relu(inputs.view(2, 12).t()[None])
    assert (counter.num_operators, counter.flop) == (1, 0)


def test_counting_does_not_import_the_compiler() -> None:
    code = """
import sys, torch
from raygpu.training.torch.step_counter import StepCounter
with StepCounter() as counter:
    torch.nn.Conv2d(2, 2, 3)(torch.randn(1, 2, 5, 5)).sum().backward()
assert counter.flop
print("torch._dynamo" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
