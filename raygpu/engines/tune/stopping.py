"""Apply a sweep's stopping rule under Tune: as Tune's scheduler in process mode, as a Ray actor in fused mode."""

from __future__ import annotations

from typing import Any

from ray.tune.schedulers import FIFOScheduler, TrialScheduler

from raygpu.engines.cluster.pinned import pinned
from raygpu.search.stopping import Rule


class RuleScheduler(FIFOScheduler):
    """Tune scheduler that stops trials by the rule, after each result of a trial that goes on.

    The last result of a trial that has ended or diverged is not compared with others, as in an array.
    """

    def __init__(self, rule: Rule) -> None:
        super().__init__()
        self.rule = rule

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Return STOP if the rule stops the trial after this result, else CONTINUE."""
        if result["unknown_metric"] is not None:
            return str(TrialScheduler.CONTINUE)
        stopped = self.rule.decide(result["epoch"], [(trial.config["trial_id"], result["score"])])
        return str(TrialScheduler.STOP if stopped else TrialScheduler.CONTINUE)


class RuleActor:
    """Ray actor that holds the rule for all arrays of a sweep: their members are compared as one population."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule

    def decide(self, epoch: int, scores: list[tuple[str, float]]) -> list[str]:
        """Return the ids of the trials that stop after this epoch. scores: trial ids with their scores."""
        return list(self._rule.decide(epoch, scores))

    def forget(self, trial_ids: list[str]) -> None:
        """Remove the scores of trials that are trained again from the beginning."""
        self._rule.forget(trial_ids)

    def state(self) -> Rule:
        """Return the rule with all scores that it has seen."""
        return self._rule

    def restore(self, rule: Rule) -> None:
        """Go on with a rule that `state` returned."""
        self._rule = rule


def rule_actor(rule: Rule | None) -> Any:
    """Start the rule's actor on the driver's node, so that both end together; None without a rule."""
    if rule is None:
        return None
    return pinned(RuleActor).remote(rule)
