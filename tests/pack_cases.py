"""Experiments that the tests of raygpu.pack train: fast, and each with one behaviour to be seen."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import nn

from tests.models import Mlp
from tests.pack_functions import num_alive


class Crowded(Mlp):
    """The device holds `room` processes."""

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        if num_alive(hp["folder"]) > hp["room"]:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return super().model(hp)


class Wide(Mlp):
    """A process holds `room` models."""

    models: ClassVar[weakref.WeakSet[nn.Module]] = weakref.WeakSet()

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        model = super().model(hp)
        self.models.add(model)
        if len(self.models) > hp["room"]:
            raise MemoryError
        return model
