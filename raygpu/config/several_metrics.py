"""Several metrics of a sweep: `metrics` and `directions`, of which the first is `metric` and `direction`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def with_first_metric(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration's values with lists in place of texts with commas, and with the first metric as
    `metric`."""
    configuration = dict(values)
    for several, first in (("metrics", "metric"), ("directions", "direction")):
        if isinstance(configuration.get(several), str):
            configuration[several] = [word.strip() for word in configuration[several].split(",") if word.strip()]
        entries = configuration.get(several)
        if isinstance(entries, list | tuple) and entries:
            configuration.setdefault(first, entries[0])
    return configuration


def require_metrics(metric: str, direction: str | None, metrics: Sequence[str], directions: Sequence[str]) -> None:
    """Raise ValueError if several metrics contradict themselves or the first one."""
    if not metrics:
        if directions:
            raise ValueError("directions: is for several metrics; of a single one write direction")
        return
    if len(metrics) < 2 or len(set(metrics)) < len(metrics):
        raise ValueError(f"metrics: read {list(metrics)}; two or more different ones are wanted, or metric for one")
    if metric != metrics[0]:
        raise ValueError(f"metric: read {metric!r}; the first of metrics is {metrics[0]!r}: leave metric out")
    if directions and len(directions) != len(metrics):
        raise ValueError(f"directions: read {len(directions)} for {len(metrics)} metrics; one for each is wanted")
    if directions and direction not in (None, directions[0]):
        raise ValueError(f"direction: read {direction!r}; the first of directions is {directions[0]!r}")
