"""Score trained models on the test data: in a worker of its own, on a share of a GPU, once the training has ended."""

from __future__ import annotations

import os
import tempfile
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import ray

from raygpu.config.sections import Precision
from raygpu.config.source import Source
from raygpu.engines.cluster.cluster import PlacementRequest
from raygpu.errors import RaygpuError
from raygpu.experiment import Splits
from raygpu.records.scratch import fetched
from raygpu.search.trials import Trial
from raygpu.storage import Storage
from raygpu.training.base import Settings, thread_environment
from raygpu.training.model_scores import model_scores
from raygpu.training.out_of_memory import is_out_of_memory


@dataclass(frozen=True, slots=True)
class ScoringWork:
    """Settings of a worker that scores models."""

    source: Source
    precision: Precision
    threads: int
    cpus: float
    gpus: float
    needed: PlacementRequest = field(default_factory=PlacementRequest)
    """Resources and labels that place the worker on a type of device."""
    limit: Callable[[], None] | None = None
    """Limits the worker's memory to its share of the device; None for no limit."""


class ScoringFailed(RaygpuError):
    """A model could not be scored; `out_of_memory` tells whether it needs more memory."""

    def __init__(self, line: str, *, out_of_memory: bool) -> None:
        super().__init__(line)
        self.out_of_memory = out_of_memory


def scores_on_test(
    work: ScoringWork, tested: Splits, models: Mapping[str, tuple[Trial, str]], *, say: Callable[[str], None]
) -> dict[str, dict[str, float]]:
    """Return the metrics of each model on the test data, by trial id; waits for a share of a GPU.

    tested: the test data in place of the validation data. models: trial and URI of its checkpoint, by trial id. say:
    called with lines on the evaluations. Raises ScoringFailed.
    """
    # The process ends with its task, and frees the GPU's memory.
    task = ray.remote(max_calls=1)(_scored).options(
        num_cpus=work.cpus,
        num_gpus=work.gpus,
        resources=dict(work.needed.resources) or None,
        max_retries=1,
        **({} if work.needed.labels is None else {"label_selector": dict(work.needed.labels)}),
    )
    try:
        scores, lines, fault, out_of_memory = ray.get(task.remote(work, tested, dict(models)))
    except ray.exceptions.RayError as error:
        raise ScoringFailed(str(error).strip().rpartition("\n")[2], out_of_memory=False) from error
    if fault is not None:
        raise ScoringFailed(fault.strip().rpartition("\n")[2], out_of_memory=out_of_memory)
    for line in lines:
        say(f"test data: {line}")
    metrics: dict[str, dict[str, float]] = scores
    return metrics


def _scored(
    work: ScoringWork, tested: Splits, models: Mapping[str, tuple[Trial, str]]
) -> tuple[dict[str, dict[str, float]], list[str], str | None, bool]:
    """Score models in this worker; return metrics by trial id, lines on their evaluations, and the traceback of a fault
    with its kind."""
    os.environ.update(thread_environment(work.threads))
    scores: dict[str, dict[str, float]] = {}
    lines: list[str] = []
    try:
        os.chdir(work.source.folder)
        code = work.source.resolve()
        if work.limit is not None:
            work.limit()
        settings = Settings(1, work.threads, work.precision, Path(tempfile.gettempdir()))
        for name, (trial, uri) in models.items():
            with fetched(Storage(uri)) as checkpoint:
                scores[name] = model_scores(work.source, code, tested, trial, checkpoint, settings, lines.append)
    except Exception as error:  # noqa: BLE001 - the user's code: whatever it raises is the message
        return {}, [], traceback.format_exc(), is_out_of_memory(error)
    return scores, list(dict.fromkeys(lines)), None, False
