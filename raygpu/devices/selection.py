"""Which of this machine's GPUs a sweep may use: `gpu.devices` and CUDA_VISIBLE_DEVICES."""

from __future__ import annotations

from collections.abc import Sequence

from raygpu.devices.nvml import Gpu
from raygpu.errors import BadInput


def select(gpus: Sequence[Gpu], devices: str, visible: str | None) -> list[Gpu]:
    """The GPUs that `devices` names ("all", or indices and UUIDs by commas) of those that are visible.

    visible: CUDA_VISIBLE_DEVICES, or None if it is not set. Raises BadInput.
    """
    allowed = list(gpus) if visible is None else _named(gpus, visible)
    if devices.strip() == "all":
        return allowed
    if not allowed:
        where = "no NVIDIA GPU here" if not gpus else f"CUDA_VISIBLE_DEVICES={visible!r} shows none"
        raise BadInput(f"gpu.devices: read {devices!r}, but {where}; leave it out")
    chosen: list[Gpu] = []
    for word in _words(devices):
        found = _find(allowed, word)
        if found is None:
            raise BadInput(f"gpu.devices: read {word!r}; the GPUs are: {_known(allowed)}")
        if found not in chosen:
            chosen.append(found)
    if not chosen:
        raise BadInput(f'gpu.devices: read {devices!r}; allowed: "all", or indices and UUIDs separated by commas')
    return chosen


def listed(gpus: Sequence[Gpu], visible: str | None) -> list[tuple[str, Gpu | None]]:
    """What Ray calls the GPUs of a node that was started with this CUDA_VISIBLE_DEVICES, and which they are."""
    if visible is None:
        return [(str(place), gpu) for place, gpu in enumerate(gpus)]
    return [(word, _find(gpus, word)) for word in _words(visible)]


def _named(gpus: Sequence[Gpu], visible: str) -> list[Gpu]:
    """CUDA's rule: the list ends at the first entry that names no GPU, as in -1.

    A list of nothing but unknown names is a fault: a MIG device, say, is not silently traded for the CPU.
    """
    words = _words(visible)
    chosen: list[Gpu] = []
    for word in words:
        found = _find(gpus, word)
        if found is None:
            break
        chosen.append(found)
    if words and not chosen and words[0] != "-1":
        raise BadInput(f"CUDA_VISIBLE_DEVICES: read {visible!r}; whole GPUs are wanted, which are: {_known(gpus)}")
    return chosen


def _known(gpus: Sequence[Gpu]) -> str:
    return ", ".join(f"{gpu.index} ({gpu.uuid})" for gpu in gpus)


def _find(gpus: Sequence[Gpu], word: str) -> Gpu | None:
    """By index, or by UUID or its beginning if that is enough."""
    if word.isdigit():
        return next((gpu for gpu in gpus if gpu.index == int(word)), None)
    matches = [gpu for gpu in gpus if word and gpu.uuid.startswith(word)]
    return matches[0] if len(matches) == 1 else None


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]
