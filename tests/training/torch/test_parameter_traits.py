"""Parameters and buffers in the same memory, hooks on gradients, and frozen ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from raygpu.training.torch.parameter_traits import changed_freezing, frozen, hooked, hooked_parameter, sharing


def model(**tensors: torch.Tensor) -> nn.Module:
    """A module with these tensors as buffers."""
    module = nn.Linear(2, 2)
    for name, tensor in tensors.items():
        module.register_buffer(name, tensor)
    return module


WHOLE = torch.zeros(8)
COMPLEX = torch.zeros(4, dtype=torch.complex64)


@pytest.mark.parametrize(
    ("tensors", "is_shared"),
    [
        ({"a": WHOLE[:4], "b": WHOLE[4:]}, False),
        ({"a": WHOLE[:5], "b": WHOLE[4:]}, True),
        ({"a": WHOLE[::2], "b": WHOLE[1::2]}, False),
        ({"a": COMPLEX.real, "b": COMPLEX.imag}, False),
        ({"a": COMPLEX.real, "b": COMPLEX}, True),
        ({"a": WHOLE, "b": WHOLE}, False),
    ],
)
def test_tensors_that_share_an_element_are_named(tensors: dict[str, torch.Tensor], is_shared: bool) -> None:
    assert sharing(model(**tensors)) == (
        "a and b are different tensors in the same memory: a step changes both by either" if is_shared else None
    )


@pytest.mark.parametrize(
    ("add", "said"),
    [
        (lambda made: made.weight.register_hook(abs), "the parameter weight has a hook"),
        (
            lambda made: made.bias.register_post_accumulate_grad_hook(lambda parameter: None),
            "the parameter bias has a hook",
        ),
        (lambda made: made.register_full_backward_hook(lambda *_: None), "the module Linear has a backward hook"),
        (lambda made: made.register_forward_hook(lambda *_: None), None),
    ],
)
def test_hooks_on_gradients_are_named(add: Callable[[nn.Linear], object], said: str | None) -> None:
    made = nn.Linear(2, 2)
    assert (hooked(made), hooked_parameter(made)) == (None, None)
    add(made)
    assert hooked(made) == said


def test_the_first_parameter_that_was_frozen_since_is_named() -> None:
    made = nn.Linear(2, 2)
    before = frozen(made)
    assert changed_freezing(before, made) is None
    made.bias.requires_grad_(False)
    assert changed_freezing(before, made) == "requires_grad of bias"
