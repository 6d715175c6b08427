"""The trials of a sweep whose batches `micro_batch_size` cuts: lines on what that changes, before anything starts."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from raygpu.config.source import Source
from raygpu.errors import BadInput
from raygpu.experiment import Experiment, Splits
from raygpu.search.space import Space
from raygpu.training.distributed.micro_batch_check import lines_of_parts, part_sizes
from raygpu.training.hyperparameters import OptimizerSettings
from raygpu.workflow.validation import Prepared

NUM_TRIED = 3
"""Number of trials of which the loss is looked at, until the user's code works with the values of one."""
MOST_LOOKS = 8
"""Largest number of combinations of words and switches, as a choice of the loss, whose losses are looked at."""
Draw = dict[str, Any]


def cut_batch_lines(prepared: Prepared, source: Source, code: Experiment, splits: Splits) -> list[str]:
    """Return lines on what changes where `micro_batch_size` cuts batches. Raises BadInput for a loss that cannot be
    cut."""
    if source.kind != "torch" or all(each.name != "micro_batch_size" for each in prepared.space.parameters):
        return []
    lines: dict[str, None] = {}
    for draws in _cut(_draws(prepared), splits)[:MOST_LOOKS]:
        lines |= dict.fromkeys(_lines(source, code, draws[:NUM_TRIED], splits))
    return [f"batches in parts of micro_batch_size: {line}" for line in lines]


def _lines(source: Source, code: Experiment, draws: Sequence[Draw], splits: Splits) -> list[str]:
    """Return the lines of the first draw with which the user's code works. Raises BadInput."""
    failed: list[BadInput] = []
    for values in draws:
        try:
            return lines_of_parts(source, code, values, splits)
        except BadInput as error:
            if error.__cause__ is None:
                raise
            failed.append(error)  # of the user's code
    raise failed[0]


def _draws(prepared: Prepared) -> list[Draw]:
    """Return the hyper-parameters of the sweep's trials if these are drawn already; otherwise draws of the space, of
    its largest batches and smallest parts too."""
    space, config = prepared.space, prepared.config
    trials = getattr(prepared.sampler, "trials", None)
    if trials is not None:
        return [dict(trial.hyperparameters) for trial in trials]
    extremes = {name: choose(ends) for name, choose in (("batch_size", max), ("micro_batch_size", min))
                if (ends := ends_of(space, name))}  # fmt: skip
    each = range(config.trials or NUM_TRIED)
    return [space.draw(config.seed, index, preset) for preset in (extremes, {}) for index in each]


def _cut(draws: Sequence[Draw], splits: Splits) -> list[list[Draw]]:
    """Return the draws whose batches are cut, by their words and switches; of each size of batch and part the first
    one, those of the smallest parts first, and of these the largest batch."""
    settings = {each.name for each in fields(OptimizerSettings)}
    cut_draws: dict[Any, dict[tuple[int, int], Draw]] = {}
    for values in draws:
        with contextlib.suppress(ValueError):  # of a trial whose settings go ill together, which will fail
            sizes = part_sizes(values, splits)
            if len(sizes) > 1:
                words = sorted((k, v) for k, v in values.items() if isinstance(v, str | bool) and k not in settings)
                cut_draws.setdefault(str(words), {}).setdefault((min(sizes), -sum(sizes)), values)
    return [[sizes[size] for size in sorted(sizes)] for sizes in cut_draws.values()]


def ends_of(space: Space, name: str) -> list[Any]:
    """Return the listed values of a hyper-parameter, or its smallest and largest one; none without bounds."""
    parameters = [parameter for parameter in space.parameters if parameter.name == name]
    ends = [end for parameter in parameters for end in parameter.ends()]
    if parameters and parameters[0].kind in ("randint", "lograndint"):  # whose upper end is left out
        ends[-1] -= 1
    return ends
