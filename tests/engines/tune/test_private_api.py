"""The private API of Ray Tune that raygpu uses does in this release what raygpu needs."""

from __future__ import annotations

import pytest
from ray.tune.execution import class_cache

from raygpu.engines.tune.private_api import CREDENTIALS, withhold_credentials


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
