"""A `Proposer` as a Tune searcher: the one source of trials in every mode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ray import cloudpickle
from ray.tune.search import Searcher

from raygpu.engines.actor import tune_config
from raygpu.search import Proposer
from raygpu.trials import Trial


class TrialSearcher(Searcher):
    """Gives Tune the proposer's trials, and the proposer their scores."""

    def __init__(self, proposer: Proposer) -> None:
        super().__init__()
        self.proposer = proposer
        self.given: dict[str, Trial] = {}
        """By Tune's id."""
        self.failed: list[Trial] = []
        self.again: list[Trial] = []
        """Trials that failed before a resume, to be run anew."""

    def set_search_properties(self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any) -> bool:
        return True

    def suggest(self, trial_id: str) -> Any:
        trial = self.again.pop(0) if self.again else self.proposer.next()
        if trial is None:
            return Searcher.FINISHED if self.proposer.finished else None
        self.given[trial_id] = trial
        return tune_config(trial)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        trial = self.given[trial_id]
        failed = error or result is None or bool(result.get("failure") or result.get("unknown_metric"))
        if failed:
            self.failed.append(trial)
        self.proposer.tell(trial.trial_id, None if failed or result is None else result["score"])

    def save(self, checkpoint_path: str) -> None:
        state = {"proposer": self.proposer, "given": self.given, "failed": self.failed, "again": self.again}
        Path(checkpoint_path).write_bytes(cloudpickle.dumps(state))

    def restore(self, checkpoint_path: str) -> None:
        """Called by a resumed sweep alone: trials that failed are given again."""
        state = cloudpickle.loads(Path(checkpoint_path).read_bytes())
        self.proposer, self.given = state["proposer"], state["given"]
        self.again, self.failed = [*state["failed"], *state["again"]], []
