"""Keep the results of an array's members: their scores, and the parameters of the members that may be needed."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from raygpu.records import scratch
from raygpu.records.run_directory import SCORE
from raygpu.search.scoring import BestEpoch, Scoring, TrialScores, rank
from raygpu.search.trials import EpochResult, Trial
from raygpu.training.base import ModelArray

# Tune takes percentiles of scores: the worst one is finite, so that a percentile stays a number.
WORST = 1e300


def finite(score: float) -> float:
    """Return a score bounded to a finite number, as Tune and a search need it."""
    return max(-WORST, min(WORST, score))


class MemberResults:
    """Scores and kept parameters of the members of one array.

    Parameters lie below `folder`, on this machine, in a folder for each member. keep_all: whether the parameters of
    every member are kept, or only those of the best member.
    """

    def __init__(self, scoring: Scoring, names: Iterable[str], *, keep_all: bool) -> None:
        self.scoring = scoring
        self.keep_all = keep_all
        self.scores = {name: TrialScores() for name in names}
        self.best: tuple[float, float, str] | None = None
        """Rank and id of the best ended member, whose parameters are kept."""
        self.folder = Path(tempfile.mkdtemp(prefix="kept-", dir=scratch.home()))

    def take(self, name: str, result: EpochResult, array: ModelArray) -> None:
        """Score an epoch of a member; write its parameters if best epochs count and this is the member's best so far.

        A report without the metric leaves an existing score as it was. Raises UnknownMetric if there is none yet.
        """
        scores = self.scores[name]
        is_best = scores.take(self.scoring, result)
        if not is_best or self.scoring.score_rule != "best" or not self._may_stay(name):
            return
        shutil.rmtree(self.folder / name, ignore_errors=True)
        if array.has_saved(result.epoch):
            self._write(name, array)
            (self.folder / name / SCORE).write_text(json.dumps({"epoch": scores.best_epoch, "score": scores.best}))

    def end(self, name: str, array: ModelArray) -> None:
        """End a member, and keep its parameters if they may be needed."""
        if not self._may_stay(name):
            shutil.rmtree(self.folder / name, ignore_errors=True)
            return
        if not self.keep_all:
            if self.best is not None and self.best[-1] != name:
                shutil.rmtree(self.folder / self.best[-1], ignore_errors=True)
            self.best = self.rank(name)
        if not (self.folder / name).exists():  # those of its best epoch are there already
            self._write(name, array)

    def drop(self, names: Iterable[str]) -> None:
        """Delete the kept parameters of members that failed or begin anew."""
        for name in names:
            shutil.rmtree(self.folder / name, ignore_errors=True)

    def names(self) -> list[str]:
        """Return the ids of the members whose parameters are kept."""
        return sorted(path.name for path in self.folder.iterdir()) if self.folder.is_dir() else []

    def best_of(self, name: str) -> BestEpoch | None:
        """Return a member's best epoch; None if the last epoch counts, or there is no score."""
        return self.scores[name].found if self.scoring.score_rule == "best" else None

    def last(self, name: str) -> float:
        """Return a member's score at its last epoch, which stopping rules compare, as a finite number."""
        return finite(self.reached(name))

    def reached(self, name: str) -> float:
        """Return a member's score at its last epoch, infinite, on the worse side, if it has diverged."""
        score = self.scores[name].last
        assert score is not None
        return score

    def tune_score(self) -> float:
        """Return the best of the members' last scores as the array's score for Tune."""
        known = [self.last(name) for name, scores in self.scores.items() if scores.last is not None]
        if not known:
            return finite(self.scoring.worst)
        return max(known) if self.scoring.maximize else min(known)

    def state(self) -> dict[str, Any]:
        """Return the state to save in a checkpoint, beside the folder."""
        return {"scores": {name: asdict(each) for name, each in self.scores.items()}, "best": self.best}

    def restore(self, state: dict[str, Any], folder: Path) -> None:
        """Go on from a value that `state` returned, and from a copy of the folder."""
        self.scores = {name: TrialScores(**values) for name, values in state["scores"].items()}
        self.best = state["best"] and tuple(state["best"])
        shutil.rmtree(self.folder, ignore_errors=True)
        if folder.is_dir():  # object storage keeps no empty folders
            shutil.copytree(folder, self.folder)
        self.folder.mkdir(exist_ok=True)

    def close(self) -> None:
        """Delete the folder with the kept parameters."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _may_stay(self, name: str) -> bool:
        """Return whether a member's parameters may be needed, compared with the members that have ended."""
        if self.keep_all or self.best is None:
            return True
        own, best = self.rank(name), self.best
        return (*own[:-1], Trial.order(name)) <= (*best[:-1], Trial.order(best[-1]))

    def _write(self, name: str, array: ModelArray) -> None:
        (self.folder / name).mkdir()
        array.save_member(name, self.folder / name)

    def rank(self, name: str) -> tuple[float, float, str]:
        """Return a sort key for a member's score: smaller is better."""
        scores = self.scores[name]
        score = scores.score(self.scoring)
        assert score is not None
        return *rank(finite(score), scores.loss(self.scoring.score_rule), maximize=self.scoring.maximize), name
