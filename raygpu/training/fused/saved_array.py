"""Members of a saved array, in the form that a trial alone saves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from raygpu.training.base import ARRAY_CHECKPOINT
from raygpu.training.fused.loss_scales import SKIPPED, member_scale
from raygpu.training.torch.models import CHECKPOINT, load_checkpoint
from raygpu.training.torch.parameter_average import AVERAGED, UNAVERAGED


def save_saved_members(array_folder: Path, folders: Mapping[str, Path]) -> None:
    """Write `checkpoint.pt` of members from a saved array. folders: of each wanted trial, by its id."""
    saved = load_checkpoint(array_folder, file=ARRAY_CHECKPOINT)
    for trial_id, folder in folders.items():
        torch.save(member_state(saved, saved["trial_ids"].index(trial_id)), folder / CHECKPOINT)


def member_state(saved: Mapping[str, Any], i: int) -> dict[str, Any]:
    """Return the i-th member of a saved array, in the form that `TorchSolo` saves."""
    place, num_buffers = i, saved["num_buffers"][i]
    for tile in saved["tiles"]:
        count = len(next(iter(tile[0].values())))
        if i < count:
            break
        i -= count
    parameters, fixed, buffers, *optimizer_state = ({name: t[i].clone() for name, t in stack.items()} for stack in tile)
    model = {**parameters, **fixed, **buffers}
    average = optimizer_state.pop(0) if saved["has_average"] else {}
    scales = optimizer_state.pop(0) if saved["has_loss_scale"] else {}
    unaveraged = {name: model[saved["owners"][name]] for name in saved["names"]}
    if average and saved["averaged"][place]:
        averaged = model | average
        evaluated = {name: averaged[saved["owners"][name]] for name in saved["names"]}
        models = {"model": evaluated, UNAVERAGED: unaveraged, AVERAGED: [*parameters]}
    else:
        models = {"model": unaveraged}
    return {
        **models,
        "optimizer": {
            "num_steps": saved["num_steps"] - (int(scales[SKIPPED]) if scales else 0),
            "buffers": [
                [
                    stack[name] if name in parameters else torch.zeros_like(model[name])
                    for stack in optimizer_state[:num_buffers]
                ]
                for name in saved["optimized"]
            ],
        },
        "loss_scale": member_scale(scales) if scales else {},
        "epoch": saved["epoch"],
    }
