"""The private API of Ray Tune that raygpu uses does in this release what raygpu needs."""

from __future__ import annotations

import pytest
from ray.tune.execution import class_cache

from raygpu.engines.tune.tune_private_api import CREDENTIALS, in_started_workers, withhold_credentials


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
