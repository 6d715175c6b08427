"""Time per training against the number of trainings at once, on a device split into logical ones and without the split.

    python -m experiments.studies.logical_gpus                            conf/pack/digits_keras.toml
    python -m experiments.studies.logical_gpus conf/pack/cifar_resnet50_keras.toml --data.synthetic
    python -m experiments.studies.logical_gpus conf/pack/cifar_resnet50_cpu.toml --data.synthetic
    python -m experiments.studies.logical_gpus --draw                     measure nothing, draw the kept profiles

Runs `raygpu.pack` with the file, and draws the kept profiles of this training on all devices in one plot. Flags are
those of `raygpu.pack`. Without the split, each training is a process of its own on the whole device.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from experiments.benchmarks import record
from raygpu import pack
from raygpu.cli import profile_view
from raygpu.cli.command import Command, Outcome
from raygpu.cli.console import LiveConsole
from raygpu.cli.flags import Arguments
from raygpu.config import PackConfig
from raygpu.config.sections import Way
from raygpu.planning.confidence import Interval, spread_text
from raygpu.planning.profiles import Profile

DEFAULT = Path("conf/pack/digits_keras.toml")
WAYS: dict[Way, str] = {"process": "without the split", "split": "split"}
MARKS: dict[Way, str] = {"process": "o--", "split": "s-"}


@dataclass(frozen=True, slots=True)
class Row:
    """One number of trainings at once."""

    n: int
    split_s: float | None
    """Seconds per training on the split device; None if it was not measured, or is in doubt."""
    whole_s: float | None
    """Seconds per training without the split, likewise."""
    speedup: Interval | None
    """Throughput with the split over that without."""


def rows(profile: Profile, epochs: int) -> list[Row]:
    """Return a row for each measured number of trainings. epochs: of the time per training."""
    split, whole = ({p.n: p for p in profile.of(way) if p.gain is not None} for way in ("split", "process"))
    found = []
    for n in sorted(split.keys() | whole.keys()):
        times = [profile.time_per_training_s(of[n], epochs) if n in of else None for of in (split, whole)]
        both = n in split and n in whole
        found.append(Row(n, times[0], times[1], split[n].spread.over(whole[n].spread) if both else None))
    return found


def verdict(profile: Profile, epochs: int) -> str:
    """Return whether the split pays, in one sentence."""
    compared = [(row.n, row.speedup) for row in rows(profile, epochs) if row.speedup is not None and row.n > 1]
    if not compared:
        return "not known whether the split pays: no number of trainings was measured in both ways"
    faster = [n for n, speedup in compared if speedup.low > 1]
    slower = [n for n, speedup in compared if speedup.high < 1]
    n, most = max(compared, key=lambda pair: pair[1].middle)
    best = f"at {n} it has {most.middle:.2f}x{spread_text(most.low, most.high, '{:.2f}')} the throughput of processes"
    pays, loses = (", ".join(map(str, numbers)) for numbers in (faster, slower))
    if faster:
        against = f", and is slower with {loses}" if slower else ""
        return f"the split pays with {pays} trainings at once{against}: {best}"
    if slower:
        return f"the split does not pay: it is slower with {loses} trainings at once; {best}"
    return f"the split is not shown to pay with any measured number of trainings: {best}"


def draw(profiles: Sequence[Profile], epochs: int, path: Path) -> None:
    """Plot the seconds per training of each device by the number of trainings at once, with the split and without."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), dpi=110, layout="constrained")
    axes = figure.add_subplot()
    names = profile_view.device_names(profiles)
    numbers: set[int] = set()
    for place, (profile, device) in enumerate(zip(profiles, names, strict=True)):
        for way, label in WAYS.items():
            points = [(p, s) for p in profile.of(way) if (s := profile.time_per_training_s(p, epochs)) is not None]
            if not points:
                continue
            x, y = [p.n for p, _ in points], [seconds for _, seconds in points]
            axes.plot(x, y, MARKS[way], color=f"C{place}", label=f"{device}, {label}")
            for p, seconds in points:
                if p.gain and p.n > 1 and 0 < p.spread.low <= p.spread.high:
                    ends = [seconds * p.gain / p.spread.high, seconds * p.gain / p.spread.low]
                    axes.plot([p.n, p.n], ends, "-", color=f"C{place}", linewidth=5, alpha=0.25, solid_capstyle="butt")
            numbers |= set(x)
    axes.set_xscale("log")
    axes.set_xticks(sorted(numbers), [str(n) for n in sorted(numbers)])
    axes.set_xticks([], minor=True)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("trainings at once on one device")
    axes.set_ylabel("seconds per training of " + ("1 epoch" if epochs == 1 else f"{epochs} epochs"))
    data = ", synthetic data" if all(profile.synthetic for profile in profiles) else ""
    axes.set_title(f"{profiles[0].subject.source}{data}", loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.25)
    axes.legend(frameon=False, fontsize=9)
    figure.savefig(path)


def _main(arguments: Arguments) -> Outcome:
    config, stem, folder = COMMAND.read(arguments)
    console, epochs = LiveConsole(), config.epochs or 1
    own: Profile | None = None
    if "draw" not in arguments.switches:
        measured = pack.run(config, stem=stem, source_folder=folder, console=console)
        own = measured.profile
    compared = pack.compare(config.model_copy(update={"name": None}), stem=stem, source_folder=folder, console=console)
    path = compared.plot.with_name("logical_gpus.png")
    draw(compared.profiles, epochs, path)
    console.line(f"plot: {path}")
    if own is None:
        return Outcome(0)
    last = verdict(own, epochs)
    results: dict[str, Any] = {
        "rows": [asdict(row) for row in rows(own, epochs)],
        "verdict": last,
        "profile": own.as_dict(),
    }
    kept = record.write("logical_gpus", results, {"configuration": arguments.file or str(DEFAULT)}, stem, "studies")
    kept.with_suffix(".png").write_bytes(path.read_bytes())
    console.line(f"verdict: {last}")
    return Outcome(int(own.best() is None))


COMMAND = Command(
    "logical_gpus",
    __doc__,
    PackConfig,
    DEFAULT,
    {"draw": "Measure nothing: draw the kept profiles of this training."},
    _main,
)
main = COMMAND.main


if __name__ == "__main__":
    sys.exit(main())
