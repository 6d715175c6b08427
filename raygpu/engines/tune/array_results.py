"""The results that an array keeps of its members: their scores, and the parameters of those that may be wanted."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from raygpu.engines.tune.trainable import finite, write_score
from raygpu.search.trials import EpochResult, Scoring, Standing

Save = Callable[[str, Path], None]
"""Writes a member's parameters, as they are now, into a folder."""


class KeptMembers:
    """The members of one array. Parameters lie below `folder`, on this machine, in a folder for each member.

    keep_all: every member's are wanted; otherwise those of the best one alone.
    """

    def __init__(self, scoring: Scoring, names: Iterable[str], *, keep_all: bool) -> None:
        self.scoring = scoring
        self.keep_all = keep_all
        self.standings = {name: Standing() for name in names}
        self.best: tuple[float, str] | None = None
        """Rank and id of the best ended member, whose parameters are kept."""
        self.folder = Path(tempfile.mkdtemp(prefix="raygpu-kept-"))

    def take(self, name: str, result: EpochResult, save: Save) -> None:
        """An epoch of a member. Its parameters are written if it is the member's best so far and that one scores it.

        As in process mode, a report without the metric leaves the score as it was, once there is one. Raises
        UnknownMetric before that.
        """
        is_best = self.standings[name].take(self.scoring, result)
        if is_best and self.scoring.which == "best" and self._may_stay(name):
            self._write(name, save)

    def end(self, name: str, save: Save) -> None:
        """A member has ended: its parameters stay if they may be wanted."""
        if not self._may_stay(name):
            shutil.rmtree(self.folder / name, ignore_errors=True)
            return
        if not self.keep_all:
            if self.best is not None:
                shutil.rmtree(self.folder / self.best[1])
            self.best = self.rank(name)
        if not (self.folder / name).exists():  # those of its best epoch are there already
            self._write(name, save)

    def best_of(self, name: str) -> tuple[float, int] | None:
        """A member's best score and its epoch, where that one scores it."""
        return self.standings[name].found if self.scoring.which == "best" else None

    def last(self, name: str) -> float:
        """A member's score at its last epoch, by which stopping rules compare."""
        score = self.standings[name].last
        assert score is not None
        return finite(score)

    def tune_score(self) -> float:
        """The best of the members' last scores: Tune wants one."""
        known = [self.last(name) for name, standing in self.standings.items() if standing.last is not None]
        if not known:
            return finite(self.scoring.worst)
        return max(known) if self.scoring.maximize else min(known)

    def state(self) -> dict[str, Any]:
        """Return the state that goes into a checkpoint, beside the folder."""
        return {"standings": {name: asdict(each) for name, each in self.standings.items()}, "best": self.best}

    def restore(self, state: dict[str, Any], folder: Path) -> None:
        """Go on from what `state` returned, and from a copy of the folder."""
        self.standings = {name: Standing(**values) for name, values in state["standings"].items()}
        self.best = state["best"] and tuple(state["best"])
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(folder, self.folder)

    def close(self) -> None:
        """Delete what is on this machine."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _may_stay(self, name: str) -> bool:
        """Whether a member's parameters may be wanted, as far as those that have ended tell."""
        return self.keep_all or self.best is None or self.rank(name) < self.best

    def _write(self, name: str, save: Save) -> None:
        folder = self.folder / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        save(name, folder)
        if self.best_of(name) is not None:
            write_score(folder, self.standings[name])

    def rank(self, name: str) -> tuple[float, str]:
        """The less the better."""
        score = self.standings[name].score(self.scoring)
        assert score is not None
        return (-finite(score) if self.scoring.maximize else finite(score)), name
