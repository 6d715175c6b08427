"""The files of a sweep's winner among the artifacts of its run: `best/`.

MLflow keeps there what an earlier winner has left, so a checkpoint has the `best.toml` of its trial beside it, and the
files of a script lie in a folder of their trial.
"""

from __future__ import annotations

from pathlib import Path

from raygpu.config import read_toml
from raygpu.records.run_directory import RunDirectory
from raygpu.records.trial_files import kept_files


def winner_files(folder: RunDirectory, trial_id: str) -> list[tuple[Path, str]]:
    """Return files and folders of the winner in the order of their upload, each with its folder among the artifacts.

    `best.toml` comes after all parts of the checkpoint, and not without one; what else lies in `best/` comes after it,
    as a store may refuse a kind of file.
    """
    checkpoint, best = folder.checkpoint(trial_id), folder.best.name
    parts = [path for path in sorted(checkpoint.glob("*")) if path.is_file()] if checkpoint is not None else []
    files = [*parts, *([folder.best_toml] if parts else []), *sorted(folder.best.glob("*"))]
    written = kept_files(folder, trial_id)
    return [*((path, best) for path in files), *([(written, f"{best}/files/{trial_id}")] if written else [])]


def winner_checkpoint(files: Path) -> Path | None:
    """Return the checkpoint of the trial of `best.toml`; None if there is none, or it is of an earlier winner or of
    another epoch. files: folder of the run's artifacts. Raises BadInput for a damaged file."""
    folder = RunDirectory(files)
    noted = folder.best / folder.best_toml.name
    if not noted.is_file():
        return None
    own, winner = (read_toml(file)["source"] for file in (noted, folder.best_toml))
    is_same = all(own.get(name) == winner.get(name) for name in ("trial_id", "epoch"))
    return folder.best if is_same else None
