"""Private API of Ray Train that raygpu uses. `tests/engines/train/test_train_private_api.py` tells when it changes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import ray
from ray._common.retry import call_with_retry
from ray._private import state
from ray._raylet import RAY_NODE_ID_KEY  # type: ignore[attr-defined]
from ray.train.v2._internal import constants
from ray.train.v2._internal.callbacks import DatasetsCallback, placement_group_callback
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
from ray.train.v2._internal.constants import AWS_RETRYABLE_TOKENS
from ray.train.v2._internal.execution.context import get_train_context
from ray.train.v2._internal.execution.controller import TrainController, placement_group_cleaner
from ray.train.v2._internal.execution.scaling_policy import FixedScalingPolicy
from ray.train.v2._internal.execution.worker_group import worker_group
from ray.util.state.exception import RayStateApiException

R = TypeVar("R")


def with_retries(upload: Callable[[], R]) -> R:
    """Call, and again twice after an error of object storage that passes, as Ray Train does with uploads."""
    return call_with_retry(upload, "upload checkpoint", AWS_RETRYABLE_TOKENS, 3)


class DaemonThreads:
    """Threads that do not keep their process alive, behind what Ray Train uses of a `ThreadPoolExecutor`."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []

    def submit(self, call: Callable[..., Any], *arguments: Any) -> None:
        """Call the function in a thread of its own."""
        self._threads = [each for each in self._threads if each.is_alive()]
        self._threads.append(threading.Thread(target=call, args=arguments, name="checkpoint", daemon=True))
        self._threads[-1].start()

    def shutdown(self) -> None:
        """Wait for the threads."""
        for each in self._threads:
            each.join()


def upload_in_daemon_threads() -> None:
    """Have Ray Train upload this worker's checkpoints in threads that end with the process.

    One of its own pool waits for the controller, and keeps a worker alive for ever whose controller has ended.
    """
    get_train_context().checkpoint_upload_threadpool = DaemonThreads()


class LocalPolicy(FixedScalingPolicy):
    """Ray Train's policy of a fixed number of workers, in a Ray of this machine.

    It starts no actor that asks an autoscaler for their nodes. The workers may be processes that Ray has started
    already: they have the command's environment anyway, and Ray starts new ones where it is to give them variables.
    """

    def after_controller_start(self, train_run_context: Any) -> None:
        """Keep Ray Train from giving workers variables of their own; called in the controller, before there are any."""
        worker_group.get_env_vars_to_propagate = dict
        super().after_controller_start(train_run_context)

    def _maybe_send_resource_request(self) -> None: ...

    def _send_resource_request(self) -> None: ...

    def _cancel_resource_request(self) -> None: ...


class OwnCleaner(placement_group_cleaner.PlacementGroupCleaner):
    """Ray Train's actor that deletes the workers' placement group when the controller has died.

    Ray Train's own asks the dashboard whether the controller is alive. A Ray without a dashboard names an address all
    the same: another Ray's dashboard may answer there, which does not know the controller, and a healthy training ends.
    """

    def _monitor_loop(self) -> None:
        placement_group_cleaner.is_actor_alive = is_alive
        super()._monitor_loop()


def is_alive(actor_id: str, timeout: int) -> bool:
    """Return whether an actor of this process's Ray is alive, by that Ray's own table of actors.

    Raises RayStateApiException if the table cannot be read. After it Ray Train's cleaner asks again; after another
    error its thread would end.
    """
    try:
        return state.actors(actor_id).get("State") not in (None, "DEAD")
    except Exception as error:
        raise RayStateApiException(f"Ray's table of actors cannot be read: {error}") from error


class OwnCleanerCallback(PlacementGroupCleanerCallback):
    """Ray Train's callback that starts the cleaner, in the controller."""

    def after_controller_start(self, train_run_context: Any) -> None:
        """Put `OwnCleaner` in the place of Ray Train's cleaner; called in the controller, before there are workers."""
        placement_group_callback.PlacementGroupCleaner = OwnCleaner
        super().after_controller_start(train_run_context)


def with_own_controller(trainer: type, *, local: bool) -> type:
    """Return a class of Ray Train's trainers whose training can be ended at any moment, and that starts fewer actors.

    Each actor is a process that imports Ray Train and Ray Data, which takes two seconds of a core. Without Ray Data's
    data sets none shares them out; in a local Ray, none asks the autoscaler for nodes, and none deletes the workers'
    placement group when the controller dies, since Ray deletes it when the command ends. There, the controller may also
    be a process that Ray has started already, as the workers of `LocalPolicy`.
    local: whether Ray is the command's own, or that of this machine's service.
    """
    left_out = (DatasetsCallback, PlacementGroupCleanerCallback)

    class WithOwnController(trainer):
        """Ray Train's trainer. Its `fit` is called in a thread, and `end` by others."""

        controller: Any = None
        """Handle of the controller's actor; None before it is started."""

        def end(self) -> bool:
            """Kill the controller of a training that is under way, so that `fit` raises RayActorError at once; return
            whether there is one."""
            if self.controller is None:
                return False
            ray.kill(self.controller)
            return True

        def _create_default_callbacks(self) -> list[Any]:
            callbacks = [each for each in super()._create_default_callbacks() if not isinstance(each, left_out)]
            return callbacks if local else [*callbacks, OwnCleanerCallback()]

        def _initialize_and_run_controller(self, **settings: Any) -> Any:
            """Start the controller as Ray Train does, and keep its handle for `end`."""
            if local:
                settings["scaling_policy"] = LocalPolicy(self.scaling_config)
            started = ray.remote(TrainController).options(
                num_cpus=0,
                label_selector={RAY_NODE_ID_KEY: ray.get_runtime_context().get_node_id()},
                runtime_env={"env_vars": {} if local else constants.get_env_vars_to_propagate()},
            )
            self.controller = started.remote(**settings)
            ray.get(self.controller.run.remote())
            return ray.get(self.controller.get_result.remote())

    return WithOwnController
