"""Private API of Ray Tune that raygpu uses. `tests/engines/tune/test_tune_private_api.py` tells when it changes."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import ray
from pyarrow.fs import LocalFileSystem
from ray.train._internal import checkpoint_manager, storage
from ray.tune import registry
from ray.tune.execution import class_cache, experiment_state, tune_controller
from ray.tune.utils.serialization import TuneFunctionDecoder

from raygpu.devices import disk
from raygpu.records.run_directory import TUNE_CHECKPOINT

CREDENTIALS = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SECURITY_TOKEN", "AWS_SESSION_TOKEN"}

STATE_FILES = SEARCHER, GENERATOR, CALLBACKS, EXPERIMENT = (
    "searcher-state-{}.pkl",
    "search_gen_state-{}.json",
    "callback-states-{}.pkl",
    "experiment_state-{}.json",
)
"""Files of the state of a start of the sweep, by Tune's names with the time of the start, in the order in which they
replace those of the snapshot before.

A command that is killed in between leaves files of two moments. Tune may have an older one than the search and the
records: it runs a trial again that has ended, and the search requests again what Tune does not have. The other way
round, Tune would have a trial that the search does not know and draws again, or the records one that never ends. The
records may not be newer than the search either: a trial that it draws again may get other values.
"""
COPIES = ".copies"
"""Folder, in the run's of Tune, for the files of a snapshot before they replace those of the one before."""
MANY_WORKERS = 1_000_000
"""More workers than a sweep has."""
LONG_START_S = 30.0
"""Seconds of a worker's start after which a trial no longer waits for it beside an idle worker."""


def withhold_credentials() -> None:
    """Keep Tune from copying credentials into each worker's description, which Ray lists and logs.

    Workers have their nodes' own. Tune has no public setting for it.
    """
    class_cache.ENV_VARS_TO_PROPAGATE -= CREDENTIALS


@contextmanager
def _replaced(owner: Any, **attributes: Any) -> Iterator[None]:
    """Give a class, a module or an object other values of these attributes, meanwhile."""
    originals = {name: getattr(owner, name) for name in attributes}
    try:
        for name, value in attributes.items():
            setattr(owner, name, value)
        yield
    finally:
        for name, original in originals.items():
            setattr(owner, name, original)


def in_started_workers(wanted: bool) -> AbstractContextManager[None]:
    """Let Tune's trials, meanwhile, begin in workers that Ray has started already.

    Tune gives its workers environment variables of this process, so Ray starts a new process for each. The workers of
    a local Ray have the variables of this process anyway. wanted: whether Ray is a local one.
    """
    return _replaced(class_cache, DEFAULT_ENV_VARS={}, ENV_VARS_TO_PROPAGATE=set()) if wanted else nullcontext()


def starting_workers_kept(has_more: Callable[[], bool]) -> AbstractContextManager[None]:
    """Let Tune, meanwhile, give no idle worker to a trial whose own worker is starting, but to one that waits.

    Tune ends the worker that is starting. If trials last less than a worker's start, each idle worker would go to the
    next such trial, and there would never be a second worker. The last trials get idle workers, and so does a trial
    whose worker takes longer than LONG_START_S. has_more: whether the search may give a further trial now.
    """
    controller: Any = tune_controller.TuneController
    reuse = controller._maybe_reuse_cached_actor
    seen_starting: dict[Any, float] = {}

    def is_starting(self: Any, trial: Any) -> bool:
        """Return whether the trial's own worker has its resources, and has not begun with the trial."""
        worker = self._trial_to_actor.get(trial)
        return worker is not None and self._actor_manager.is_actor_started(worker)

    def reuse_unless_starting(self: Any, trial: Any) -> bool:
        """Give an idle worker to the trial, or to another one of its resources; return whether to the trial."""
        if trial in self._resetting_trials or not is_starting(self, trial):
            return bool(reuse(self, trial))
        request = trial.placement_group_factory
        waiting = self._resources_to_pending_trials[request] & self._staged_trials
        other = next(
            (each for each in self._pending_trials_list if each in waiting and not is_starting(self, each)), None
        )
        now = time.monotonic()
        if other is not None:
            reuse(self, other)
        elif not has_more() or now - seen_starting.setdefault(self._trial_to_actor[trial], now) > LONG_START_S:
            return bool(reuse(self, trial))
        return False

    return _replaced(controller, _maybe_reuse_cached_actor=reuse_unless_starting)


def trainables_kept() -> AbstractContextManager[None]:
    """Let Tune, meanwhile, keep a trainable's class: for each trial it asks Ray's head for it several times, and
    unpickles it, with all that it refers to."""
    trainables: Any = registry._global_registry
    get, contains, register = trainables.get, trainables.contains, trainables.register
    cache: dict[tuple[str, str], Any] = {}

    def get_kept(category: str, key: str) -> Any:
        """Return a registered value, unpickled once."""
        if (category, key) not in cache:
            cache[category, key] = get(category, key)
        return cache[category, key]

    def register_anew(category: str, key: str, value: Any) -> None:
        """Register a value in place of any that is kept."""
        register(category, key, value)
        cache.pop((category, key), None)

    def contains_kept(category: str, key: str) -> bool:
        """Return whether a value is registered."""
        return (category, key) in cache or contains(category, key)

    return _replaced(trainables, get=get_kept, contains=contains_kept, register=register_anew)


