"""The schedule of a planned sweep."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

from raygpu.config import SweepConfig
from raygpu.config.sections import Way
from raygpu.planning.gpu_shares import ArrayPlan
from raygpu.planning.profiles import Profile
from raygpu.planning.schedule import ARRAY_S, FIXED, TRIAL_S, Schedule
from raygpu.planning.size_model import ModelSize
from raygpu.planning.sweep_plan import Decision
from raygpu.search.generations import Generations
from raygpu.search.repeats import first_round
from raygpu.search.signature import ABSENT, Group, array_members
from raygpu.search.stopping import expected_stops, expected_survival
from raygpu.search.trials import BATCH_SIZE


def schedule_of(decision: Decision, config: SweepConfig, num_trials: int) -> Schedule:
    """Return the schedule of a planned sweep."""
    plan, groups = decision.plan, decision.groups
    generations = Generations.of(config, in_arrays=isinstance(plan, ArrayPlan))
    learns, in_rounds = config.search.learns, first_round(config) < config.per_set
    arrays, members = (plan.arrays, plan.members) if isinstance(plan, ArrayPlan) else (None, None)
    slots = _slots(decision)
    profile = decision.estimates.reference
    step = profile.step() if profile is not None else None
    kinds = {trial.trial_id: number for number, group in enumerate(groups) for trial in group.trials}
    is_planned = not learns and not in_rounds
    planned = array_members(groups, arrays.slots, members) if arrays is not None and is_planned else []
    packed = arrays is None and profile is not None
    return Schedule(
        epochs=config.epochs,
        slots=max(1, min(slots, num_trials)),
        stops=expected_stops(config),
        generations=generations,
        per_set=config.per_set,
        surviving=expected_survival(config),
        arrays=planned,
        kinds={} if learns else kinds,
        sizes={number: size for number, group in enumerate(groups) if (size := _size(group)) is not None},
        between_s=TRIAL_S if arrays is None else ARRAY_S + TRIAL_S,
        fixed=step.fixed / step.each if step is not None and step.each > 0 else FIXED,
        slowdown=_slowdown(decision, profile, num_trials) if packed and profile is not None else lambda active: 1.0,
    )


def _size(group: Group) -> ModelSize | None:
    """Return the size of a group's trials; None if it is not known."""
    batch = dict(group.signature.values).get("batch_size", ABSENT)
    if not group.num_parameters:
        return None
    return ModelSize(group.num_parameters, float(BATCH_SIZE if batch == ABSENT else batch))


def _slots(decision: Decision) -> int:
    """Return the number of Tune trials that run at once."""
    if not isinstance(decision.plan, ArrayPlan):
        return decision.plan.slots
    any_fused = not decision.groups or any(group.reason is None for group in decision.groups)
    return decision.plan.arrays.slots if any_fused else decision.plan.alone.slots


def _slowdown(decision: Decision, profile: Profile, num_trials: int) -> Callable[[int], float]:
    """Return the function that tells how much faster the last trials are, once their neighbours have ended."""
    assert not isinstance(decision.plan, ArrayPlan)
    num_gpus = max(1, sum(part.num_gpus for part in decision.plan.parts))
    way: Way = "mps" if decision.mps else "process"
    full = math.ceil(min(decision.plan.slots, num_trials) / num_gpus)

    def time_of_each(number: int) -> float | None:
        """Return the time of a sample of each of these trainings at once; None if unknown."""
        rate = profile.rate("process" if number == 1 else way, number)
        return number / rate if rate else None

    @cache
    def slowdown(active: int) -> float:
        """Return a trial's time with this number at once, relative to its time in full slots."""
        active_s, full_s = time_of_each(min(full, math.ceil(active / num_gpus))), time_of_each(full)
        return active_s / full_s if active_s is not None and full_s is not None else 1.0

    return slowdown
