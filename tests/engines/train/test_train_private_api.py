"""The private API of Ray Train that raygpu uses does in this release what raygpu needs."""

from __future__ import annotations

import inspect
import subprocess
import sys
import time
from dataclasses import fields

import pytest
import ray
from ray.train import ScalingConfig
from ray.train.v2._internal.callbacks import DatasetsCallback, placement_group_callback
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
from ray.train.v2._internal.execution.context import TrainContext
from ray.train.v2._internal.execution.controller import placement_group_cleaner
from ray.train.v2._internal.execution.scaling_policy import FixedScalingPolicy, ScalingPolicy
from ray.train.v2._internal.execution.worker_group import worker_group
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from raygpu.engines.train import train_private_api
from raygpu.engines.train.train_private_api import (
    LocalPolicy,
    OwnCleaner,
    OwnCleanerCallback,
    is_alive,
    with_own_controller,
)


def test_a_cleaner_asks_its_own_ray_and_not_a_dashboard(ray_address: str) -> None:
    """This Ray has none; the one of another Ray may answer in its place."""
    ray.init(ray_address, namespace="cleaner")
    try:
        group = ray.util.placement_group([{"CPU": 1}])
        controller = ray.remote(num_cpus=0)(type("Controller", (), {})).remote()
        ray.get(controller.__ray_ready__.remote())
        cleaner = ray.remote(num_cpus=0)(OwnCleaner).remote(controller._actor_id.hex(), 0.1, 1.0, 1.0)
        ray.get([cleaner.register_placement_group.remote(group), cleaner.start_monitoring.remote()])
        time.sleep(0.4)
        assert ray.util.placement_group_table(group)["state"] == "CREATED"
        ray.kill(controller)
        deadline = time.monotonic() + 30
        while ray.util.placement_group_table(group)["state"] != "REMOVED":
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert not is_alive("f" * len(controller._actor_id.hex()), 1)
    finally:
        ray.shutdown()


def test_a_cleaner_asks_again_after_an_error_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([RuntimeError("GCS is away"), KeyError("State"), {"State": "ALIVE"}, {"State": "DEAD"}])

    def actors(_: str) -> dict[str, str]:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(train_private_api.state, "actors", actors)
    monkeypatch.setattr(placement_group_cleaner, "is_actor_alive", None)
    cleaner = OwnCleaner("an id", 0.0, 1.0, 1.0)
    monkeypatch.setattr(cleaner, "_exit", lambda: None)
    cleaner._monitor_loop()
    assert next(answers, None) is None


def test_the_cleaner_is_raygpu_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement_group_callback, "PlacementGroupCleaner", placement_group_cleaner)
    monkeypatch.setattr(PlacementGroupCleanerCallback, "after_controller_start", lambda *_: None)
    OwnCleanerCallback().after_controller_start(None)
    assert placement_group_callback.PlacementGroupCleaner is OwnCleaner
    assert "ray.remote(num_cpus=0)(PlacementGroupCleaner)" in inspect.getsource(placement_group_callback)
    monkeypatch.setattr(placement_group_cleaner, "is_actor_alive", None)
    cleaner = OwnCleaner("an id", 0.0, 1.0, 1.0)
    cleaner._stop_event.set()
    cleaner._monitor_loop()
    assert placement_group_cleaner.is_actor_alive is is_alive
    assert "alive = is_actor_alive(" in inspect.getsource(placement_group_cleaner.PlacementGroupCleaner._monitor_loop)


def test_workers_of_a_local_training_get_no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """So they may be processes that Ray has started already."""
    monkeypatch.setattr(worker_group, "get_env_vars_to_propagate", worker_group.get_env_vars_to_propagate)
    monkeypatch.setenv("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "7")
    monkeypatch.setattr(FixedScalingPolicy, "after_controller_start", lambda *_: None)
    LocalPolicy(ScalingConfig(num_workers=2)).after_controller_start(None)
    assert worker_group.get_env_vars_to_propagate() == {}
    assert "merged_env_vars = get_env_vars_to_propagate()" in inspect.getsource(worker_group)


@pytest.mark.parametrize(("local", "cleans"), [(True, False), (False, True)])
def test_a_controller_starts_no_actor_without_work(local: bool, cleans: bool) -> None:
    own = with_own_controller(DataParallelTrainer, local=local)
    kept = [type(each) for each in own(print)._create_default_callbacks()]
    every = [type(each) for each in DataParallelTrainer(print)._create_default_callbacks()]
    assert {DatasetsCallback, PlacementGroupCleanerCallback} < set(every)
    assert set(every) - set(kept) == {DatasetsCallback, PlacementGroupCleanerCallback}
    assert set(kept) - set(every) == ({OwnCleanerCallback} if cleans else set())


def test_no_autoscaler_is_asked() -> None:
    policy = LocalPolicy(ScalingConfig(num_workers=2))
    policy._maybe_send_resource_request()
    policy._send_resource_request()
    policy._cancel_resource_request()
    for name in ("_maybe_send_resource_request", "_send_resource_request", "_cancel_resource_request"):
        assert "_coordinator_client" in inspect.getsource(getattr(ScalingPolicy, name))
    assert policy.make_decision_for_non_running_worker_group().num_workers == 2
    assert "_autoscaling_coordinator" not in inspect.getsource(FixedScalingPolicy)


def test_a_training_is_ended_by_its_controller() -> None:
    """What is done here is what Ray Train does itself."""
    own = with_own_controller(DataParallelTrainer, local=True)(print)
    assert not own.end(), "it has not begun"
    theirs = inspect.getsource(DataParallelTrainer._initialize_and_run_controller)
    for line in (
        "num_cpus=0,",
        "ray._raylet.RAY_NODE_ID_KEY: ray.get_runtime_context().get_node_id()",
        'runtime_env={"env_vars": env_vars},',
        "controller_actor_cls.remote(**controller_init_kwargs)",
        "ray.get(controller.run.remote())",
        "return ray.get(controller.get_result.remote())",
    ):
        assert line in theirs


def test_a_thread_that_waits_does_not_keep_its_process_alive() -> None:
    code = (
        "import threading\nfrom raygpu.engines.train.train_private_api import DaemonThreads\n"
        "threads = DaemonThreads()\nthreads.submit(threading.Event().wait)\n"
        "other = DaemonThreads()\nother.submit(print, 'written')\nother.shutdown()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "written\n")
    assert "checkpoint_upload_threadpool" in {each.name for each in fields(TrainContext)}
