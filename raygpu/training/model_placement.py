"""Placement of a torch or Keras model on several devices: its parts by name, and a training of each placement."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from raygpu.config.sections import ALTERNATING, ONE
from raygpu.config.source import Source
from raygpu.errors import BadInput
from raygpu.experiment import Experiment, Splits
from raygpu.planning.model_placements import Placements, alternating, require_possible
from raygpu.search.trials import Trial
from raygpu.training.base import Settings

if TYPE_CHECKING:
    from raygpu.training.keras.placement import KerasPlaced
    from raygpu.training.torch.placement import TorchPlaced


def placements(
    source: Source, code: Experiment, splits: Splits, trial: Trial, asked: Placements, devices: int
) -> Placements:
    """Return the placements to compare: one device, those that are asked for, and alternating; by a look at the model.

    devices: number of devices. Raises BadInput with a line for each fault.
    """
    if source.kind == "torch":
        from raygpu.training.torch.placement import calls, require_together, without_shared

        with contextlib.chdir(source.folder):
            module_calls = calls(code, splits, trial)
        require_possible(asked, module_calls.order, devices)
        for name, parts in asked.items():
            require_together(name, parts, module_calls)
        worst = without_shared(alternating(module_calls.units, devices), module_calls)
    else:
        from raygpu.training.keras.placement import part_names

        with contextlib.chdir(source.folder):
            names, units = part_names(code, splits, trial)
        require_possible(asked, names, devices)
        worst = alternating(units, devices)
    if len(set(worst.values())) < 2:
        raise BadInput(
            f"experiment: {source.name}: its model has a single part, on one device: give it submodules to place"
        )
    return {ONE: {}, **asked, ALTERNATING: worst}


def start_placed(
    source: Source,
    code: Experiment,
    splits: Splits,
    trial: Trial,
    settings: Settings,
    parts: Mapping[str, int],
    num_devices: int,
    device_gib: float | None,
) -> TorchPlaced | KerasPlaced:
    """Make the training of one placement; on logical devices where there are fewer GPUs than `num_devices`.

    device_gib: memory of a GPU.
    """
    if source.kind == "torch":
        from raygpu.training.torch import placement as by_torch

        return by_torch.TorchPlaced(code, splits, trial, settings, parts, by_torch.placed_devices(num_devices))
    from raygpu.training.keras import placement as by_keras

    devices = by_keras.placed_devices(num_devices, device_gib)
    return by_keras.KerasPlaced(code, splits, trial, settings, parts, devices)
