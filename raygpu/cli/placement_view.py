"""The view of compared placements: a table, the costliest operations and the verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import stdev

from raygpu.cli.formatting import aligned, interval
from raygpu.config.sections import ONE
from raygpu.planning.model_placements import ComparedPlacements, MeasuredPlacement, StepProfile
from raygpu.planning.pipelines import bubble

NUM_OPERATIONS = 4
NOTABLE = 1e-3
"""Relative difference of losses that rounding does not explain."""


def table(measured: Sequence[MeasuredPlacement], found: ComparedPlacements) -> list[str]:
    """Return a table with a line for each placement."""
    num_devices = max((len(each.memory_gib) for each in measured), default=0)
    head = ["placement", "s an epoch", "speed-up", "copies a step", "MiB a step", "share of device time"]
    rows = [[*head, *(f"GiB on {index}" for index in range(num_devices))]]
    for each in measured:
        if not each.turns:
            rows.append([each.name, "failed", *[""] * (len(head) - 2 + num_devices)])
            continue
        seconds = [turn.epoch_s for turn in each.turns]
        speedup = found.speedups.get(each.name)
        times = "" if speedup is None or each.name == ONE else interval(speedup, "x")
        memory = [f"{gib:.3g}" for gib in each.memory_gib]
        rows.append([each.name, f"{each.epoch_s:.3g} ± {stdev(seconds):.1g}", times, *_copies(each.profile), *memory])
    return aligned(rows)


def _copies(profile: StepProfile | None) -> list[str]:
    if profile is None:
        return ["", "", ""]
    return [f"{profile.num_copies:g}", f"{profile.copied_bytes / 2**20:.3g}", f"{100 * profile.copy_share:.1f} %"]


def parts(placement: Mapping[str, int]) -> str:
    """Return a placement's parts as text, `user_tower on 0, item_tower on 1`."""
    return ", ".join(f"{name} on {device}" for name, device in placement.items()) or "all on 0"


def details(measured: Sequence[MeasuredPlacement]) -> list[str]:
    """Return lines on the costliest operations of each placement, and on those that failed."""
    lines = []
    for each in measured:
        if each.fault is not None:
            lines.append(f"{each.name}: {each.fault}")
        elif each.bubble is not None:
            expected = bubble(len(each.stages) + 1, each.micro_batches)
            lines.append(
                f"{each.name}: stages begin with {', '.join(each.stages)}; {each.micro_batches} micro-batches; devices"
                f" wait {100 * each.bubble:.0f} % of the time, {100 * expected:.0f} % if stages took equally long and"
                " copies nothing"
            )
        elif (profile := each.profile) is not None:
            costly = [
                f"{operation.name} {100 * operation.seconds / profile.device_s:.0f} %"
                for operation in profile.operations[:NUM_OPERATIONS]
            ]
            lines.append(f"{each.name}: costliest operations: {', '.join(costly)}")
    return lines


def verdict(
    measured: Sequence[MeasuredPlacement], found: ComparedPlacements, *, simulated: bool, device: str
) -> list[str]:
    """Return the verdict in a sentence, and lines on what it cannot say. device: name of the devices."""
    lines = [f"verdict: {_sentence(measured, found)}"]
    for name, difference in found.loss_differences.items():
        if difference > NOTABLE:
            lines.append(
                f"{name}: its loss differs from that on one device by {difference:.2g} of it; dropout draws other"
                " numbers on another device, and anything else that differs would be a fault"
            )
    if simulated:
        lines.append(
            f"the devices are logical ones of {device}: a copy between them stays in its memory and costs next to"
            " nothing, and parts on different ones do not work at the same time; separate GPUs will differ"
        )
        if any(each.stages for each in measured):
            lines.append("a pipeline's stages are processes that share it, with the threads divided among them")
    return lines


def memory_lines(measured: Sequence[MeasuredPlacement], fewest_devices: int | None) -> list[str]:
    """Return a line on the number of devices that holds the model, if one device does not."""
    one = next(each for each in measured if each.name == ONE)
    if one.fault is None or "memory" not in one.fault:
        return []
    if fewest_devices is None:
        return ["no number of devices holds it as a pipeline: a single part of the model does not fit one device"]
    return [f"as a pipeline it needs {fewest_devices} devices or more, by the measured memory of the model's parts"]


def _sentence(measured: Sequence[MeasuredPlacement], found: ComparedPlacements) -> str:
    best = found.best
    if best is None:
        return "no placement could be trained"
    if not found.speedups:
        return f"one device does not hold the training; {best.name} does, {best.epoch_s:.3g} s an epoch"
    others = [each for each in measured if each.turns and each.name != ONE]
    if best.name != ONE:
        return f"{best.name} is {interval(found.speedups[best.name], 'x')} as fast as one device{_cost(best)}"
    facts = [f"{each.name} is {interval(found.speedups[each.name], 'x')} as fast{_cost(each)}" for each in others]
    return "; ".join([f"one device: no placement is shown to be faster than its {best.epoch_s:.3g} s an epoch", *facts])


def _cost(placement: MeasuredPlacement) -> str:
    profile = placement.profile
    return "" if profile is None else f", with {100 * profile.copy_share:.1f} % of device time in copies"
