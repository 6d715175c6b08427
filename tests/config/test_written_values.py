"""Values of hyper-parameters from Python, as a configuration file holds them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from raygpu.config import SweepConfig
from raygpu.config.loading import validated
from raygpu.errors import BadInput
from raygpu.search.space import parse


def config(**space: Any) -> SweepConfig:
    return validated({"experiment": "mine:Mine", "trials": 2, "epochs": 1, "space": space}, SweepConfig, "run_sweep")


def test_numpy_s_numbers_become_pythons() -> None:
    given = config(
        lr=np.float32(0.5), batch_size={"choice": list(2 ** np.arange(4, 6))}, width={"choice": 2 ** np.arange(3)},
        layers={"choice": range(1, 3)}, betas=(np.float64(0.9), 0.99), momentum={"uniform": [np.float64(0), 0.9]},
    ).space  # fmt: skip
    assert given == {
        "lr": 0.5, "batch_size": {"choice": [16, 32]}, "width": {"choice": [1, 2, 4]}, "layers": {"choice": [1, 2]},
        "betas": [0.9, 0.99], "momentum": {"uniform": [0.0, 0.9]},
    }  # fmt: skip
    parse(given)
    numbers = [given["lr"], *given["batch_size"]["choice"], *given["width"]["choice"], *given["betas"]]
    assert {type(number) for number in numbers} == {int, float}


def test_what_a_file_cannot_hold_has_one_line() -> None:
    with pytest.raises(BadInput) as caught:
        config(lr=0.1, activation={"choice": [dict, list]})
    [line] = caught.value.faults
    assert "activation: <class 'dict'> cannot be written to a file; give it a name, a text, and choose by that" in line


def test_none_keeps_the_line_of_the_space() -> None:
    with pytest.raises(BadInput, match=r"space\.lr: read None, which cannot be written"):
        parse(config(lr=None).space)
