"""Log a measured profile as one MLflow run: one curve for each way of sharing, with the concurrency as step."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from raygpu.config import PackConfig
from raygpu.planning.profiles import Profile
from raygpu.tracking import measurement_run
from raygpu.tracking.measurement_run import Measurement
from raygpu.tracking.values import MetricValue

READINGS = (
    "samples_per_s", "gain", "gain_low", "gain_high", "evaluation_s", "start_s", "host_gib", "device_gib", "used_gib",
    "util_pct", "sm_util_pct", "sm_occupancy_pct", "dram_bandwidth_pct", "power_w", "temperature_c",
)  # fmt: skip


def log(
    config: PackConfig, profile: Profile, verdict: Mapping[str, Any], files: Sequence[Path], description: str
) -> str:
    """Log a profile as one run and return the URL of its page in the MLflow UI.

    verdict: metrics of the whole profile; None values are left out. files: artifacts. description: Markdown.
    Raises TrackingError.
    """
    now_ms = int(time.time() * 1000)
    sound = [p for p in profile.points if p.doubt is None]
    points = [
        MetricValue(f"pack/{p.label.replace(', ', '_')}/{reading}", value, p.n, now_ms)
        for p in sound
        for reading in READINGS
        if (value := getattr(p, reading)) is not None
    ]
    points += [
        MetricValue(f"pack/{p.label.replace(', ', '_')}/time_per_training_s", seconds, p.n, now_ms)
        for p in sound
        if (seconds := profile.time_per_training_s(p, config.epochs or 1)) is not None
    ]
    subject = profile.subject
    what = Measurement("pack", subject.device, dict(subject.hyperparameters), failed=profile.best() is None)
    return measurement_run.log(config, what, points, verdict, files, description)
