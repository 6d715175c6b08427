"""What Ray is told before it is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from raygpu.config.sections import ClusterSection
from raygpu.devices.nvml import Gpu
from raygpu.engines.cluster import ray_environment

CARDS = [Gpu(0, "GPU-a", "NVIDIA A100", 40.0), Gpu(1, "GPU-b", "NVIDIA L4", 24.0)]


def told(code: str) -> str:
    """What a process of its own prints: here, Ray is imported."""
    # Tests of whole commands, which may have run in this process before, leave the variables of a local Ray.
    environment = {name: value for name, value in os.environ.items() if name not in ray_environment.LOCAL}
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True, timeout=300)
    return done.stdout.strip()


def test_a_local_ray_is_told_to_stay_on_loopback() -> None:
    ask = "from raygpu.engines.cluster import ray_environment as e; "
    assert told(ask + "e.prepare(local=True); print(e.is_on_loopback())") == "True"
    assert told(ask + "e.prepare(); print(e.is_on_loopback())") == "False"
    own = "from ray._private.services import get_node_ip_address as ip; "
    assert told("import ray; " + ask + own + "e.prepare(local=True); print(ip())") == "127.0.0.1", (
        "after the import, too"
    )


def test_a_training_on_a_local_ray_has_no_process_that_watches_for_nodes_to_be_drained() -> None:
    from ray.train.v2._internal.constants import ENABLE_PREEMPTION_WATCHER_ENV_VAR, ENV_VARS_TO_PROPAGATE

    assert ENABLE_PREEMPTION_WATCHER_ENV_VAR == ray_environment.PREEMPTION_WATCHER
    assert ray_environment.PREEMPTION_WATCHER in ENV_VARS_TO_PROPAGATE, "Ray Train hands it to its processes"
    assert ray_environment.LOCAL[ray_environment.PREEMPTION_WATCHER] == "0"


@pytest.mark.parametrize(
    ("address", "cards", "expected"), [("local", 1, True), ("local", 2, False), ("auto", 1, False)]
)
def test_a_box_of_two_types_of_card_is_a_cluster(
    address: str, cards: int, expected: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    """Ray refuses a second node to a head that knows no other machine."""
    from raygpu.cli.console import LiveConsole
    from raygpu.workflow import ray_startup

    given: list[bool] = []

    class Told(Exception): ...

    def prepare(*, local: bool) -> None:
        given.append(local)
        raise Told

    monkeypatch.setattr(ray_startup.ray_environment, "prepare", prepare)
    config: Any = SimpleNamespace(cluster=ClusterSection(address=address), COMMAND="sweep", name="test")
    with pytest.raises(Told), ray_startup.ray_starting(config, CARDS[:cards], tmp_path, LiveConsole(), apart=True):
        pass
    assert given == [expected]


def test_a_process_that_had_a_local_ray_can_join_a_cluster() -> None:
    ask = "import os, ray; from raygpu.engines.cluster import ray_environment as e; "
    ask += "from ray._private.services import get_node_ip_address as ip; first = ip(); "
    ask += "e.prepare(local=True); e.prepare(); "
    ask += "print(ip() == first, e.is_on_loopback(), e.LOCAL.keys() & os.environ.keys())"
    assert told(ask) == "True False set()"


def test_a_user_s_own_setting_stays() -> None:
    ask = f"import os; os.environ[{ray_environment.ON_LOOPBACK!r}] = '0'; "
    ask += "from raygpu.engines.cluster import ray_environment as e; "
    assert told(ask + "e.prepare(local=True); e.prepare(); print(e.is_on_loopback())") == "True"


def test_a_process_whose_ray_is_on_loopback_joins_no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    from raygpu.engines.cluster.remote_cluster import connect
    from raygpu.errors import BadInput

    monkeypatch.setenv(ray_environment.ON_LOOPBACK, "0")
    with pytest.raises(BadInput, match="=0 is set, so that Ray listens on"):
        connect("127.0.0.1:1")


def test_the_environment_of_a_process_that_has_ended_is_empty() -> None:
    assert ray_environment.environment_of(2**30) == {}
    assert ray_environment.environment_of(os.getpid())["PATH"]
