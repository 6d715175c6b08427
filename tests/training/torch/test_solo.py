"""A training that ends leaves its memory to the next one."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest

from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from raygpu.training.torch.solo import TorchSolo
from tests.models import Mlp, few
from tests.torch_device import DEVICE


@pytest.mark.parametrize("more", [{}, {"micro_batch_size": 8}, {"ema_decay": 0.9}], ids=str)
@pytest.mark.parametrize("precision", ["float32", "fp16"])
def test_close_frees_the_parameters(more: dict[str, Any], precision: Any) -> None:
    trial = Trial("t0000", 0, {"hidden": 4, "batch_size": 16, **more})
    training = TorchSolo(Mlp(), few(), trial, Settings(1, 1, precision, Path()), DEVICE)
    training.run_epoch()
    parameter = weakref.ref(next(training.model.parameters()))
    training.close()
    gc.collect()
    assert parameter() is None
