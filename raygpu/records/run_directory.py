"""`runs/<name>/`: the files written there for a person and for the next command.

Files of workers, trials' checkpoints above all, lie in `shared`, which all nodes reach: the folder itself, or one of
the same name in object storage, which then has a copy of everything else too.
"""

from __future__ import annotations

import json
import shlex
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any
from uuid import uuid4

import tomli_w

from raygpu.config import ProblemConfig, StoredConfig, SweepConfig, load, read_toml
from raygpu.config.command_names import typed
from raygpu.errors import BadInput, redacted
from raygpu.records import run_lock, slurm_job, stored_run
from raygpu.records.run_files import as_json, read_json
from raygpu.records.run_paths import CHECKPOINTS, RunPaths
from raygpu.records.whole_files import write_whole
from raygpu.search.trial_record import TrialRecord
from raygpu.search.trials import Trial
from raygpu.storage import LOCAL, Storage, StorageError, is_job

KINDS = {
    "sweep": "sweep",
    "train": "training",
    "balance": "balance",
    "place": "comparison of placements",
    "pack": "measurement of packing",
}
"""Words for a run of each command, in messages."""
TUNE_CHECKPOINT = "checkpoint_"
"""Beginning of the name of a checkpoint's folder in its Tune trial's; a number follows."""
MEMBERS = "members"
"""Folder, in a checkpoint of Tune's, with a folder for each trial whose parameters are kept."""
SCORE = "score.json"
"""File, in the checkpoint of a best epoch, or of a trial that is under way, with the epoch and its score."""
PROGRESS = "progress.json"
"""File, in a checkpoint, that says how far the training had got."""
ENDED = "ended"
"""Key, in the run's state, of the status with which a training without a summary has ended: failed."""
RESUMED_AT = "resumed_at"
"""Key, in the summary of an earlier end, of the moment at which a later start went on with the run, in Unix seconds."""
OF_THE_MACHINE = ("devices", "memory_limit")
"""Fields of `[gpu]` that a resume takes from the file: it may go on on another machine."""
TRAINING = "training"
"""Folder of Ray Train's run, below the checkpoints of a production training."""

_state_lock = Lock()
"""Lock held while a run's state is read and written anew: the writer to MLflow does so in a thread of its own."""


