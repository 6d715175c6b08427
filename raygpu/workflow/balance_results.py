"""The results of a balance: its summary, and the configuration of a training with its shares."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from raygpu.config import BalanceConfig, TrainConfig
from raygpu.errors import redacted
from raygpu.planning.batch_balancing import BalanceVerdict, relative
from raygpu.planning.confidence import Interval
from raygpu.records.device import Device
from raygpu.records.run_files import rounded


def summary(
    name: str | None,
    configured: int,
    devices: Sequence[Device],
    verdict: BalanceVerdict,
    readings: Mapping[int, Mapping[str, float]],
) -> dict[str, Any]:
    """Return the content of `summary.json`.

    configured: the configuration's global batch. devices: of the ranks. readings: the last ones of NVML, by device.
    """
    own, equal, speedup = verdict.tried, verdict.equal, verdict.speedup
    ranks = zip(devices, verdict.curves, relative(verdict.curves), own.shares, verdict.shares, own.by_rank, strict=True)
    return {
        "name": name,
        "ranks": [
            {
                "device": device.index,
                "name": device.name,
                "best_batch": curve.best,
                "rates": {str(batch): rounded(rate) for batch, rate in sorted(curve.rates.items())},
                "rounds": {str(batch): [rounded(rate) for rate in rates] for batch, rates in curve.rounds.items()},
                "relative_speed": None if verdict.asked else _ends(speed),
                "ended": curve.ended,
                "tried_share": tried,
                "share": share,
                "samples_per_s": rounded(rate),
                "readings": dict(readings.get(device.index, {})),
            }
            for device, curve, speed, tried, share, rate in ranks
        ],
        "configured_global_batch": configured,
        "global_batch": sum(verdict.shares),
        "equal_speeds": verdict.groups,
        "verdict": "equal" if verdict.is_equal else "balanced",
        "predicted_samples_per_s": rounded(verdict.split.samples_per_s),
        "balanced_samples_per_s": rounded(own.samples_per_s),
        "equal_samples_per_s": rounded(equal.samples_per_s) if equal is not None else None,
        "balanced_over_equal": _ends(speedup) if speedup is not None else None,
        "turns": {
            "balanced": [rounded(rate) for rate in own.rates],
            "equal": [rounded(rate) for rate in equal.rates] if equal is not None else [],
        },
    }


def _ends(value: Interval) -> list[float | None]:
    """Return an interval's middle, lower and upper end as JSON can hold them: None for infinity."""
    return [round(end, 4) if math.isfinite(end) else None for end in (value.middle, value.low, value.high)]


def write_train(config: BalanceConfig, verdict: BalanceVerdict, path: Path) -> None:
    """Write the configuration with the verdict's batch and shares as a file for raygpu.train."""
    values = config.model_dump(exclude_none=True, exclude_defaults=True, exclude={"name"})
    balance_fields = set(BalanceConfig.model_fields) - set(TrainConfig.model_fields)
    values = {name: value for name, value in values.items() if name not in balance_fields}
    if "uri" in (tracking := values.get("tracking", {})):
        tracking["uri"] = redacted(tracking["uri"])
    ratios = "equal" if verdict.is_equal else ",".join(map(str, verdict.shares))
    path.write_text(tomli_w.dumps(values | {"ratios": ratios, "global_batch": sum(verdict.shares)}))
