"""The private API of Ray Train that raygpu uses does in this release what raygpu needs."""

from __future__ import annotations

import inspect
import subprocess
import sys
from dataclasses import fields

import pytest
from ray.train import ScalingConfig
from ray.train.v2._internal.callbacks import DatasetsCallback
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
from ray.train.v2._internal.execution.context import TrainContext
from ray.train.v2._internal.execution.controller import placement_group_cleaner
from ray.train.v2._internal.execution.scaling_policy import FixedScalingPolicy, ScalingPolicy
from ray.train.v2._internal.execution.worker_group import worker_group
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from raygpu.engines.train.train_private_api import LocalPolicy, _variables, with_own_controller


def test_a_controller_on_a_cluster_gets_the_address_of_its_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """And Ray Train's variables; its cleaner still asks without an address."""
    monkeypatch.setenv("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "7")
    found = _variables("127.0.0.1:1")
    assert found["RAY_ADDRESS"] == "127.0.0.1:1"
    assert found["RAY_TRAIN_HEALTH_CHECK_INTERVAL_S"] == "7"
    assert "address" not in inspect.getsource(placement_group_cleaner.PlacementGroupCleaner)


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
    assert set(every) - set(kept) == {DatasetsCallback} | (set() if cleans else {PlacementGroupCleanerCallback})


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
