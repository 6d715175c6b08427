"""Keep the results of an array's members: their scores, and the parameters of the members that may be needed."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from raygpu.engines.tune.member_report import Beginning, MemberReport
from raygpu.records import scratch
from raygpu.records.run_directory import MEMBERS, PROGRESS, SCORE
from raygpu.search.scoring import BestEpoch, Scoring, TrialScores, bounded, rank
from raygpu.search.trials import EpochResult, Trial
from raygpu.training.base import ModelArray

MOST_EARLIER = 1000
"""Largest number of epochs of a member, beside that of its own checkpoint, whose scores are kept."""


class MemberResults:
    """Scores and kept parameters of the members of one array.

    Parameters lie below `folder`, on this machine, in a folder for each member. keep_all: whether the parameters of
    every member are kept, or only those of the best member. may_go_back: whether a member's own checkpoint may be of an
    earlier epoch than its last one, as a function's or a script's.
    """

    def __init__(self, scoring: Scoring, names: Iterable[str], *, keep_all: bool, may_go_back: bool = False) -> None:
        self.scoring = scoring
        self.keep_all = keep_all
        self.scores = {name: TrialScores() for name in names}
        self.earlier: dict[str, list[TrialScores]] | None = {} if may_go_back else None
        """Each member's scores at its own checkpoint and after each of its latest epochs; None where a checkpoint is of
        the last epoch."""
        self.ended: dict[str, str | None] = {}
        """Members that have ended, with the reason why each was stopped; None for one that finished."""
        self.undecided: int | None = None
        """Epoch at which the stopping rule was asked and did not answer; None if it has."""
        self.best: tuple[float, float, str] | None = None
        """Rank and id of the best ended member, whose parameters are kept."""
        self.folder = Path(tempfile.mkdtemp(prefix="kept-", dir=scratch.home()))

    def take(self, name: str, result: EpochResult, array: ModelArray) -> None:
        """Score an epoch of a member; write its parameters if best epochs count and this is the member's best so far.

        A report without the metric leaves an existing score as it was. Raises UnknownMetric if there is none yet.
        """
        scores = self.scores[name]
        is_best = scores.take(self.scoring, result)
        if self.earlier is not None:
            epoch_scores = self.earlier.setdefault(name, [])
            if array.has_saved(result.epoch):
                epoch_scores.clear()
            epoch_scores.append(replace(scores))
            del epoch_scores[1:-MOST_EARLIER]
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
        return bounded(self.reached(name))

    def reached(self, name: str) -> float:
        """Return a member's score at its last epoch, infinite, on the worse side, if it has diverged."""
        score = self.scores[name].last
        assert score is not None
        return score

    def tune_score(self) -> float:
        """Return the best of the members' last scores as the array's score for Tune."""
        last_scores = [self.last(name) for name, scores in self.scores.items() if scores.last is not None]
        if not last_scores:
            return bounded(self.scoring.worst)  # Tune takes percentiles, which stay numbers
        return max(last_scores) if self.scoring.maximize else min(last_scores)

    def state(self) -> dict[str, Any]:
        """Return the state to save in a checkpoint, beside the folder."""
        scores = {name: asdict(each) for name, each in self.scores.items()}
        earlier = {name: [asdict(each) for each in epoch_scores] for name, epoch_scores in (self.earlier or {}).items()}
        return {
            "scores": scores,
            "earlier": earlier,
            "best": self.best,
            "ended": self.ended,
            "undecided": self.undecided,
        }

    def restore(self, state: dict[str, Any], folder: Path) -> None:
        """Go on from a value that `state` returned, and from a copy of the folder."""
        self.scores = {name: TrialScores(**values) for name, values in state["scores"].items()}
        if self.earlier is not None:
            self.earlier = {name: _earlier(state, name) for name in state["earlier"]}
        self.best = state["best"] and tuple(state["best"])
        self.ended, self.undecided = state["ended"], state["undecided"]
        shutil.rmtree(self.folder, ignore_errors=True)
        if folder.is_dir():  # object storage keeps no empty folders
            shutil.copytree(folder, self.folder)
        self.folder.mkdir(exist_ok=True)

    def set_back(self, checkpoint: Path | None) -> None:
        """Take the scores and parameters of the members under way from a checkpoint; None for their beginning."""
        state = json.loads((checkpoint / PROGRESS).read_text()) if checkpoint is not None else {"scores": {}}
        for name in [name for name in self.scores if name not in self.ended]:
            self.scores[name] = TrialScores(**state["scores"].get(name, {}))
            if self.earlier is not None:
                self.earlier[name] = _earlier(state, name)
            shutil.rmtree(self.folder / name, ignore_errors=True)
            if checkpoint is not None and (checkpoint / MEMBERS / name).is_dir():
                shutil.copytree(checkpoint / MEMBERS / name, self.folder / name)

    def first_reports(self, epochs: Mapping[str, int]) -> dict[str, MemberReport]:
        """Return the reports of where the members begin, and of earlier ends, which the driver may have lost.

        epochs: last epoch of each member that goes on; 0 at its beginning.
        """
        reports = {name: MemberReport.of_end(name, reason) for name, reason in self.ended.items()}
        reports |= {name: MemberReport(name, beginning=self.go_back(name, epoch)) for name, epoch in epochs.items()}
        if self.undecided is not None and any(epoch < self.undecided for epoch in epochs.values()):
            self.undecided = None  # that epoch is trained again
        return reports

    def go_back(self, name: str, epoch: int) -> Beginning:
        """Forget a member's scores after an epoch, from which it goes on, and parameters that are of a later one."""
        scores = self.scores[name]
        if scores.last_epoch is None or scores.last_epoch <= epoch:
            return Beginning(epoch, replace(scores))
        epoch_scores = [each for each in (self.earlier or {}).get(name, ()) if (each.last_epoch or 0) <= epoch]
        self.scores[name] = replace(epoch_scores[-1]) if epoch_scores else TrialScores()
        if self.earlier is not None:
            self.earlier[name] = epoch_scores
        if self.scores[name].best_epoch != scores.best_epoch:
            shutil.rmtree(self.folder / name, ignore_errors=True)
        return Beginning(epoch, replace(self.scores[name]))

    def close(self) -> None:
        """Delete the folder with the kept parameters."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _may_stay(self, name: str) -> bool:
        """Return whether a member's parameters may be needed, compared with the members that have ended."""
        if self.keep_all or self.best is None:
            return True
        member_rank, best = self.rank(name), self.best
        return (*member_rank[:-1], Trial.order(name)) <= (*best[:-1], Trial.order(best[-1]))

    def _write(self, name: str, array: ModelArray) -> None:
        (self.folder / name).mkdir()
        array.save_member(name, self.folder / name)

    def rank(self, name: str) -> tuple[float, float, str]:
        """Return a sort key for a member's score: smaller is better."""
        scores = self.scores[name]
        score = scores.score(self.scoring)
        assert score is not None
        return *rank(bounded(score), scores.loss(self.scoring.score_rule), maximize=self.scoring.maximize), name


def _earlier(state: Mapping[str, Any], name: str) -> list[TrialScores]:
    """Return a member's earlier scores in a saved state."""
    return [TrialScores(**values) for values in state.get("earlier", {}).get(name, ())]
