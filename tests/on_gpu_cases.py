"""Trainings that go wrong on a GPU in ways of their own; without one, in the CPU's ways."""

from __future__ import annotations

from typing import Any

import torch

import raygpu

GIB = 2**30


def device() -> torch.device:
    """Return the GPU, or the CPU without one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def greedy(config: dict[str, Any]) -> None:
    """Hold `gib` of the device's memory from the second epoch on, and tell which epoch it went on from."""
    done = raygpu.load(0)
    held = torch.zeros(1, device=device())
    for epoch in range(done + 1, 4):
        if epoch == 2:
            held = torch.ones(max(1, int(config["gib"] * GIB / 4)), device=device())
        raygpu.checkpoint(epoch)
        raygpu.report(score=epoch, held_gib=held.numel() * 4 / GIB, went_on_from=done)


def breaks(config: dict[str, Any]) -> None:
    """Read beyond a tensor's end if told to: on a GPU, a kernel's assertion that loses the whole CUDA context."""
    table = torch.zeros(8, device=device())
    for epoch in range(1, 3):
        index = torch.tensor([8 if config["breaks"] and epoch == 2 else 1], device=device())
        value = table[index].sum().item()
        raygpu.report(score=epoch + value)
