"""Log compared placements as one MLflow run: the seconds of each epoch, memory, and what copies cost."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from raygpu.config import PlaceConfig
from raygpu.planning.model_placements import Comparison, MeasuredPlacement
from raygpu.tracking import measurement_run
from raygpu.tracking.measurement_run import Measurement
from raygpu.tracking.values import MetricValue


def log(
    config: PlaceConfig,
    device: str,
    measured: Sequence[MeasuredPlacement],
    found: Comparison,
    files: Sequence[Path],
    description: str,
) -> str:
    """Log placements as one run and return the URL of its page in the MLflow UI.

    device: name of the devices. files: artifacts. description: Markdown. Raises TrackingError.
    """
    now_ms = int(time.time() * 1000)
    points = [
        MetricValue(f"place/{each.name}/epoch_s", turn.epoch_s, number, now_ms)
        for each in measured
        for number, turn in enumerate(each.turns, 1)
    ]
    results: dict[str, float | None] = {}
    for each in measured:
        own = f"place/{each.name}"
        results |= {f"{own}/device_{index}_gib": gib for index, gib in enumerate(each.memory_gib)}
        if (profile := each.profile) is not None:
            results |= {f"{own}/copy_share": profile.copy_share, f"{own}/copies_per_step": profile.num_copies}
        if each.name in found.speedups:
            results[f"{own}/speedup"] = found.speedups[each.name].middle
    best = {"best": found.best.name} if found.best is not None else {}
    what = Measurement("place", device, {**config.hyperparameters, **best}, failed=found.best is None)
    return measurement_run.log(config, what, points, results, files, description)
