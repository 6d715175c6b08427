"""Select GPUs of this machine by CUDA_VISIBLE_DEVICES, and those that a sweep may use by `gpu.devices` too."""

from __future__ import annotations

from collections.abc import Sequence

from raygpu.devices.nvml import Gpu
from raygpu.errors import BadInput


def select(gpus: Sequence[Gpu], devices: str, visible: str | None) -> list[Gpu]:
    """Return the visible GPUs that `devices` names: "all", or indices and UUIDs separated by commas.

    visible: CUDA_VISIBLE_DEVICES, or None if it is not set. Raises BadInput for a GPU that is not visible or unknown.
    """
    allowed = list(gpus) if visible is None else _named(gpus, visible, "whole GPUs are wanted, which are")
    if devices.strip() == "all":
        return allowed
    if not allowed:
        where = "no NVIDIA GPU here" if not gpus else f"CUDA_VISIBLE_DEVICES={visible!r} shows none"
        raise BadInput(f"gpu.devices: read {devices!r}, but {where}; leave it out")
    chosen: list[Gpu] = []
    for word in _words(devices):
        gpu = _find(allowed, word)
        if gpu is None:
            raise BadInput(f"gpu.devices: read {word!r}; the GPUs are: {_known(allowed)}")
        if gpu not in chosen:
            chosen.append(gpu)
    if not chosen:
        raise BadInput(f'gpu.devices: read {devices!r}; allowed: "all", or indices and UUIDs separated by commas')
    return chosen


def listed(gpus: Sequence[Gpu], visible: str | None) -> list[tuple[str, Gpu | None]]:
    """Return the GPUs of a node by Ray's names for them, in Ray's order; None for a name without a GPU.

    visible: CUDA_VISIBLE_DEVICES that the node was started with, or None if it was not set.
    """
    if visible is None:
        return [(str(place), gpu) for place, gpu in enumerate(gpus)]
    return [(word, _find(gpus, word)) for word in _words(visible)]


def shown(devices: Sequence[Gpu], visible: str | None) -> list[Gpu]:
    """Return the devices that CUDA_VISIBLE_DEVICES names, in its order; a GPU with its MIG instances.

    devices: GPUs, each followed by its MIG instances. visible: None if the variable is not set. Raises BadInput if its
    first entry is unknown and not -1.
    """
    if visible is None:
        return list(devices)
    chosen: list[Gpu] = []
    for device in _named(devices, visible, "the devices are"):
        parts = [each for each in devices if each.instance is not None and each.instance.gpu_uuid == device.uuid]
        chosen += [each for each in (device, *parts) if each not in chosen]
    return chosen


def _named(gpus: Sequence[Gpu], visible: str, wanted: str) -> list[Gpu]:
    """Return the GPUs of CUDA_VISIBLE_DEVICES by CUDA's rule: the list ends at the first entry without a GPU, as -1.

    wanted: words before the list of the GPUs in a refusal. Raises BadInput if the first entry is unknown and not -1: a
    MIG device, say, is not silently replaced by the CPU.
    """
    words = _words(visible)
    chosen: list[Gpu] = []
    for word in words:
        gpu = _find(gpus, word)
        if gpu is None:
            break
        if gpu not in chosen:
            chosen.append(gpu)
    if words and not chosen and words[0] != "-1":
        raise BadInput(f"CUDA_VISIBLE_DEVICES: read {visible!r}; {wanted}: {_known(gpus) or 'none'}")
    return chosen


def _known(gpus: Sequence[Gpu]) -> str:
    return ", ".join(f"{gpu.label} ({gpu.uuid})" for gpu in gpus)


def _find(gpus: Sequence[Gpu], word: str) -> Gpu | None:
    """Find a device by its index, UUID, a beginning of the UUID that no other one has, or an instance's old name."""
    if word.isdecimal():
        return next((gpu for gpu in gpus if gpu.index == int(word) and gpu.instance is None), None)
    if "/" in word:
        return next((gpu for gpu in gpus if word == _old_name(gpu)), None)
    matches = [gpu for gpu in gpus if word and gpu.uuid.startswith(word)]
    return matches[0] if len(matches) == 1 else None


def _old_name(gpu: Gpu) -> str | None:
    """Return the name of a MIG instance before driver 470, which CUDA still takes; None for a whole GPU."""
    part = gpu.instance
    return f"MIG-{part.gpu_uuid}/{part.gpu_instance}/{part.compute_instance}" if part is not None else None


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]
