"""How well the fitted curves predict a number of trainings at once that was not tried.

    python -m experiments.benchmarks.prediction [--configurations conf/pack/digits.toml,...] [--most 89]

Measures a profile as `python -m raygpu.pack` does, then leaves out each inner point in turn, fits the curves to the
others, and compares what they predict there, throughput and memory, with what was measured.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from experiments.benchmarks import record
from raygpu import pack
from raygpu.config import PackConfig, load
from raygpu.profiles import Profile


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--configurations", default="conf/pack/digits.toml")
    parser.add_argument("--most", default="89")
    parser.add_argument("--rounds", default="5")
    arguments = parser.parse_args()
    results: dict[str, Any] = {}
    for path in map(Path, arguments.configurations.split(",")):
        with tempfile.TemporaryDirectory(prefix="raygpu-bench-") as folder:
            flags = {"most": arguments.most, "rounds": arguments.rounds, "ways": "process,fused"}
            places = {"runs_dir": folder, "profiles": folder, "tracking.enabled": "false"}
            results[path.stem] = compared(pack.run(load(path, flags | places, PackConfig)).profile)
    ratios = {name: found["median of |predicted / measured - 1|"] for name, found in results.items()}
    record.write("prediction", {"profiles": results, "ratios": ratios}, vars(arguments))


def compared(profile: Profile) -> dict[str, Any]:
    """Predicted over measured at each inner point, by way."""
    found: dict[str, Any] = {"median of |predicted / measured - 1|": {}}
    for way in ("process", "fused"):
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
                found["median of |predicted / measured - 1|"][f"{way}, {what}"] = round(median(errors), 4)
    found["points"] = [(p.label, p.n, p.samples_per_s, p.host_gib) for p in profile.points]
    return found


if __name__ == "__main__":
    main()
