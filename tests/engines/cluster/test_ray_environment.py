"""What Ray is told before it is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
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

    def prepare(*, local: bool, starts: bool) -> None:
        given.append(local)
        assert starts == (address == "local")
        raise Told

    monkeypatch.setattr(ray_startup.ray_environment, "prepare", prepare)
    config: Any = SimpleNamespace(cluster=ClusterSection(address=address), COMMAND="sweep", name="test")
    with pytest.raises(Told), ray_startup.ray_starting(config, CARDS[:cards], tmp_path, LiveConsole(), apart=True):
        pass
    assert given == [expected]


def test_a_process_that_had_a_local_ray_can_join_a_cluster() -> None:
    ask = "import os, ray; from raygpu.engines.cluster import ray_environment as e; "
    ask += "from ray._private.services import get_node_ip_address as ip; first = ip(); "
    ask += "e.prepare(local=True); local = ip(); e.prepare(); "
    ask += "print(local, ip() == first, e.is_on_loopback(), e.LOCAL.keys() & os.environ.keys())"
    assert told(ask) == "127.0.0.1 True False set()", "on loopback, after the import too; and then no more"


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


def test_the_token_of_a_local_ray_is_forgotten_before_a_cluster_is_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ray_environment.TOKEN_MODE, raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "a" * 64)
    printed = told(
        "import os, ray; from raygpu.engines.cluster import ray_environment as e; e.prepare(local=True)\n"
        "from ray._private.authentication.authentication_token_setup import enable_token_auth_by_default as start\n"
        "from ray._raylet import AuthenticationTokenLoader as L, get_authentication_mode as mode\n"
        "start(); print(mode(), L.instance().get_raw_token()[0])\n"
        "os.environ['RAY_AUTH_TOKEN'] = 'b' * 64; e.prepare()\n"
        "print(mode(), os.environ.get('RAY_AUTH_MODE'), L.instance().get_raw_token(ignore_auth_mode=True)[0])"
    )
    assert printed.splitlines() == ["1 a", "0 None b"]


@pytest.mark.parametrize("mode", ["token", "disabled"])
def test_a_mode_of_the_users_stays(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ray_environment.TOKEN_MODE, mode)
    ask = "import os; from raygpu.engines.cluster import ray_environment as e; e.prepare(local=True); e.prepare(); "
    assert told(ask + "print(os.environ['RAY_AUTH_MODE'])") == mode


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_sweep_on_a_cluster_without_tokens_after_a_local_one(
    ray_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cluster calls the process back, which wanted a token."""
    (tmp_path / "squares.py").write_text("def train(config):\n    return {'loss': config['x'] ** 2}\n")
    monkeypatch.delenv(ray_environment.TOKEN_MODE, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RAYGPU_SERVICE", "off")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[3]), str(tmp_path)]))
    values = "metric='loss', direction='min', trials=2, space={'x': {'uniform': [0, 1]}}, tracking={'enabled': False}"
    printed = told(
        "import raygpu\n"
        f"for address in ('local', '{ray_address}'):\n"
        f"    result = raygpu.run_sweep('squares:train', cluster={{'address': address}}, {values})\n"
        "    print('completed', result.summary['completed'])"
    )
    assert [line for line in printed.splitlines() if line.startswith("completed")] == ["completed 2"] * 2
