"""Population based training in a sweep: what is refused before anything starts, and the schedule of the winner."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from raygpu.config import SweepConfig
from raygpu.config.population_section import OF_STEPS
from raygpu.config.source import Source
from raygpu.errors import BadInput
from raygpu.records.trial_records import Records
from raygpu.search.exploration import changing, in_common, populations, taken_over
from raygpu.search.lineage import LineageSegment, lineage, schedule
from raygpu.search.samplers import Sampler
from raygpu.search.space import Space, parse
from raygpu.search.trial_record import TrialRecord
from raygpu.search.trials import Trial
from raygpu.training.torch.experiment import overrides

KERAS = ("lr",)
"""Hyper-parameters that may change in a Keras trial: its steps are traced with the other numbers."""


def population_faults(config: SweepConfig, space: Space, trials: Sequence[Trial]) -> list[str]:
    """Return a line for each fault of a sweep's population that shows without the user's code."""
    if config.population.interval is None:
        return []
    try:
        names = taken_over(changing(config.population, space), space, "torch")
    except BadInput as error:
        return list(error.faults)
    return _alone(trials, names)


def _alone(trials: Sequence[Trial], names: Collection[str]) -> list[str]:
    """Return the fault of a population in which no trial could take over another one's parameters. names: of the
    hyper-parameters that are taken over."""
    if max(Counter(populations(trials, names).values()).values(), default=0) > 1:
        return []
    all_values = [in_common(trial, names) for trial in trials]
    every = sorted({name for values in all_values for name in values})
    others = [name for name in every if len({values.get(name) for values in all_values}) > 1]
    why = f"no two trials are alike in {', '.join(others)}, which cannot change" if others else "there is one trial"
    return [f"population: {why}: none could take over another's parameters"]


def require_population(
    config: SweepConfig, sampler: Sampler, source: Source, code: Any, read: Collection[str], *, is_new: bool
) -> list[str]:
    """Return lines on a sweep's population for a person. Raises BadInput where the user's code does not allow it.

    read: names of the hyper-parameters that the code reads. is_new: whether the sweep begins; the trials of one that
    goes on compare with each other as they did before.
    """
    section = config.population
    if section.interval is None:
        return []
    if source.kind not in ("torch", "keras"):
        raise BadInput(f"population: a {source.kind} keeps its parameters to itself; a TorchExperiment is wanted")
    if config.gpu.mode == "split":
        raise BadInput("gpu.mode: read 'split' beside a population; Keras trials of one are trained alone: process")
    space = parse(config.space, config.search.algorithm)
    if source.kind == "torch" and overrides(code, "optimizer"):
        raise BadInput(f"population: {source.name} has an optimizer() of its own, whose numbers raygpu cannot change")
    if source.kind == "torch" and (drawn := _drawn(code, space.draw(config.seed, 0))) is not None:
        raise BadInput(
            f"population: {drawn} is drawn by a trial's seed, and no checkpoint holds it: a member would take over"
            " parameters without it; make it a persistent buffer"
        )
    parameters = changing(section, space)
    names = [parameter.name for parameter in parameters]
    if source.kind == "keras" and (others := [name for name in names if name not in KERAS]):
        raise BadInput(
            f"population.change: {', '.join(others)} cannot change in a Keras trial, whose steps are traced; give"
            ' change = ["lr"]'
        )
    if wrong := [name for name in names if name in read]:
        others = [name for name in names if name not in read]
        raise BadInput(
            f"population.change: {wrong[0]} is read by model(), a forward, augment() or training_step(), so it cannot"
            f" change while a trial trains{f'; give change = {json.dumps(others)}' if others else ''}"
        )
    taken, trials = taken_over(parameters, space, source.kind, read), getattr(sampler, "trials", ())
    if not is_new or not trials:
        return _lines(config, names, {})
    if faults := _alone(trials, taken):
        raise BadInput(faults)
    return _lines(config, names, populations(trials, taken))


def _drawn(code: Any, hp: Mapping[str, Any]) -> str | None:
    from raygpu.training.torch.checkpoint_check import drawn_attribute

    return drawn_attribute(code, hp)


def _lines(config: SweepConfig, names: Iterable[str], groups: Mapping[str, str]) -> list[str]:
    """Return lines on a population. names: of what may change. groups: population of each trial, where it is known."""
    section, sizes = config.population, Counter(groups.values())
    assert config.epochs is not None
    epochs = section.epochs(config.epochs)
    line = (
        f"population: after epochs {', '.join(map(str, epochs[:3]))}{' ...' if len(epochs) > 3 else ''} the worst"
        f" {section.quantile:.0%} take over the best ones' parameters; {', '.join(names)} may change"
    )
    if len(sizes) <= 1:
        return [line]
    alone = sum(size == 1 for size in sizes.values())
    more = f"; {alone} of them of one trial, which never changes" if alone else ""
    return [line, f"population: {len(sizes)} of them, since trials differ in values that cannot change{more}"]


def winners_lineage(records: Records, best: TrialRecord) -> list[LineageSegment]:
    """Return whose parameters the best trial has at the epoch of its score, and how they were trained."""
    begun = {
        name: {key: value for key, value in record.trial.hyperparameters.items() if key in OF_STEPS}
        for name, record in records.by_id.items()
    }
    changes = {name: record.changes for name, record in records.by_id.items()}
    return lineage(best.trial.trial_id, best.score_epoch or best.epochs, changes, begun)


def winners_values(segments: Sequence[LineageSegment], records: Records, best: TrialRecord) -> dict[str, Any]:
    """Return the values of `best.toml` that train the best trial's schedule again, in place of the trial's own.

    The seed is that of the trial whose parameters were the first ones.
    """
    values = {
        "seed": records.by_id[segments[0].trial_id].trial.seed,
        "hyperparameters": {**best.trial.hyperparameters, **segments[0].values},
        "source": {"lineage": [f"{each.trial_id} in epochs {each.first} to {each.last}" for each in segments]},
    }
    changes = schedule(segments)
    return {**values, "changes": changes} if changes else values
