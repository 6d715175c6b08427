"""Modes of torch and Keras that hold for a whole process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from raygpu.search.trials import Trial
from raygpu.training.fused.dry_run import names_read
from raygpu.training.modes import torch_modes_kept
from tests.contracts.zoo.entry import Vectors, mlp
from tests.forks import faults_in_forks

SETTERS: dict[str, Callable[[], Any]] = {
    "dtype": lambda: torch.set_default_dtype(torch.float64),
    "device": lambda: torch.set_default_device("meta"),
    "gradients": lambda: torch.set_grad_enabled(False),
    "anomaly": lambda: torch.autograd.set_detect_anomaly(True),
    "deterministic": lambda: torch.use_deterministic_algorithms(True),
    "cudnn": lambda: setattr(torch.backends.cudnn, "benchmark", True),
    "attention": lambda: torch.backends.mha.set_fastpath_enabled(False),
    "autocast": lambda: torch.set_autocast_enabled("cpu", True),
    "autocast dtype": lambda: torch.set_autocast_dtype("cpu", torch.float16),
    "products": lambda: torch.set_float32_matmul_precision("high"),
    "products, newer": lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32"),
    "convolutions": lambda: setattr(torch.backends.cudnn, "allow_tf32", not torch.backends.cudnn.allow_tf32),
    "all, newer": lambda: setattr(torch.backends, "fp32_precision", "tf32"),
    "convolutions, newer": lambda: setattr(torch.backends.cudnn.conv, "fp32_precision", "ieee"),
}


def modes() -> list[Any]:
    return [
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.is_grad_enabled(),
        torch.is_anomaly_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.cudnn.benchmark,
        torch.backends.mha.get_fastpath_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        torch.get_num_threads(),
        torch.backends.cuda.matmul.fp32_precision,
        torch.backends.cudnn.conv.fp32_precision,
    ]


@pytest.mark.parametrize("name", SETTERS)
def test_modes_are_restored(name: str) -> None:
    before = modes()
    with torch_modes_kept():
        SETTERS[name]()
        assert modes() != before
    assert modes() == before


GENERAL_PRECISION = """
from raygpu.training.modes import PRECISIONS, all_modes, read_modes, set_modes
before = read_modes(all_modes())
assert set(PRECISIONS) <= before.keys()
set_modes(all_modes(), before)
{setting}
set_modes(all_modes(), before)
assert read_modes(all_modes()) == before
torch.backends.fp32_precision = "ieee"
for name in PRECISIONS:
    assert read_modes(all_modes())[name] == "ieee", name
"""
SETTINGS = [
    "",
    "torch.backends.cudnn.fp32_precision = 'ieee'",
    "torch.backends.fp32_precision = 'ieee'",
    "torch.backends.mkldnn.conv.fp32_precision = 'bf16'",
    "torch.set_float32_matmul_precision('medium')",
]
FRESH = """
from raygpu.training.modes import all_modes, defaults, read_modes
modes = read_modes(all_modes())
assert {name: modes[name] for name in defaults() if name in modes} == {
    name: value for name, value in defaults().items() if name in modes
}
assert all(name.startswith("keras.") for name in set(defaults()) - set(modes)), "of Keras, which is not imported"
"""


def test_the_defaults_are_those_of_a_fresh_process_and_restored_precisions_follow_the_general_one() -> None:
    """In processes of their own: a convolution's precision that an earlier test has set follows none."""
    general = {setting or "none": GENERAL_PRECISION.format(setting=setting) for setting in SETTINGS}
    assert faults_in_forks("import torch", {"fresh": FRESH, **general}) == []


class Double(Vectors, base=True):
    """A model that asks for another precision of everything that is made later."""

    def model(self, hp: Any) -> nn.Module:
        torch.set_default_dtype(torch.float64)
        return nn.Sequential(nn.Flatten(), mlp(nn.ReLU()).float())


def test_a_look_at_an_experiment_leaves_the_modes_alone() -> None:
    before = modes()
    names_read(Double(), Trial("t0", 0, {"batch_size": 4}), Double().data())
    assert modes() == before
