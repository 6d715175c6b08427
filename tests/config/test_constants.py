"""Arrays of an experiment's code, compared between processes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from raygpu.config.constants import constants, differing


class Code:
    table = np.arange(10)

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


def compared(one: Any, other: Any) -> list[str]:
    return list(differing(constants(Code(a=one)), constants(Code(a=other))))


@pytest.mark.parametrize("draw", [np.random.default_rng(0).permutation, lambda n: torch.randn(n, requires_grad=True)])
def test_arrays_that_are_drawn_anew_differ(draw: Any) -> None:
    assert compared(draw(1000), draw(1000)) == ["self.a"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.ones(3), np.ones(3) + 1e-6),
        (np.full(3, 5e-310), np.full(3, 7e-312)),  # memory that nothing was written to
        (np.array([1, np.nan, np.inf]), np.array([1, np.nan, np.inf])),
        (np.ones(3), np.ones(4)),
        (1.0, 2.0),
        (torch.ones(3).to_sparse(), 2 * torch.ones(3).to_sparse()),
        (np.random.default_rng(), np.random.default_rng()),
        (np.array(["a"]), np.array(["b"])),
    ],
)
def test_what_rounding_or_the_machine_makes_does_not_differ(one: Any, other: Any) -> None:
    assert not compared(one, other)


def test_arrays_of_the_module_and_the_class_have_names() -> None:
    found = constants(Code(a=np.ones(100)))
    assert found.keys() == {"Code.table", "self.a"}
    assert len(found["self.a"]) == 64
    assert constants(Code(), with_module=False).keys() == {"Code.table"}
