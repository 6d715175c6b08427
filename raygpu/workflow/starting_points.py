"""The best sets of hyper-parameters of an earlier sweep, as starting points of a new one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from raygpu.config import SweepConfig
from raygpu.errors import BadInput
from raygpu.records import sets_csv, trials_csv
from raygpu.records.run_directory import RunDirectory
from raygpu.search.space import Space
from raygpu.search.starting_points import fitting, starting_points


def with_earlier_best(config: SweepConfig, space: Space) -> tuple[SweepConfig, list[str]]:
    """Return the configuration with the sets that `start_from` names among its starting points, and lines on them.

    They are kept in the new sweep's configuration, so that a resume does not need the earlier folder. Raises BadInput.
    """
    if config.start_from is None:
        return config, []
    folder = RunDirectory.existing(config.start_from, flag="start_from")
    earlier = folder.read_config()
    if earlier.population.interval is not None:
        raise BadInput(
            f"start_from: {config.start_from} is a population, whose scores are those of values that changed while it"
            " trained; leave it out, or name another sweep's folder"
        )
    ranked = _ranked(folder, maximize=earlier.maximize)
    names: list[str] = []
    points: list[dict[str, Any]] = []
    for name, values in ranked:
        point = fitting(space, values)
        if point is not None and point not in points and len(points) < config.start_best:
            points.append(point)
            names.append(name)
    if not points:
        why = "no trial has a finite score" if not ranked else f"no set of its {len(ranked)} trials fits this [space]"
        raise BadInput(f"start_from: {config.start_from}: {why}; leave it out, or name another sweep's folder")
    points = _with_place(points, config, space)
    names = names[: len(points)]
    sets = "the best set" if len(points) == 1 else f"the {len(points)} best sets"
    lines = [f"start: tried first: {sets} of {folder.name} by {earlier.metric} that fit [space]: {', '.join(names)}"]
    return config.model_copy(update={"start": (*config.start, *points)}), lines


def _with_place(points: Sequence[dict[str, Any]], config: SweepConfig, space: Space) -> list[dict[str, Any]]:
    """Return the first sets, as many as the search has trials for beside those of [[start]]. Raises BadInput if it has
    none left, or not as many as the user asked for."""
    own = starting_points(space, config.start, config.num_sets)
    if config.num_sets is None:
        return list(points)
    place = config.num_sets - len(own)
    kept = [
        point for number, point in enumerate(points) if sum(each not in own for each in points[: number + 1]) <= place
    ]
    if len(kept) < len(points) and config.start_best != SweepConfig.model_fields["start_best"].default:
        raise BadInput(
            f"start_best: read {config.start_best}; trials = {config.num_sets} has place for {len(kept)} of them beside"
            f" the {len(own)} of [[start]]"
        )
    if not kept:
        raise BadInput(
            f"start_from: {config.start_from}: trials = {config.num_sets} has no place for its sets beside the"
            f" {len(own)} of [[start]]"
        )
    return kept


def _ranked(folder: RunDirectory, *, maximize: bool) -> list[tuple[str, Mapping[str, Any]]]:
    """Return ids and hyper-parameters of a sweep's sets, the best first: by their means, if each was trained several
    times."""
    if sets := sets_csv.read(folder.sets_csv):
        return [(row.set_id, row.hyperparameters) for row in sets if row.score is not None]
    rows = trials_csv.ranked(trials_csv.read(folder.trials_csv), maximize=maximize)
    return [(row.trial_id, row.hyperparameters) for row in rows]
