"""The ratios and the picture of a run."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.benchmarks.fused_gpu.cases import COMPILED_WAYS, NETWORKS, WAYS
from experiments.benchmarks.fused_throughput import WIDE, Case


def ratios(networks: Sequence[str], rates: Mapping[Case, float]) -> dict[str, float]:
    """Of the medians: the best array, and those of the widths that matter, over the best of every other way."""
    found: dict[str, float] = {}
    for network in networks:
        own = {case: rate for case, rate in rates.items() if case.network == network}
        arrays = {case: rate for case, rate in own.items() if case.width}
        alone = [rate for case, rate in own.items() if not case.width and case.at_once == 1]
        ones = [rate for case, rate in arrays.items() if case.width == 1]
        goals = (" (goal >= 30)", " (goal > 4.72)") if network == "mlp" else ("", "")
        below = [
            (f"best alone{goals[0]}", alone),
            ("best of one model, alone or as an array of one", [*alone, *ones] if ones else []),
            (
                f"best packed processes under MPS{goals[1]}",
                [rate for case, rate in own.items() if case.way.endswith("under MPS")],
            ),
            ("best packed processes time-sliced", [r for c, r in own.items() if c.way.endswith("time-sliced")]),
        ]
        if not arrays:
            continue
        best = max(arrays, key=lambda case: arrays[case])
        above = {f"best array ({best.width}, {best.way})": arrays[best]}
        for width in (WIDE, 128):
            if those := [rate for case, rate in arrays.items() if case.width == width]:
                above[f"array of {width}"] = max(those)
        for name, rate in above.items():
            for other, those in below:
                if those:
                    found[f"{network}: {name} / {other}"] = round(rate / max(those), 3)
    return found


def plot(path: Path, networks: Sequence[str], rates: Mapping[Case, float], device: str) -> None:
    """Samples/s against the width, a panel for each network, with lines for one alone and for packed processes."""
    try:
        import matplotlib
    except ImportError:
        print("no plot: matplotlib is not installed", file=sys.stderr)
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(networks), figsize=(6 * len(networks), 4.5), squeeze=False)
    for axes, network in zip(panels[0], networks, strict=True):
        own = {case: rate for case, rate in rates.items() if case.network == network}
        for way, marker in zip((*WAYS, *COMPILED_WAYS), "o^sD", strict=True):
            points = sorted((case.width, rate) for case, rate in own.items() if case.width and case.way == way)
            if points:
                axes.plot(*zip(*points, strict=True), marker=marker, label=f"array, {way}")
        for name, style, those in (
            ("one training alone, best way", "--", [r for c, r in own.items() if not c.width and c.at_once == 1]),
            ("packed processes, time-sliced", ":", [r for c, r in own.items() if c.way.endswith("time-sliced")]),
            ("packed processes under MPS", "-.", [r for c, r in own.items() if c.way.endswith("under MPS")]),
        ):
            if those:
                axes.axhline(max(those), linestyle=style, color="grey", label=name)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlabel("width: models that step as one program")
        axes.set_ylabel("training samples/s, all members")
        axes.set_title(f"{network}, batch size {NETWORKS[network][1]['batch_size']}, {device}")
        axes.grid(visible=True, which="both", alpha=0.3)
        if own:
            axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
    print(f"plot: {path}")
