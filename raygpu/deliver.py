"""Deliver to MLflow what it lacks of a run: waiting writes, the run's end, its files. Trains nothing and starts no Ray.

python -m raygpu.deliver runs/digits-20261122-101500
python -m raygpu.deliver runs/*

A run without an end, because its command was killed, gets its waiting writes; --resume goes on with it, and with a
training that failed, whose run stays a failed one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any

from raygpu.cli.command import INCOMPLETE, PlainCommand, run_folders
from raygpu.cli.console import print_faults
from raygpu.cli.flags import Arguments, Flags
from raygpu.config import ProblemConfig, SweepConfig, TrainConfig, load
from raygpu.devices.host import num_cpus
from raygpu.errors import BadInput, RaygpuError, TrackingError
from raygpu.records.run_directory import ENDED, RunDirectory
from raygpu.records.scratch import fetched
from raygpu.workflow.run_presentation import presentation

OPTIONS = {"tracking.uri": "The address of the store, where it is another one than the run's own."}


class Untracked(BadInput):
    """The run is not in MLflow, on purpose."""


def run(folder: RunDirectory, overrides: Mapping[str, str], say: Callable[[str], None]) -> bool:
    """Deliver what MLflow lacks of a run; return whether it then lacks nothing.

    overrides: fields of the configuration, by dotted name. Raises BadInput if the run is not tracked, and TrackingError
    if the store is out of reach.
    """
    from raygpu.tracking.kept_writes import REFUSED
    from raygpu.tracking.session import Session, SweepSession, TrainSession, open_store
    from raygpu.tracking.writer import CpuLimit

    kind = folder.kind
    if kind not in ("sweep", "train"):
        raise Untracked(f"{folder}: a {kind} is logged to MLflow at its end alone; nothing is to be delivered")
    config: ProblemConfig = load(folder.config, overrides, SweepConfig if kind == "sweep" else TrainConfig)
    config = config.model_copy(update={"tracking": config.tracking.found()})
    if not config.tracking.enabled:
        raise Untracked(f"{folder}: was run without tracking (tracking.enabled = false)")
    folder.claim()
    with ExitStack() as stack:
        stack.callback(folder.hand_over)
        has_failed = folder.read_run().get(ENDED) == "failed"
        summary = folder.read_summary() if not has_failed else None  # the one of an earlier interruption
        shown = presentation(config, folder, summary)
        make = SweepSession if kind == "sweep" else TrainSession
        cpus = CpuLimit(num_cpus=num_cpus())
        session: Session = make(config, folder, open_store(config), cpus=cpus, presentation=shown)
        interrupted = summary is not None and _is_interrupted(summary, config)
        if isinstance(session, TrainSession) and summary is not None:
            session.checkpoint = stack.enter_context(_checkpoint(folder, summary))
            session.lacks_model = summary["tracking"].get("lacks_model")
        for line in session.close(summary, interrupted=interrupted, say=say):
            say(line)
        tree = session.writer.ready(0) if has_failed and session.fault is None else None
        if tree is not None and session.run_id is not None:
            tree.end_run(session.run_id, "failed")
    if session.fault is not None or session.lacks_model is not None:
        return False
    if (refused := folder.path / REFUSED).is_file():
        say(f"{folder}: all is in MLflow but for what it refused: {refused}")
        return False
    how = "it has failed" if has_failed else "it has not ended"
    ended = "all of it is in MLflow" if summary is not None else f"{how}: {folder.resumed_by(kind)}"
    say(f"{folder}: {ended}")
    return True


def _is_interrupted(summary: Mapping[str, Any], config: ProblemConfig) -> bool:
    """Return whether a run was interrupted; by its counts, if an early end or an earlier version left no status."""
    status = summary["tracking"].get("status")
    if status is None and isinstance(config, TrainConfig):
        return config.epochs is not None and int(summary["epochs"]) < config.epochs
    return bool(status == "interrupted" if status is not None else summary.get("interrupted"))


def _checkpoint(folder: RunDirectory, summary: Mapping[str, Any]) -> AbstractContextManager[Path | None]:
    """Return the checkpoint of a production training as a folder on this machine; None if there is none any more."""
    checkpoint = folder.noted_checkpoint(summary)
    return nullcontext() if checkpoint is None else fetched(checkpoint)


def _main(arguments: Arguments) -> int:
    """Deliver the runs; return the exit code: 0 if MLflow lacks nothing, else 3."""
    folders = run_folders(arguments, "deliver")
    if len(folders) == 1:
        return 0 if _deliver(folders[0], arguments.options) else INCOMPLETE
    complete = True
    for where in folders:
        if "://" not in where and not RunDirectory(Path(where)).run.is_file():
            continue  # as runs/mlflow.db of runs/*
        try:
            complete &= _deliver(where, arguments.options)
        except Untracked:
            continue
        except RaygpuError as error:  # the others may be delivered
            complete = False
            print_faults([str(error)])
    return 0 if complete else INCOMPLETE


def _deliver(where: str, options: Mapping[str, str]) -> bool:
    try:
        return run(RunDirectory.existing(where, None, "deliver"), options, print)
    except TrackingError as error:
        print_faults([f"{where}: {error}"])
        return False


COMMAND = PlainCommand(
    "deliver",
    "FOLDER ... [flags]",
    __doc__,
    Flags({}, OPTIONS),
    _main,
    "interrupted; what is left can be delivered again",
)
main = COMMAND.main


if __name__ == "__main__":
    sys.exit(main())
