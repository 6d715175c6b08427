"""Private API of Ray Tune that raygpu uses. `tests/engines/tune/test_private_api.py` tells when it changes."""

from __future__ import annotations

from ray.tune.execution import class_cache

CREDENTIALS = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SECURITY_TOKEN", "AWS_SESSION_TOKEN"}


def withhold_credentials() -> None:
    """Keep Tune from copying credentials into each worker's description, which Ray lists and logs.

    Workers have their nodes' own. Tune has no public setting for it.
    """
    class_cache.ENV_VARS_TO_PROPAGATE -= CREDENTIALS