def snapshots_for_ends(every_s: float, part: float) -> AbstractContextManager[None]:
    """Let the first checkpoint of a Tune trial, meanwhile, ask for a snapshot of the sweep's state at most this often.

    Tune takes a snapshot at each checkpoint, since that replaces the one before, to which the last snapshot may refer.
    A first one replaces none; of trials that last milliseconds, snapshots would be most of the driver's time.

    every_s: least seconds between two snapshots, each of which has all trials so far. part: largest part of the
    wall-clock time that they take. Of the time in which the driver does not wait for trials, the part may be larger.
    """
    manager: Any = experiment_state._ExperimentCheckpointManager
    note, sync = manager.on_trial_checkpoint, manager.sync_up_experiment_state
    with_checkpoint: set[str] = set()
    wanted, took_s = False, 0.0

    def on_trial_checkpoint(self: Any, trial: Any) -> None:
        """Ask for a snapshot, at once or soon."""
        nonlocal wanted
        last_result = trial.last_result
        is_restored = last_result["iterations_since_restore"] != last_result["training_iteration"]
        if trial.trial_id in with_checkpoint or is_restored:
            note(self, trial)
        else:
            with_checkpoint.add(trial.trial_id)
            wanted = True

    def sync_up_experiment_state(self: Any, save_fn: Any, force: bool = False, wait: bool = False) -> None:
        """Take a snapshot if one is due."""
        nonlocal wanted, took_s
        began, last = time.monotonic(), self._last_save_time
        due = wanted and began - last >= max(every_s, took_s * (1 - part) / part)
        wanted = wanted and not due
        sync(self, save_fn, force=force or due, wait=wait)
        if self._last_save_time != last:
            took_s = self._last_save_time - began

    return _replaced(
        manager, on_trial_checkpoint=on_trial_checkpoint, sync_up_experiment_state=sync_up_experiment_state
    )


@contextmanager
def whole_snapshots() -> Iterator[None]:
    """Let Tune, meanwhile, replace the files of a snapshot of the sweep's state in order, each at once, and restore the
    one of the run's folder.

    Tune copies a snapshot in place, while it may save the next one: a process that is killed leaves a file cut short.
    Object storage replaces a file at once. To restore a sweep, Tune also reads what lies in its folder on this machine.
    """
    manager: Any = experiment_state._ExperimentCheckpointManager
    syncer: Any = storage._FilesystemSyncer
    sync_up, fetch = manager.sync_up_experiment_state, manager.sync_down_experiment_state
    command = syncer._sync_up_command

    def sync_up_experiment_state(self: Any, save_fn: Any, **options: Any) -> None:
        """Take a snapshot once the copy of the one before has ended."""

        def save() -> None:
            """Wait for the copy, and save the state."""
            with suppress(Exception):  # what could not be copied is copied now
                self._storage.syncer.wait()
            save_fn()

        sync_up(self, save, **options)

    def sync_down_experiment_state(self: Any) -> None:
        """Fetch the state of the run's folder in place of any that an earlier start has left here."""
        for name in STATE_FILES:
            for path in Path(self._storage.experiment_driver_staging_path).glob(name.format("*")):
                path.unlink(missing_ok=True)
        fetch(self)

    def _sync_up_command(self: Any, local_path: str, uri: str, exclude: Any = None) -> tuple[Any, dict[str, Any]]:
        """Return the function that copies a folder, and its arguments."""
        if exclude:
            return command(self, local_path, uri, exclude)
        if not isinstance(self.storage_filesystem, LocalFileSystem):
            return _upload_files, {"source": Path(local_path), "target": uri, "system": self.storage_filesystem}
        return _replace_files, {"source": Path(local_path), "target": Path(uri)}

    states = {
        "sync_up_experiment_state": sync_up_experiment_state,
        "sync_down_experiment_state": sync_down_experiment_state,
    }
    with _replaced(manager, **states), _replaced(syncer, _sync_up_command=_sync_up_command):
        yield


def _replace_files(source: Path, target: Path) -> None:
    """Copy a folder's files into another folder, where each replaces the one before in one step, after all copies.

    The disk has a file's content before its name: a power loss leaves no empty one.
    """
    copies = target / COPIES
    shutil.rmtree(copies, ignore_errors=True)  # of a process that was killed
    files = [path.relative_to(source) for path in _in_order(source)]
    for file in files:
        (copies / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / file, copies / file)
        with (copies / file).open("rb+") as copy:
            os.fsync(copy.fileno())
    for file in files:
        (target / file).parent.mkdir(parents=True, exist_ok=True)
        (copies / file).replace(target / file)
    shutil.rmtree(copies, ignore_errors=True)


def _upload_files(source: Path, target: str, system: Any) -> None:
    """Copy a folder's files to object storage one after another."""
    for path in _in_order(source):
        place = f"{target}/{path.relative_to(source).as_posix()}"
        storage._pyarrow_fs_copy_files(str(path), place, destination_filesystem=system)


