"""The share of the GPUs of each type that a trial takes: pure, from requests, measurements and refusals.

    choices = requested_share(by_type(nodes), 0.2, needs)     # by type; then plan(nodes, choices, num_trials)

A fraction is relative to a device: five trainings that fit an A100 need not fit a T4.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

from raygpu.planning.cost_model import FreeMemory, Option, ProfiledGroup, at_once, trainings_that_fit
from raygpu.planning.gpu_shares import MAX_MPS_CLIENTS, Choice, Node, Share, auto_share, by_type, held_to, snap
from raygpu.planning.scaling_laws import Affine


def requested_share(nodes: Sequence[Node], fraction: float, needs: Mapping[str, Affine]) -> dict[str, Choice]:
    """Return the requested share by type, less on a GPU whose memory does not hold it. needs: GiB of n trials, by
    type."""
    nodes_by_type = by_type(nodes)
    choice = Choice(snap(fraction), f"gpu.fraction {fraction:g}")
    if len(nodes_by_type) == 1:  # what a person asked for holds: there is no other GPU that it was meant for
        return dict.fromkeys(nodes_by_type, choice)
    return {device: _fitting(choice, of, needs.get(device)) for device, of in nodes_by_type.items()}


def _fitting(choice: Choice, nodes: Sequence[Node], need: Affine | None) -> Choice:
    free_gib = _free_gib(nodes)
    if need is None or need.each <= 0 or free_gib is None:
        return choice
    most = trainings_that_fit(need, free_gib)
    measured = f"{need.at(1):.1f} GiB each was measured, and {free_gib:.1f} GiB are free"
    return held_to(choice, most, f"{choice.reason}, but {measured}")


def automatic_share(nodes: Sequence[Node]) -> dict[str, Choice]:
    """Return the share by `auto_share` for each type of GPU."""
    return {device: auto_share(of) for device, of in by_type(nodes).items()}


def measured_share(
    nodes: Sequence[Node], best: Option, parts: Mapping[str, ProfiledGroup], num_gpus: int, reference: str
) -> dict[str, Choice]:
    """Return the measured share for each type.

    parts: the trials that count, with their profile on each type. reference: the GPU for which `best` was found.
    """
    nodes_by_type = by_type(nodes)
    if len(nodes_by_type) == 1:
        return dict.fromkeys(nodes_by_type, Choice(Share(best.n), best.bound or "measured"))
    choices = {}
    for device, of in nodes_by_type.items():
        way = best.way if parts[device].profile.measured(best.way) else "process"
        most, bound = at_once(parts[device], way, FreeMemory.of(of, _free_gib(of)), num_gpus)
        choice = Choice(Share(1 if best.n == 1 else most), bound)
        choices[device] = held_to(choice, best.n, best.bound or "measured") if of[0].device == reference else choice
    return choices


def limit_by_device(nodes: Sequence[Node], choices: Mapping[str, Choice], *, mps: bool = False) -> dict[str, Choice]:
    """Hold GPUs that take one process at a time to one trial. mps: whether one MPS server computes for all trials of a
    GPU."""
    if mps:
        clients = f"CUDA MPS serves {MAX_MPS_CLIENTS} processes at most"
        return {device: held_to(choice, MAX_MPS_CLIENTS, clients) for device, choice in choices.items()}
    refusals = {device: of[0].refusal for device, of in by_type(nodes).items()}
    return {
        device: choice if (refusal := refusals.get(device)) is None else held_to(choice, 1, refusal)
        for device, choice in choices.items()
    }


def limit_by_reservation(choices: Mapping[str, Choice], most_gpus: Fraction | None) -> dict[str, Choice]:
    """Reduce the shares until one trial fits into the part of a GPU that may be reserved."""
    if most_gpus is None or most_gpus >= 1:
        return dict(choices)
    least = math.ceil(1 / most_gpus)
    bound = f"cluster.max_gpus {float(most_gpus):g}"
    return {
        device: choice if choice.share.trials_per_gpu >= least else Choice(Share(least), bound)
        for device, choice in choices.items()
    }


def _free_gib(nodes: Sequence[Node]) -> float | None:
    """Return the memory of the GPU that has the least free; its whole memory if the free part is unknown."""
    gibs = [gib for node in nodes if (gib := node.free_gib if node.free_gib is not None else node.device_gib)]
    return min(gibs, default=None)
