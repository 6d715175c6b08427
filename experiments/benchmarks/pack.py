"""What `python -m raygpu.pack` measures here, as a dated record: points, verdict, plot, and how well it predicts.

    python -m experiments.benchmarks.pack [--configurations conf/pack/digits.toml,conf/pack/cifar_resnet18.toml]
                                          [--synthetic] [--rounds 5] [--most 34] [--window-s 2] [--ways process,fused]
                                          [--numbers 1,2,3,4,5,6,8,10,13]

Each ratio is of medians of windows by turns: a way's best throughput over one training alone, and, where CUDA MPS is
to be had, that of packed processes under MPS over that of the same number taking turns on the GPU. With --numbers,
what a profile of 1, 2, 3, 5, 8, 13 ... at once predicts for the other numbers, throughput and memory, is compared with
what was measured there.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from contextlib import suppress
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from statistics import median
from typing import Any, Literal

from experiments.benchmarks import record
from raygpu import pack
from raygpu.config import PackConfig, load
from raygpu.planning.profile_coverage import fibonacci
from raygpu.planning.profiles import Profile

SAME = ("rounds", "most", "window_s", "ways", "numbers")
"""Flags that are raygpu.pack's own."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--configurations", default="conf/pack/digits.toml")
    parser.add_argument(
        "--synthetic", action="store_true", help="data made up, where a configuration would download it"
    )
    parser.add_argument("--rounds", default=None)
    parser.add_argument("--most", default=None)
    parser.add_argument("--window-s", default=None)
    parser.add_argument("--ways", default=None)
    parser.add_argument("--numbers", default=None)
    arguments = parser.parse_args()
    for path in map(Path, arguments.configurations.split(",")):
        with tempfile.TemporaryDirectory(prefix="raygpu-bench-") as folder:
            flags = {"runs_dir": folder, "profiles": folder, "tracking.enabled": "false"}
            if arguments.synthetic:
                flags["data.synthetic"] = "true"
            flags |= {name: value for name in SAME if (value := getattr(arguments, name)) is not None}
            result = pack.run(load(path, flags, PackConfig), stem=path.stem)
            written = record.write("pack", found(result.profile, result.verdict), vars(arguments), path.stem)
            with suppress(FileNotFoundError):  # nothing could be measured
                shutil.copy(result.folder / "curve.png", written.with_suffix(".png"))


def found(profile: Profile, verdict: list[str]) -> dict[str, Any]:
    """The content of a record."""
    ratios: dict[str, Any] = {}
    for way in profile.ways:
        best = profile.best([way])
        if best is not None:
            ratios[f"{best.label}, {best.n} at once / one alone"] = round(best.gain or 0.0, 2)
    rates = {(p.way, p.n): p.samples_per_s for p in profile.points if p.samples_per_s}
    for (way, n), rate in rates.items():
        if way == "mps" and ("process", n) in rates:
            ratios[f"{n} under MPS / {n} taking turns (goal >= 1.2 at the best)"] = round(rate / rates["process", n], 2)
    untried = predictions(profile)
    for name in ("throughput", "host memory", "device memory"):
        for label, rows in untried.items():
            errors = [abs(row[name] - 1) for row in rows if name in row]
            if errors:
                key = f"{label}, {name}: median of |predicted / measured - 1| at an untried number"
                ratios[key] = round(median(errors), 4)
    return {"verdict": verdict, "predicted / measured": untried, "profile": profile.as_dict(), "ratios": ratios}


def predictions(profile: Profile) -> dict[str, list[dict[str, float]]]:
    """What the numbers that pack tries by itself predict for the others, over what was measured there; by way."""
    tried = set(takewhile(lambda n: n <= max(p.n for p in profile.points), fibonacci()))
    known = replace(profile, points=tuple(p for p in profile.points if p.n in tried))
    found: dict[str, list[dict[str, float]]] = {}
    for way in known.ways:
        for point in profile.of(way):
            if point.n in tried or point.samples_per_s is None:
                continue
            row = {"n": point.n, "throughput": (known.rate(way, point.n) or 0.0) / point.samples_per_s}
            kinds: tuple[Literal["host_gib", "device_gib"], ...] = ("host_gib", "device_gib")
            for kind, name in zip(kinds, ("host memory", "device memory"), strict=True):
                line, taken = known.memory(way, kind), getattr(point, kind)
                if line is not None and taken:
                    row[name] = line.at(point.n) / (point.n * taken)
            found.setdefault(way, []).append({name: round(value, 4) for name, value in row.items()})
    return found


if __name__ == "__main__":
    main()
