"""The best checkpoint of a production training, copied to a folder of its own: Ray Train keeps the last ones alone.

Ray Train registers a checkpoint before its controller copies it. A training that is killed in between goes on from a
checkpoint that calls itself the best one and has no copy; no later epoch need be better.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from raygpu.records.run_directory import PROGRESS
from raygpu.records.training_progress import Best
from raygpu.records.whole_folder import WholeFolder
from raygpu.storage import Storage

BEST = "best"
"""Name of the folder, beside Ray Train's."""


def best_of(checkpoint: Storage) -> Best:
    """Read the score and the epoch of a checkpoint that was kept as the best one."""
    progress = json.loads(checkpoint.read(PROGRESS))
    return Best(progress["score"], progress["epoch"])


def lost_line(best: Best, kept: Best | None) -> str:
    """Return the line that tells that the checkpoint of the best epoch is lost. kept: the one in its place."""
    instead = "no other is kept" if kept is None else f"the one of epoch {kept.epoch} is kept, score {kept.score:.6g}"
    return f"the checkpoint of the best epoch, {best.epoch}, score {best.score:.6g}, is lost; {instead}"


def forgotten_line(best: Best, epoch: int) -> str:
    """Return the line that tells that the best epoch does not count any more. epoch: the last one that does."""
    return (
        f"the best epoch so far, {best.epoch}, score {best.score:.6g}, does not count any more: the training goes on"
        f" after epoch {epoch}, and trains its later epochs anew"
    )


@dataclass(frozen=True, slots=True)
class BestCheckpoint:
    """The best checkpoint among those of a training."""

    checkpoints: Storage
    """Folder of all checkpoints of the training."""

    @property
    def kept(self) -> Storage | None:
        """Folder of the copy; None without one."""
        return self._folder.content

    def replace(self, path: str) -> None:
        """Copy a checkpoint in the place of the copy; may be called again after it failed. path: as Ray gives it."""
        self._folder.replace(self.checkpoints.beside(path).copy_to)

    def forget(self) -> None:
        """Delete the copy, of an attempt to train that no longer counts."""
        self._folder.remove()

    def recovered(self, noted: Best, uncopied: str | None, *, maximize: bool) -> Best | None:
        """Return the best score that is kept, after a copy that is missing was made; None if none is kept.

        noted: best score by the last checkpoint. uncopied: that checkpoint, as Ray gives it, if it is the best one;
        None if it is not. No other can lack its copy. maximize: whether a higher score is better.
        """
        kept_best, sign = self.kept_best(), 1 if maximize else -1
        if uncopied is None or (kept_best is not None and sign * kept_best.score >= sign * noted.score):
            return kept_best
        self.replace(uncopied)
        return self.kept_best()

    def kept_best(self) -> Best | None:
        """Return the score and the epoch of the copy; None without one."""
        try:
            return best_of(self.kept) if self.kept is not None else None
        except FileNotFoundError:  # somebody has deleted it
            return None

    @property
    def _folder(self) -> WholeFolder:
        return WholeFolder(self.checkpoints / BEST)
