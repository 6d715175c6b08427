"""Apply a sweep's stopping rule to trials in many processes, through a Ray actor."""

from __future__ import annotations

from raygpu.search.patience import reasons
from raygpu.search.stopping import Rule


class RuleActor:
    """Ray actor that holds the rule for all workers of a sweep: their trials are compared as one population."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule

    def decide(self, epoch: int, scores: list[tuple[str, float]]) -> dict[str, str | None]:
        """Return the ids of the trials that stop after this epoch, each with the reason; None if it is that of the
        sweep's rule. scores: trial ids with their scores."""
        return dict(reasons(self._rule, epoch, scores))

    def forget(self, trial_ids: list[str]) -> None:
        """Remove the scores of trials that are trained again from the beginning."""
        self._rule.forget(trial_ids)

    def state(self) -> Rule:
        """Return the rule with all scores that it has seen."""
        return self._rule

    def restore(self, rule: Rule) -> None:
        """Go on with a rule that `state` returned."""
        self._rule = rule
