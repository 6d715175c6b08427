"""Log a measurement as one MLflow run: its parameters, its metrics, and its files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raygpu.config import ProblemConfig
from raygpu.search.trial_record import Status
from raygpu.tracking import client
from raygpu.tracking.runs import RunTree
from raygpu.tracking.session import flat
from raygpu.tracking.values import MetricValue


@dataclass(frozen=True, slots=True)
class Measurement:
    """The subject of a measurement, and whether there is a result."""

    kind: str
    """The command's name."""
    device: str
    """Name of the device."""
    parameters: Mapping[str, Any]
    """Parameters beside those of the configuration."""
    failed: bool = False
    """Whether it has no result."""


def log(
    config: ProblemConfig,
    what: Measurement,
    points: Iterable[MetricValue],
    results: Mapping[str, float | None],
    files: Sequence[Path],
    description: str,
) -> str:
    """Log a measurement and return the URL of its page in the MLflow UI.

    points: metrics by step. results: metrics of the whole measurement; None values are left out. files: artifacts.
    description: Markdown. Raises TrackingError.
    """
    tree = RunTree.open(config.tracking.uri, config.tracking.experiment)
    if config.data.synthetic:
        tree.tags["raygpu.data"] = "synthetic"
    parameters = flat(config) | dict(what.parameters)
    run_id = tree.start_run(str(config.name), {"raygpu.device": what.device}, parameters, kind=what.kind)
    tree.log(run_id, list(points))
    reports = [path.name for path in files if path.suffix == ".html"]
    links = [f"[The report]({tree.page(f'/{run_id}/artifacts/{name}')})" for name in reports]
    tree.describe(run_id, "\n\n".join([description, *links]))
    for path in files:
        tree.log_artifact(run_id, path)
    ended: Status = "failed" if what.failed else "finished"
    tree.end_run(run_id, ended, {name: value for name, value in results.items() if value is not None})
    with suppress(OSError):
        client.sync(tree.uri)
    return tree.ui_url
