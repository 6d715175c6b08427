"""The view of a balance: each device's best batch and share, and balanced beside equal shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from raygpu.cli import profile_view
from raygpu.cli.formatting import aligned, interval, throughput
from raygpu.planning import confidence
from raygpu.planning.batch_balancing import LARGEST_PART, BalanceVerdict, MeasuredSplit, relative
from raygpu.planning.batches import num_batches
from raygpu.planning.confidence import spread_text
from raygpu.records.device import Device

READINGS = {name: profile_view.READINGS[name] for name in ("util_pct", "power_w", "temperature_c")}


def table(devices: Sequence[Device], verdict: BalanceVerdict, readings: Mapping[int, Mapping[str, float]]) -> list[str]:
    """Return a table with a line for each rank. devices: of the ranks. readings: NVML's, by device index."""
    columns = [name for name in READINGS if any(name in reading for reading in readings.values())]
    head = ["rank", "device", "best batch", "samples/s", "speed over the mean", "share", "alone with it"]
    rows = [[*head, *(READINGS[name][0] for name in columns)]]
    ranks = zip(devices, verdict.curves, relative(verdict.curves), verdict.tried.shares, strict=True)
    for rank, (device, curve, speed, share) in enumerate(ranks):
        row = [str(rank), f"gpu {device.index} {device.name}", str(curve.best), f"{curve.rates[curve.best]:,.0f}"]
        row += ["" if verdict.asked else interval(speed)]
        row += [str(share), throughput(share / curve.step_s(share))]
        known = readings.get(device.index, {})
        rows.append(row + [READINGS[name][1].format(known[name]) if name in known else "" for name in columns])
    return aligned(rows)


def lines(verdict: BalanceVerdict) -> list[str]:
    """Return lines on the measured devices and trainings, and the shares that follow."""
    tried, equal, speedup = verdict.tried, verdict.equal, verdict.speedup
    sentences = [f"predicted, without the exchange between devices: {throughput(verdict.split.samples_per_s)}"]
    name = "equal shares" if equal is None and verdict.fits else "balanced"
    sentences += [f"{name}, {_speed(tried)}"]
    if equal is not None:
        sentences += [f"equal shares, {_speed(equal)}"]
    if not verdict.fits:
        return [*sentences, "equal shares: out of memory"]
    if equal is None or speedup is None:
        if verdict.asked:
            return [*sentences, "verdict: equal shares, as asked for"]
        if len(verdict.groups) > 1:
            return [*sentences, "verdict: equal shares: the devices differ in speed by less than a sample of a step"]
        return [*sentences, "verdict: equal shares; within noise: no device is shown to be faster than another"]
    times = f"{interval(speedup, 'x')} the equal split"
    if speedup.low > 1:
        return [*sentences, f"verdict: balanced is {times}"]
    if verdict.asked:
        text = "your shares are slower" if speedup.high < 1 else "within noise: equal shares would do"
        return [*sentences, f"verdict: {text}; yours are {times}"]
    text = "the unequal ones are slower:" if speedup.high < 1 else "within noise: the unequal ones were"
    return [*sentences, f"verdict: equal shares; {text} {times}"]


@dataclass(frozen=True, slots=True)
class Step:
    """An optimizer step of a training."""

    global_batch: int
    lr: float


def training(before: Step, after: Step, samples_per_epoch: int) -> list[str]:
    """Compare a step of the written training with the configuration's, in lines; warn if it takes a large part of an
    epoch.

    before, after: the step as configured and as written.
    """
    steps, now = num_batches(samples_per_epoch, before.global_batch), num_batches(samples_per_epoch, after.global_batch)
    part = after.global_batch / samples_per_epoch
    sentences = []
    if after.global_batch == before.global_batch:
        sentences.append(
            f"the training is as configured: {after.global_batch} samples a step, {now} steps an epoch"
            f", learning rate {after.lr:.4g}"
        )
    else:
        rate = f"in place of {before.lr:.4g}"
        if after.lr == before.lr:
            linear = before.lr * after.global_batch / before.global_batch
            rate = f"as it was (--lr-scaling linear makes it {linear:.4g})"
        sentences.append(
            f"this changes the training: {after.global_batch} samples a step in place of {before.global_batch}, {now}"
            f" steps an epoch in place of {steps}, learning rate {after.lr:.4g} {rate}"
        )
    if part > LARGEST_PART:
        sentences.append(
            f"warning: a step takes {100 * part:.0f} % of the {samples_per_epoch:,} training samples of an epoch;"
            " scores may suffer"
        )
    return sentences


def _speed(split: MeasuredSplit) -> str:
    shares, parts = " + ".join(map(str, split.shares)), " + ".join(f"{rate:,.0f}" for rate in split.by_rank)
    speed = confidence.interval(split.rates)
    spread = spread_text(speed.low, speed.high, "{:,.0f}") if len(split.rates) > 1 else ""
    turns = f", {len(split.turns)} turns" if len(split.turns) > 1 else ""
    return f"{shares}: {throughput(split.samples_per_s)}{spread} in all ({parts}){turns}"
