"""Log a measured profile, balance or comparison of placements as one MLflow run: parameters, metrics and files."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from raygpu.config import BalanceConfig, PackConfig, PlaceConfig, ProblemConfig
from raygpu.planning.batch_balancing import BalanceVerdict
from raygpu.planning.model_placements import ComparedPlacements, MeasuredPlacement
from raygpu.planning.profiles import Profile
from raygpu.tracking import client
from raygpu.tracking.runs import RunTree
from raygpu.tracking.values import MetricValue, flat

READINGS = (
    "samples_per_s", "gain", "gain_low", "gain_high", "evaluation_s", "start_s", "host_gib", "device_gib", "used_gib",
    "util_pct", "sm_util_pct", "sm_occupancy_pct", "dram_bandwidth_pct", "power_w", "temperature_c",
)  # fmt: skip
Point = tuple[str, float, int]
"""Name, value and step of a metric."""


def log_profile(
    config: PackConfig, profile: Profile, verdict: Mapping[str, Any], files: Sequence[Path], description: str
) -> str:
    """Log a profile as one run, each way of sharing as a curve with the concurrency as step.

    Returns the URL of the run's page in the MLflow UI. verdict: metrics of the whole profile; None values are left out.
    files: artifacts. description: Markdown. Raises TrackingError.
    """
    sound = [(p, f"pack/{p.label.replace(', ', '_')}") for p in profile.points if p.doubt is None]
    points = [
        (f"{prefix}/{reading}", value, p.n)
        for p, prefix in sound
        for reading in READINGS
        if (value := getattr(p, reading)) is not None
    ]
    points += [
        (f"{prefix}/time_per_training_s", seconds, p.n)
        for p, prefix in sound
        if (seconds := profile.time_per_training_s(p, config.epochs or 1)) is not None
    ]
    device, parameters = profile.subject.device, profile.subject.hyperparameters
    return _log(config, device, parameters, points, verdict, files, description, failed=profile.best() is None)


def log_balance(
    config: BalanceConfig, devices: Sequence[str], verdict: BalanceVerdict, files: Sequence[Path], description: str
) -> str:
    """Log a balance as one run: each device's speed by its batch, and the trainings' throughput, turn by turn.

    Returns the URL of the run's page in the MLflow UI. devices: names of the ranks' devices. files: artifacts.
    description: Markdown. Raises TrackingError.
    """
    points = [
        (f"balance/rank/{rank}/samples_per_s", rate, batch)
        for rank, curve in enumerate(verdict.curves)
        for batch, rate in sorted(curve.rates.items())
    ]
    points += [
        (f"balance/{name}/samples_per_s", rate, number)
        for name, split in (("balanced", verdict.tried), ("equal", verdict.equal))
        if split is not None
        for number, rate in enumerate(split.rates, 1)
    ]
    results: dict[str, float | None] = {
        f"balance/rank/{rank}/share": float(share) for rank, share in enumerate(verdict.shares)
    }
    results["balance/speedup"] = verdict.speedup.middle if verdict.speedup is not None else None
    results["balance/predicted_samples_per_s"] = verdict.split.samples_per_s
    parameters = {**config.hyperparameters, "verdict": "equal" if verdict.is_equal else "balanced"}
    return _log(config, ", ".join(dict.fromkeys(devices)), parameters, points, results, files, description)


def log_placements(
    config: PlaceConfig,
    device: str,
    measured: Sequence[MeasuredPlacement],
    found: ComparedPlacements,
    files: Sequence[Path],
    description: str,
) -> str:
    """Log placements as one run: the seconds of each epoch, memory, and the cost of copies.

    Returns the URL of the run's page in the MLflow UI. device: name of the devices. files: artifacts. description:
    Markdown. Raises TrackingError.
    """
    points = [
        (f"place/{each.name}/epoch_s", turn.epoch_s, number)
        for each in measured
        for number, turn in enumerate(each.turns, 1)
    ]
    results: dict[str, float | None] = {}
    for each in measured:
        prefix = f"place/{each.name}"
        results |= {f"{prefix}/device_{index}_gib": gib for index, gib in enumerate(each.memory_gib)}
        if (profile := each.profile) is not None:
            results |= {f"{prefix}/copy_share": profile.copy_share, f"{prefix}/copies_per_step": profile.num_copies}
        if each.name in found.speedups:
            results[f"{prefix}/speedup"] = found.speedups[each.name].middle
    best = {"best": found.best.name} if found.best is not None else {}
    parameters = {**config.hyperparameters, **best}
    return _log(config, device, parameters, points, results, files, description, failed=found.best is None)


def _log(
    config: ProblemConfig,
    device: str,
    parameters: Mapping[str, Any],
    points: Sequence[Point],
    results: Mapping[str, float | None],
    files: Sequence[Path],
    description: str,
    *,
    failed: bool = False,
) -> str:
    """Log a measurement and return the URL of its page in the MLflow UI.

    parameters: those beside the configuration's. results: metrics of the whole measurement. failed: whether it has no
    result.
    """
    tree = RunTree.open(config.tracking.uri, config.tracking.experiment)
    if config.data.synthetic:
        tree.tags["raygpu.data"] = "synthetic"
    run_id = tree.start_run(
        str(config.name), {"raygpu.device": device}, flat(config) | dict(parameters), kind=config.COMMAND
    )
    now_ms = int(time.time() * 1000)
    tree.log(run_id, [MetricValue(name, value, step, now_ms) for name, value, step in points])
    reports = [path.name for path in files if path.suffix == ".html"]
    links = [f"[The report]({tree.page(f'/{run_id}/artifacts/{name}')})" for name in reports]
    tree.describe(run_id, "\n\n".join([description, *links]))
    for path in files:
        tree.log_artifact(run_id, path)
    ended = {name: value for name, value in results.items() if value is not None}
    tree.end_run(run_id, "failed" if failed else "finished", ended)
    with suppress(OSError):
        client.sync(tree.uri)
    return tree.ui_url