@dataclass(frozen=True, slots=True)
class RunDirectory(RunPaths):
    """The folder of one run. `path` is absolute."""

    def __str__(self) -> str:
        """Return the run's URI in object storage or its folder, by which it goes on from anywhere."""
        return str(self.storage or self.path)

    def resumed_by(self, kind: str) -> str:
        """Return the command line that goes on with the run. kind: the command's name."""
        if (script := slurm_job.script_of(self.path)) is not None:
            return f"sbatch {shlex.quote(script)}"
        command = f"{typed('submit')} {kind}" if is_job() else typed(kind)
        return f"{command} --resume {shlex.quote(str(self))}"

    def delivered_by(self, kind: str) -> str:
        """Return the command line that delivers to MLflow what it lacks. kind: the command's name."""
        return self.resumed_by(kind) if is_job() else f"{typed('deliver')} {shlex.quote(str(self))}"

    def promoted_by(self) -> str:
        """Return the command line that trains a sweep's best trial for production, from any working folder and with
        the sweep's MLflow store."""
        command = f"{typed('submit')} train" if is_job() else typed("train")
        return f"{command} --from {shlex.quote(str(self))}"

    @property
    def name(self) -> str:
        """Name of the run."""
        return self.path.name

    @property
    def shared(self) -> Storage:
        """The folder that all nodes reach."""
        return self.storage or Storage(str(self.path))

    def checkpoint(self, trial_id: str) -> Path | None:
        """Return the checkpoint of a sweep's trial on this machine, downloaded if need be; None if it was not kept.

        Raises BadInput if that is no trial's id: it becomes a folder that is emptied.
        """
        try:
            name = Trial.require_name(trial_id)
        except ValueError as error:
            raise BadInput(f"{self.best_toml}: trial_id: {error}") from error
        folder, shared_folder = self.checkpoints / name, self.shared / CHECKPOINTS / name
        if self.storage is not None and shared_folder.is_dir():
            shutil.rmtree(folder, ignore_errors=True)
            shared_folder.download(folder)
        return folder if folder.is_dir() else None

    @property
    def shared_checkpoints(self) -> Storage:
        """Folder of a production training's checkpoints: Ray Train's run, and the best one."""
        return self.shared / CHECKPOINTS

    def training_checkpoints(self) -> list[Storage]:
        """Return a production training's checkpoints, as Ray Train keeps them, the last one first."""
        folder = self.shared_checkpoints / TRAINING
        return [folder / name for name in reversed(folder.folders()) if name.startswith("checkpoint_")]

    def noted_checkpoint(self, summary: Mapping[str, Any]) -> Storage | None:
        """Return the checkpoint that a training's summary names, in this folder, which may be a copy; None without."""
        if (noted := summary["checkpoint"]) is None:
            return None
        checkpoint = self.shared_checkpoints
        for name in Storage(noted).parts()[0].rpartition(f"/{CHECKPOINTS}/")[2].split("/"):
            checkpoint = checkpoint / name
        return checkpoint if checkpoint.is_dir() else None

    @property
    def shared_trials(self) -> Storage:
        """The folder that trials themselves write to, with a folder for each trial."""
        return self.shared / "trials"

    @property
    def tune(self) -> Storage:
        """Ray Tune's own folder, for its restore."""
        return self.shared / "tune"

    @classmethod
    def create(cls, runs_dir: Path, name: str, storage: str = LOCAL) -> RunDirectory:
        """Make the folder. storage: local, or object storage that gets a folder of this name too.

        Raises BadInput if the folder exists or cannot be written.
        """
        folder = cls((runs_dir / name).resolve(), None if storage == LOCAL else Storage.at(storage) / name)
        taken: Storage | Path | None = folder.path if slurm_job.is_taken(folder.path) else None
        if folder.storage is not None and folder.storage.has(folder.config.name):
            taken = folder.storage
        if taken is not None:
            raise BadInput(f"name: {taken} exists already; go on with it by --resume {taken}, or choose another --name")
        try:
            folder.path.mkdir(parents=True, exist_ok=(folder.path / slurm_job.FOLDER).is_dir())
        except OSError as error:
            raise BadInput(f"runs_dir: {runs_dir} cannot be written: {error.strerror}") from error
        folder.trials.mkdir()
        return folder

    @classmethod
    def create_for(cls, config: StoredConfig) -> RunDirectory:
        """Make the folder of a configuration's run. Raises BadInput if it exists or cannot be written."""
        return cls.create(Path(config.runs_dir), str(config.name), config.storage)

    @classmethod
    def existing(
        cls, where: str | Path, kind: str | None = "sweep", flag: str = "--resume", *, current: bool = True
    ) -> RunDirectory:
        """Return the folder of an earlier run, here or in object storage.

        kind: its command; None for any. flag: the flag that named it. current: whether a folder here first gets what
        another machine has left of the run in object storage. Raises BadInput, and StorageError.
        """
        remote = "://" in str(where)
        folder = cls._fetched(Storage.at(str(where))) if remote else cls(Path(where).resolve()).with_storage()
        if current and not remote:
            stored_run.bring_up_to_date(folder)
        for needed in (folder.config, folder.run):
            if not needed.is_file():
                whose = KINDS[kind] if kind is not None else "run"
                raise BadInput(f"{flag}: {where} is no {whose}'s folder: it has no {needed.name}")
        folder_kind = folder.kind
        if kind not in (folder_kind, None):
            other = (
                f"; go on with it by {typed(folder_kind)} --resume {where}"
                if flag == "--resume" and folder_kind in ("sweep", "train")
                else ""
            )
            raise BadInput(f"{flag}: {where} is a {KINDS[folder_kind]}'s{other}")
        if "name" not in read_toml(folder.config):  # written first
            raise BadInput(f"{flag}: {folder.config} has no name: restore it, or begin a new run")
        return folder

    @classmethod
    def to_read(cls, where: str | Path, flag: str, warn: Callable[[str], None]) -> RunDirectory:
        """Return the folder of a run of any kind to read; one here as it is if its object storage does not answer, of
        which `warn` is told. Raises BadInput, and StorageError for a run that is named by its URI."""
        try:
            return cls.existing(where, None, flag)
        except StorageError as error:
            if "://" in str(where):
                raise
            warn(f"{error}; what lies in {where} is read, and may be older")
            return cls.existing(where, None, flag, current=False)

    def with_storage(self) -> RunDirectory:
        """Return the folder with the storage that its configuration names, also where it was renamed since."""
        config = read_toml(self.config) if self.config.is_file() else {}
        if (storage := config.get("storage", LOCAL)) == LOCAL:
            return self
        return RunDirectory(self.path, Storage.at(storage) / config.get("name", self.name))

    @classmethod
    def _fetched(cls, storage: Storage) -> RunDirectory:
        """Fetch a run that another machine may have begun: the files that a next command reads, below runs here, or in
        a temporary folder where nothing can be written.

        Raises BadInput where a folder of that name is another run's.
        """
        folder = cls(Path("runs", storage.name).resolve(), storage)
        storage.require_answer()
        if not storage.has(folder.config.name):
            raise BadInput(f"{storage} is no run's folder: it has no {folder.config.name}")
        if folder.path.exists() and cls(folder.path).with_storage().storage != storage:
            raise BadInput(f"{folder.path} is another run than {storage}; move it away, or go on in another folder")
        try:
            folder.trials.mkdir(parents=True, exist_ok=True)
        except OSError:  # the working folder of a container
            folder = cls(Path(tempfile.mkdtemp(prefix="raygpu-runs-"), storage.name), storage)
            folder.trials.mkdir(parents=True)
        with run_lock.unless_held(folder.path) as free:
            if free:  # what a process that works on the run has here is newer
                stored_run.fetch(folder)
        return folder

    def claim(self) -> None:
        """Keep other processes of this machine from working on the run, until `hand_over` or the end of this one.

        Raises BadInput if another process does.
        """
        run_lock.claim(self.path)

    def note_start(self) -> None:
        """Note that from now on a start in this folder is the run's last one. Raises StorageError."""
        if self.storage is not None:
            stored_run.note_start(self, start := uuid4().hex)  # first: it is this folder's, wherever a kill comes
            self.write_run({stored_run.LAST_START: start})

    def hand_over(self) -> None:
        """Copy the folder into object storage, if need be, and let other processes work on the run."""
        try:
            self.publish()
        finally:
            run_lock.release(self.path)

    def publish(self) -> None:
        """Copy the folder into object storage, if the run has its results there."""
        stored_run.publish(self)

    def remove(self) -> None:
        """Delete the folder with its content, here and in object storage; the files of a Slurm job stay."""
        run_lock.release(self.path)
        slurm_job.delete_run(self.path)
        if self.storage is not None:
            self.storage.remove()

    def write_config(self, config: ProblemConfig, source_folder: Path, kind: str = "sweep") -> None:
        """Write the resolved configuration, without passwords. Fields without a value are left out: TOML has no
        null."""
        values = config.model_dump(exclude_none=True) | {"name": self.name}
        values["tracking"]["uri"] = redacted(values["tracking"]["uri"])
        write_whole(self.config, tomli_w.dumps(values))
        if self.storage is not None:
            self.storage.upload(self.config)
        self.write_run({"source_folder": str(source_folder), "kind": kind})

    def change_config(self, values: Mapping[str, Any]) -> None:
        """Write these values of the top level into the configuration."""
        write_whole(self.config, tomli_w.dumps(read_toml(self.config) | dict(values)))
        if self.storage is not None:
            self.storage.upload(self.config)

    @property
    def source_folder(self) -> Path:
        """Folder where relative paths start; the working directory for a run that goes on elsewhere."""
        folder = Path(self.read_run()["source_folder"])
        return Path.cwd() if is_job() or not folder.is_dir() else folder

    def read_config(self, overrides: Mapping[str, str] | None = None) -> SweepConfig:
        """Read the configuration of the sweep's start, with the choices made in place of auto. Raises BadInput."""
        config = load(self.config, overrides or {}, SweepConfig)
        gpu = self.read_run().get("gpu", {})
        chosen = {name: value for name, value in gpu.items() if name not in OF_THE_MACHINE}
        return config.model_copy(update={"gpu": config.gpu.model_copy(update=chosen)})

    def write_run(self, values: Mapping[str, Any]) -> None:
        """Add values to the run's state. Safe to call from any thread."""
        with _state_lock:
            write_whole(self.run, json.dumps(self.read_run() | dict(values), indent=2))
            if self.storage is not None:
                self.storage.upload(self.run)

    def read_run(self) -> dict[str, Any]:
        """Return the run's state; empty without a file. Raises BadInput if it is damaged."""
        return read_json(self.run, "restore it, or begin a new run") or {}

    @property
    def kind(self) -> str:
        """Command that began the run: a key of KINDS. Raises BadInput if the run's state is damaged."""
        kind = self.read_run().get("kind", "sweep")
        if kind not in KINDS:
            raise BadInput(f"{self.run}: kind: read {kind!r}; allowed: {', '.join(KINDS)}")
        return str(kind)

    def write_failures(self, records: Sequence[TrialRecord]) -> None:
        """Write `trials/<id>/error.txt`, the traceback, of each trial that failed; delete those of an earlier start."""
        for record in records:
            file = self.trials / record.trial.trial_id / self.error.name
            if record.error is not None:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(record.error, "utf-8", "backslashreplace")
            elif file.exists():
                file.unlink()
                if self.storage is not None and (shared := self.shared_trials / file.parent.name).has(file.name):
                    shared.discard(file.name)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write `summary.json`; numbers that are not finite become null."""
        write_whole(self.summary, json.dumps(as_json(summary), indent=2, allow_nan=False) + "\n")

    def read_summary(self) -> dict[str, Any] | None:
        """Return the content of `summary.json`; None of a run whose last start has no end. Raises BadInput if it is
        damaged."""
        summary = self.read_last_summary()
        return None if summary is None or RESUMED_AT in summary else summary

    def read_last_summary(self) -> dict[str, Any] | None:
        """Return the content of `summary.json`, with RESUMED_AT where it is of an earlier start's end; None of a run
        that has never ended. Raises BadInput if it is damaged."""
        return read_json(self.summary, "--resume writes it anew")

    def begin_again(self) -> None:
        """Note in the summary of an earlier end, if there is one, that the run goes on; its own end replaces it."""
        with suppress(BadInput):  # a damaged summary tells of no end
            summary = self.read_last_summary()
            if summary is not None and RESUMED_AT not in summary:
                self.write_summary(summary | {RESUMED_AT: round(time.time(), 2)})
                if self.storage is not None:
                    self.storage.upload(self.summary)