def _in_order(folder: Path) -> list[Path]:
    """Return a folder's files, those of the state last and in their order."""
    patterns = [name.format("*") for name in STATE_FILES]
    files = [path for path in folder.rglob("*") if path.is_file()]
    return sorted(files, key=lambda path: [fnmatch(path.name, pattern) for pattern in reversed(patterns)])


@contextmanager
def deletions_after_snapshots() -> Iterator[None]:
    """Let Tune, meanwhile, delete an earlier checkpoint of a trial once a snapshot of the sweep's state is in the run's
    folder that names the later one; on a full disk at once.

    Tune deletes it before it takes that snapshot: the state of a command that is killed in between names a checkpoint
    that is gone, and the trial begins anew. Enter it after `whole_snapshots`, whose copy it wraps.
    """
    syncer: Any = storage._FilesystemSyncer
    manager: Any = checkpoint_manager
    delete, command = manager._delete_fs_path, syncer._sync_up_command
    waiting: list[tuple[Any, str]] = []

    def delete_later(fs: Any, fs_path: str) -> None:
        """Let a checkpoint be deleted after the next snapshot."""
        if isinstance(fs, LocalFileSystem) and disk.full([Path(fs_path)]) is not None:
            delete(fs, fs_path)
        else:
            waiting.append((fs, fs_path))

    def _sync_up_command(self: Any, *folders: Any, **options: Any) -> tuple[Any, dict[str, Any]]:
        """Return the function that copies a folder, and then deletes what its state no longer names."""
        copy, arguments = command(self, *folders, **options)
        unnamed = waiting[:]
        waiting.clear()

        def copy_and_delete(**arguments: Any) -> None:
            """Copy the folder, and delete; if the copy fails, only where that makes space for the next one."""
            try:
                copy(**arguments)
            except BaseException as error:
                if not disk.is_full(error):
                    waiting.extend(unnamed)
                    unnamed.clear()
                raise
            finally:
                for checkpoint in unnamed:
                    with suppress(OSError):  # it may be gone
                        delete(*checkpoint)

        return copy_and_delete, arguments

    with _replaced(manager, _delete_fs_path=delete_later), _replaced(syncer, _sync_up_command=_sync_up_command):
        yield


class RestoreFailed(BaseException):
    """The state of a sweep cannot be restored. It is no `Exception`, at which Tune would begin an empty sweep."""


def restored_or_refused() -> AbstractContextManager[None]:
    """Let Tune, meanwhile, raise RestoreFailed where the state of a sweep cannot be restored."""
    controller: Any = tune_controller.TuneController
    resume = controller.resume

    def resume_or_refuse(self: Any, *args: Any, **options: Any) -> None:
        """Restore the state. Raises RestoreFailed."""
        try:
            resume(self, *args, **options)
        except Exception as error:
            raise RestoreFailed from error

    return _replaced(controller, resume=resume_or_refuse)


def ended_by(is_over: Callable[[], bool]) -> AbstractContextManager[None]:
    """Let Tune, meanwhile, end its run early, with its state saved, once a condition holds.

    Tune itself ends early by a signal alone, which it handles in the main thread alone.
    """
    controller: Any = tune_controller.TuneController
    is_finished = controller.is_finished
    return _replaced(controller, is_finished=lambda self: is_over() or is_finished(self))


def trial_folder(context: Any) -> str:
    """Return the path of a Tune trial's folder from its storage context; in object storage, it has no scheme."""
    return str(context.trial_fs_path)


def next_checkpoint(context: Any) -> str:
    """Return the name of the folder that the next checkpoint of a Tune trial gets, by its worker's storage context."""
    return str(context._make_checkpoint_dir_name(context.current_checkpoint_index + 1))


def number_checkpoints_after(context: Any, names: Iterable[str]) -> None:
    """Let a Tune trial's worker give its next checkpoint a higher number than these names of checkpoint folders."""
    numbers = [int(name.removeprefix(TUNE_CHECKPOINT)) for name in names]
    context.current_checkpoint_index = max(context.current_checkpoint_index, *numbers, -1)


def kill_worker(trial: Any) -> None:
    """Kill the worker process of a Tune trial; no effect without one. A callback has no public way to its actor."""
    if trial.temporary_state.ray_actor is not None:
        ray.kill(trial.temporary_state.ray_actor)


def load_experiment_state(content: bytes) -> Any:
    """Read a JSON file of Tune's experiment state, in which pickles are embedded.

    Raises ValueError, or what a damaged pickle raises.
    """
    return json.loads(content, cls=TuneFunctionDecoder, allow_cloudpickle=True)


def keep_idle_workers(controller: Any, request: Any, *, keep: bool) -> None:
    """Let Tune keep the workers of a request for resources that have no trial, or end them at its next step.

    Tune keeps as many idle workers as trials are staged with their request, and has no setting for more.
    """
    cache = controller._actor_cache
    (cache.increase_max if keep else cache.decrease_max)(request, MANY_WORKERS)
