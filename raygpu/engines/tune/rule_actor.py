"""Apply a sweep's stopping rule to trials in many processes, through a Ray actor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from raygpu.search.patience import reasons
from raygpu.search.stopping import Rule


class RuleLost(RuntimeError):
    """The actor of the stopping rule does not answer."""


def stopped_by(
    rule: Any, epoch: int, scores: Sequence[tuple[str, float]], stale: Sequence[str], reason: str
) -> dict[str, str | None]:
    """Ask the rule's actor which trials stop after an epoch; return the reason of each.

    stale: trials whose score is of an earlier epoch. reason: that of the sweep's own rule. Raises
    RuleLost if the actor is gone, and the errors of its code.
    """
    try:
        own_reasons: dict[str, str | None] = ray.get(rule.decide.remote(epoch, list(scores), list(stale)))
    except RayTaskError:
        raise
    except RayError as error:
        raise RuleLost("the actor of the stopping rule was lost") from error
    return {name: own_reason or reason for name, own_reason in own_reasons.items()}


class RuleActor:
    """Ray actor that holds the rule for all workers of a sweep: their trials are compared as one population."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule

    def decide(self, epoch: int, scores: list[tuple[str, float]], stale: Sequence[str] = ()) -> dict[str, str | None]:
        """Return the ids of the trials that stop after this epoch, each with the reason; None if it is that of the
        sweep's rule. scores: trial ids with their scores. stale: those whose score is of an earlier epoch."""
        return dict(reasons(self._rule, epoch, scores, stale))

    def forget(self, trial_ids: list[str]) -> None:
        """Remove the scores of trials that are trained again from the beginning."""
        self._rule.forget(trial_ids)

    def state(self) -> Rule:
        """Return the rule with all scores that it has seen."""
        return self._rule

    def restore(self, rule: Rule) -> None:
        """Go on with a rule that `state` returned."""
        self._rule = rule
