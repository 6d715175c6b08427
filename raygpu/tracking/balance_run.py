"""Log a balance as one MLflow run: each device's speed by its batch, and the trainings' throughput, turn by turn."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from raygpu.config import BalanceConfig
from raygpu.planning.batch_balancing import BalanceResult
from raygpu.tracking import measurement_run
from raygpu.tracking.measurement_run import Measurement
from raygpu.tracking.values import MetricValue


def log(
    config: BalanceConfig, devices: Sequence[str], verdict: BalanceResult, files: Sequence[Path], description: str
) -> str:
    """Log a balance as one run and return the URL of its page in the MLflow UI.

    devices: names of the ranks' devices. files: artifacts. description: Markdown. Raises TrackingError.
    """
    now_ms = int(time.time() * 1000)
    points = [
        MetricValue(f"balance/rank/{rank}/samples_per_s", rate, batch, now_ms)
        for rank, curve in enumerate(verdict.curves)
        for batch, rate in sorted(curve.rates.items())
    ]
    splits = {"balanced": verdict.tried, "equal": verdict.equal}
    points += [
        MetricValue(f"balance/{name}/samples_per_s", rate, number, now_ms)
        for name, split in splits.items()
        if split is not None
        for number, rate in enumerate(split.rates, 1)
    ]
    results: dict[str, float | None] = {
        f"balance/rank/{rank}/share": float(share) for rank, share in enumerate(verdict.shares)
    }
    results["balance/speedup"] = verdict.speedup.middle if verdict.speedup is not None else None
    results["balance/predicted_samples_per_s"] = verdict.split.samples_per_s
    parameters = dict(config.hyperparameters) | {"verdict": "equal" if verdict.is_equal else "balanced"}
    what = Measurement("balance", ", ".join(dict.fromkeys(devices)), parameters)
    return measurement_run.log(config, what, points, results, files, description)
