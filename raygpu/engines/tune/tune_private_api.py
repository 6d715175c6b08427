"""Private API of Ray Tune that raygpu uses. `tests/engines/tune/test_tune_private_api.py` tells when it changes."""

from __future__ import annotations

import inspect
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray.tune.execution import class_cache, experiment_state
from ray.tune.utils.serialization import TuneFunctionDecoder

CREDENTIALS = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SECURITY_TOKEN", "AWS_SESSION_TOKEN"}

MANY_WORKERS = 1_000_000
"""More workers than a sweep has."""


def withhold_credentials() -> None:
    """Keep Tune from copying credentials into each worker's description, which Ray lists and logs.

    Workers have their nodes' own. Tune has no public setting for it.
    """
    class_cache.ENV_VARS_TO_PROPAGATE -= CREDENTIALS


@contextmanager
def in_started_workers(wanted: bool) -> Iterator[None]:
    """Let Tune's trials, meanwhile, begin in workers that Ray has started already.

    Tune gives its workers environment variables of this process, so Ray starts a new process for each. The workers of
    a local Ray have the variables of this process anyway. wanted: whether Ray is a local one.
    """
    kept = class_cache.DEFAULT_ENV_VARS, class_cache.ENV_VARS_TO_PROPAGATE
    if wanted:
        class_cache.DEFAULT_ENV_VARS, class_cache.ENV_VARS_TO_PROPAGATE = {}, set()
    try:
        yield
    finally:
        class_cache.DEFAULT_ENV_VARS, class_cache.ENV_VARS_TO_PROPAGATE = kept


@contextmanager
def snapshots_for_ends(every_s: float) -> Iterator[None]:
    """Let the first checkpoint of a Tune trial, meanwhile, ask for a snapshot of the sweep's state at most this often.

    Tune takes a snapshot at each checkpoint, since that deletes the one before, to which the last snapshot may refer. A
    first one deletes none; of trials that last milliseconds, snapshots would be most of the driver's time.
    """
    manager: Any = experiment_state._ExperimentCheckpointManager
    note, sync = manager.on_trial_checkpoint, manager.sync_up_experiment_state
    with_checkpoint: set[str] = set()
    wanted = False

    def on_trial_checkpoint(self: Any, trial: Any) -> None:
        """Ask for a snapshot, at once or soon."""
        nonlocal wanted
        told = trial.last_result
        is_restored = told["iterations_since_restore"] != told["training_iteration"]
        if trial.trial_id in with_checkpoint or is_restored:
            note(self, trial)
        else:
            with_checkpoint.add(trial.trial_id)
            wanted = True

    def sync_up_experiment_state(self: Any, save_fn: Any, force: bool = False, wait: bool = False) -> None:
        """Take a snapshot if one is due."""
        nonlocal wanted
        due = wanted and time.monotonic() - self._last_save_time >= every_s
        wanted = wanted and not due
        sync(self, save_fn, force=force or due, wait=wait)

    manager.on_trial_checkpoint, manager.sync_up_experiment_state = on_trial_checkpoint, sync_up_experiment_state
    try:
        yield
    finally:
        manager.on_trial_checkpoint, manager.sync_up_experiment_state = note, sync


def kill_worker(trial: Any) -> None:
    """Kill the worker process of a Tune trial; no effect without one. A callback has no public way to its actor."""
    if trial.temporary_state.ray_actor is not None:
        ray.kill(trial.temporary_state.ray_actor)


def load_experiment_state(content: bytes) -> Any:
    """Read a JSON file of Tune's experiment state, in which pickles are embedded.

    Raises ValueError, or what a damaged pickle raises. Later releases of Ray read embedded pickles only on request.
    """
    options: dict[str, Any] = {"allow_cloudpickle": True}
    if options.keys() - inspect.signature(TuneFunctionDecoder.__init__).parameters.keys():
        options = {}
    return json.loads(content, cls=TuneFunctionDecoder, **options)


def keep_idle_workers(controller: Any, request: Any, *, keep: bool) -> None:
    """Let Tune keep the workers of a request for resources that have no trial, or end them at its next step.

    Tune keeps as many idle workers as trials are staged with their request, and has no setting for more.
    """
    cache = controller._actor_cache
    (cache.increase_max if keep else cache.decrease_max)(request, MANY_WORKERS)
