"""What a person sees of a balance: each device's best batch and share, and the balanced job beside the equal split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from raygpu.balancing import Balanced, Curve
from raygpu.records import Device
from raygpu.views.console import throughput

READINGS = {"util_pct": ("util", "{:.0f} %"), "power_w": ("power", "{:.0f} W"), "temperature_c": ("temp", "{:.0f} °C")}
"""Columns that are shown where a GPU tells them."""


@dataclass(frozen=True, slots=True)
class Job:
    """A data-parallel job that was trained for a while."""

    shares: tuple[int, ...]
    by_rank: tuple[float, ...]
    """Samples/s of each rank."""

    @property
    def samples_per_s(self) -> float:
        return sum(self.by_rank)


def table(
    devices: Sequence[Device], curves: Sequence[Curve], split: Balanced, readings: Mapping[int, Mapping[str, float]]
) -> list[str]:
    """A line for each rank. devices: of the ranks. readings: what NVML told, by device."""
    told = [name for name in READINGS if any(name in reading for reading in readings.values())]
    head = ["rank", "device", "best batch", "samples/s", "ratio", "share", "alone with it"]
    rows = [[*head, *(READINGS[name][0] for name in told)]]
    for rank, (device, curve, share) in enumerate(zip(devices, curves, split.shares, strict=True)):
        row = [str(rank), f"gpu {device.index} {device.name}", str(curve.best), f"{curve.rates[curve.best]:,.0f}"]
        row += [f"{share / split.global_batch:.3f}", str(share), throughput(share / curve.step_s(share))]
        known = readings.get(device.index, {})
        rows.append(row + [READINGS[name][1].format(known[name]) if name in known else "" for name in told])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]


def verdict(split: Balanced, job: Job, equal: Job | None) -> list[str]:
    """The job that was trained, against what was predicted and against equal shares; None where these do not fit."""
    parts = " + ".join(f"{rate:,.0f}" for rate in job.by_rank)
    shares = " + ".join(map(str, job.shares))
    lines = [
        f"predicted: {split.global_batch} samples a step, {throughput(split.samples_per_s)}",
        f"balanced, {shares}: {throughput(job.samples_per_s)} in all ({parts})",
    ]
    if equal is None:
        return [*lines, "equal shares: out of memory"]
    ratio = job.samples_per_s / equal.samples_per_s
    parts, shares = " + ".join(f"{rate:,.0f}" for rate in equal.by_rank), " + ".join(map(str, equal.shares))
    same = "; the devices are as good as equal" if 0.97 < ratio < 1.03 else ""
    return [
        *lines,
        f"equal shares, {shares}: {throughput(equal.samples_per_s)} in all ({parts})",
        f"balanced is {ratio:.2f}x the equal split{same}",
    ]


def plot(
    title: str,
    devices: Sequence[Device],
    curves: Sequence[Curve],
    split: Balanced,
    job: Job,
    equal: Job | None,
    path: Path,
) -> None:
    """Samples/s of each device by its batch, with its share; and beside it the job against equal shares."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 5), dpi=110, layout="constrained")
    figure.suptitle(title)
    speeds, bars = figure.subplots(1, 2, width_ratios=(2, 1))
    for rank, (device, curve, share) in enumerate(zip(devices, curves, split.shares, strict=True)):
        sizes = sorted(curve.rates)
        (line,) = speeds.plot(
            sizes, [curve.rates[size] for size in sizes], marker="o", label=f"rank {rank}: {device.name}"
        )
        speeds.plot([share], [share / curve.step_s(share)], "D", markersize=9, color=line.get_color())
        speeds.annotate(
            f"{share}", (share, share / curve.step_s(share)), xytext=(6, -14), textcoords="offset points",
            color=line.get_color(),
        )  # fmt: skip
    speeds.set_xscale("log", base=2)
    ticks = sorted({size for curve in curves for size in curve.rates})
    speeds.set_xticks(ticks, [str(size) for size in ticks])
    speeds.set_ylim(bottom=0)
    speeds.set_xlabel("samples of a step on this device (diamonds: its share)")
    speeds.set_ylabel("samples/s, alone")
    speeds.legend(frameon=False, loc="lower right")
    jobs = [("equal", equal), ("balanced", job)]
    for place, (name, each) in enumerate(jobs):
        base = 0.0
        for rank, rate in enumerate(each.by_rank if each is not None else ()):
            bars.bar(place, rate, bottom=base, color=f"C{rank}", width=0.6)
            base += rate
        bars.annotate(f"{base:,.0f}" if each is not None else "out of memory", (place, base), ha="center", va="bottom")
        bars.set_xticks([0, 1], [name for name, _ in jobs])
    bars.axhline(split.samples_per_s, color="0.4", linestyle="--", linewidth=1)
    text = f"predicted {split.samples_per_s:,.0f}"
    bars.annotate(text, (-0.55, split.samples_per_s), xytext=(0, 4), textcoords="offset points", color="0.4")
    bars.set_xlim(-0.6, 1.6)
    bars.set_ylabel("samples/s, all devices together")
    bars.margins(y=0.12)
    for axes in (speeds, bars):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.25)
    figure.savefig(path)
