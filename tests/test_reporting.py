"""Numbers that a metric may be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from raygpu.reporting import number


class Eager:
    """As a tensor of TensorFlow, which has no `item()`."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def numpy(self) -> Any:
        return self.value


@pytest.mark.parametrize(
    "value",
    [0.5, np.float32(0.5), np.array([0.5]), torch.tensor(0.5), Eager(np.float32(0.5)), Eager(np.array([0.5]))],
)
def test_one_number_is_taken(value: Any) -> None:
    assert number("loss", value) == 0.5


def test_a_number_that_no_float_can_hold_is_refused_with_the_metric_s_name() -> None:
    with pytest.raises(ValueError, match="metric 'loss': read a number that no float can hold"):
        number("loss", 10**400)


@pytest.mark.parametrize("value", [np.ones(3), torch.ones(3), Eager(np.ones(3))])
def test_several_are_refused_with_the_metric_s_name(value: Any) -> None:
    with pytest.raises(TypeError, match=r"metric 'loss': read values of shape \(3,\); a number is wanted"):
        number("loss", value)
