"""What `python -m raygpu.pack` measures here, as a dated record: points, verdict, plot, and how well it predicts.

    python -m experiments.benchmarks.pack [--configurations conf/pack/digits.toml,conf/pack/cifar_resnet18.toml]
                                          [--synthetic] [--rounds 5] [--most 34] [--window-s 2] [--ways process,fused]

Each ratio is of medians of windows by turns: a way's best throughput over one training alone, and, where CUDA MPS is
to be had, that of packed processes under MPS over that of the same number taking turns on the GPU. Each inner number
at once is left out in turn, and what the others predict there, throughput and memory, compared with what was measured.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from experiments.benchmarks import record
from raygpu import pack
from raygpu.config import PackConfig, load
from raygpu.profiles import Profile

SAME = ("rounds", "most", "window_s", "ways")
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
    arguments = parser.parse_args()
    for path in map(Path, arguments.configurations.split(",")):
        with tempfile.TemporaryDirectory(prefix="raygpu-bench-") as folder:
            flags = {"runs_dir": folder, "profiles": folder, "tracking.enabled": "false"}
            if arguments.synthetic:
                flags["data.synthetic"] = "true"
            flags |= {name: value for name in SAME if (value := getattr(arguments, name)) is not None}
            result = pack.run(load(path, flags, PackConfig), stem=path.stem)
            written = record.write("pack", found(result.profile, result.verdict), vars(arguments), path.stem)
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
    ratios["median of |predicted / measured - 1| at a number left out"] = untried.pop("medians")
    return {"verdict": verdict, "predicted / measured": untried, "profile": profile.as_dict(), "ratios": ratios}


def predictions(profile: Profile) -> dict[str, Any]:
    """Each inner number left out in turn: what the others predict there, over what was measured; by way."""
    found: dict[str, Any] = {"medians": {}}
    for way in profile.ways:
        rows = []
        for left_out in profile.of(way)[1:-1]:
            if left_out.samples_per_s is None:
                continue
            others = replace(profile, points=tuple(p for p in profile.points if p is not left_out))
            rate, memory = others.rate(way, left_out.n), others.memory(way, "host_gib")
            row = {"n": left_out.n, "throughput": round((rate or 0.0) / left_out.samples_per_s, 3)}
            if memory is not None and left_out.host_gib:
                row["host memory"] = round(memory.at(left_out.n) / (left_out.n * left_out.host_gib), 4)
            rows.append(row)
        found[way] = rows
        for what in ("throughput", "host memory"):
            errors = [abs(row[what] - 1) for row in rows if what in row]
            if errors:
                found["medians"][f"{way}, {what}"] = round(median(errors), 4)
    return found


if __name__ == "__main__":
    main()
