"""Tell of GPUs that were used too little, and what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from raygpu.cli.formatting import duration
from raygpu.config.command_names import typed
from raygpu.planning.under_use import LARGE_PART, Underutilization

WAITED_S = 10.0
"""Shortest time of waiting for samples, in seconds, that is told of."""


def under_use_lines(found: Sequence[Underutilization], kind: str, config: Mapping[str, Any]) -> list[str]:
    """Return a line for each GPU, and then one line of advice for each cause.

    kind: command of the run, `sweep` or `train`. config: content of its `config.toml`.
    """
    lines = [_line(each, "trial" if kind == "sweep" else "worker") for each in found]
    advice = dict.fromkeys(_advice(each, kind, config) for each in found)
    return [*lines, *advice]


def waiting_lines(workers_s: Mapping[str, float | None]) -> list[str]:
    """Return a line on the time in which trainings waited for samples, if it was a large part of their time.

    workers_s: seconds of all workers by activity.
    """
    waited_s, trained_s = workers_s.get("data") or 0.0, workers_s.get("train") or 0.0
    if waited_s < max(WAITED_S, LARGE_PART * (waited_s + trained_s)):
        return []
    return [
        f"trainings waited for samples in {100 * waited_s / (waited_s + trained_s):.0f} % of their time: have decoded"
        " samples kept (dataset_splits with cache=True, and what is random as transform=), give trainings more CPUs, or"
        " store samples that take less to decode"
    ]


def _line(use: Underutilization, who: str) -> str:
    part = f"{100 * use.lost_s / use.of_s:.0f} % of {duration(use.of_s)}"
    if use.kind == "empty":
        return f"GPU {use.gpu} had no {who} for {part}"
    cpu = f"; the CPUs were {use.cpu_pct:.0f} % busy meanwhile" if use.cpu_binds else ""
    sm = f"; {use.sm_util_pct:.0f} % of its multiprocessors were busy on average" if use.sm_util_pct is not None else ""
    if use.kind == "idle":
        return f"GPU {use.gpu} was idle, without any kernel, for {part} with {who}s on it{sm}{cpu}"
    return f"GPU {use.gpu} was hardly filled in {duration(use.of_s)} with {who}s on it{sm}{cpu}"


def _advice(use: Underutilization, kind: str, config: Mapping[str, Any]) -> str:
    if use.kind == "empty":
        return "a GPU without trials: fewer GPUs (--gpu.devices) or more trials, so that none waits for the last ones"
    if use.cpu_binds:
        return (
            "the CPUs bind, not the GPU, often by loading data: prepare less for each batch on the CPU (augment on the"
            " device, fewer and larger files), take a larger batch, or more cores for each GPU"
        )
    if kind != "sweep":
        return "a larger batch (--global-batch) fills a GPU better; so does a search beside it, on a part of the GPU"
    if config.get("gpu", {}).get("fraction", "auto") != "auto":
        return "pack more trials on a GPU: --gpu.fraction auto measures how many; or take a larger batch_size"
    return f"pack more trials on a GPU: {typed('pack')} measures how many gain; or take a larger batch_size"
