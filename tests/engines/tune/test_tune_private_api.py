"""The private API of Ray Tune that raygpu uses does in this release what raygpu needs."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from ray.tune.execution import class_cache, experiment_state

from raygpu.engines.tune.tune_private_api import (
    CREDENTIALS,
    in_started_workers,
    snapshots_for_ends,
    withhold_credentials,
)


def test_tune_copies_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_cache, "ENV_VARS_TO_PROPAGATE", set(class_cache.ENV_VARS_TO_PROPAGATE) | CREDENTIALS)
    for name in CREDENTIALS:
        monkeypatch.setenv(name, "secret")
    wanted = class_cache._ActorClassCache()
    withhold_credentials()

    class Trainable:
        pass

    made = wanted.get(Trainable)
    variables = (made._default_options.get("runtime_env") or {}).get("env_vars", {})
    assert not CREDENTIALS & variables.keys()
    assert "PATH" not in variables


def test_tune_s_trials_begin_in_processes_that_wait_already(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without variables of their own, which Ray would start a new process for; a cluster's trials keep them."""
    monkeypatch.setenv("RAY_CHDIR_TO_TRIAL_DIR", "0")

    class Trainable:
        pass

    def variables() -> dict[str, str]:
        made = class_cache._ActorClassCache().get(Trainable)
        found: dict[str, str] = (made._default_options.get("runtime_env") or {}).get("env_vars", {})
        return found

    before = variables()
    assert before["RAY_CHDIR_TO_TRIAL_DIR"] == "0"
    with in_started_workers(True):
        assert variables() == {}
    with in_started_workers(False):
        assert variables() == before
    assert variables() == before


class Saved(experiment_state._ExperimentCheckpointManager):
    """Counts the snapshots, in a folder of nothing."""

    def __init__(self) -> None:
        storage = SimpleNamespace(
            experiment_driver_staging_path="", experiment_fs_path="",
            syncer=SimpleNamespace(wait=lambda: None, sync_up=lambda *_, **__: True, last_sync_time=0.0),
        )  # fmt: skip
        super().__init__(storage=storage, checkpoint_period=1e9, sync_every_n_trial_checkpoints=1)  # type: ignore[arg-type]
        self.count = 0
        self._last_save_time = time.monotonic()

    def step(self) -> int:
        """As at the end of each step of Tune's controller; the number of snapshots so far."""
        self.sync_up_experiment_state(lambda: vars(self).update(count=self.count + 1))
        return self.count


class Ended:
    """A Tune trial with a checkpoint."""

    def __init__(self, name: str, *, restored: bool = False) -> None:
        self.trial_id = name
        self.last_result = {"training_iteration": 3, "iterations_since_restore": 1 if restored else 3}


def test_first_checkpoints_of_trials_ask_for_a_snapshot_now_and_then_and_later_ones_at_once() -> None:
    before = vars(experiment_state._ExperimentCheckpointManager).copy()
    with snapshots_for_ends(30.0):
        manager: Any = Saved()
        for name in ("a", "b", "c"):
            manager.on_trial_checkpoint(Ended(name))
            assert manager.step() == 0
        manager._last_save_time -= 31.0
        assert [manager.step(), manager.step()] == [1, 1]
        for later in (Ended("b"), Ended("d", restored=True)):
            before_it = manager.count
            manager.on_trial_checkpoint(later)
            assert manager.step() == before_it + 1
    manager.on_trial_checkpoint(Ended("e"))
    assert manager.step() == 4, "Tune's own way again"
    assert vars(experiment_state._ExperimentCheckpointManager).copy() == before
