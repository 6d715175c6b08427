"""The private API of Ray that raygpu uses does in this release what raygpu needs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray._private import auto_init_hook, services, state
from ray.dashboard import dashboard
from ray.experimental import internal_kv

from raygpu.engines.cluster import ray_private_api
from raygpu.engines.cluster.ray_private_api import others_wait, own_process_groups, without_waits


def test_ray_s_processes_are_not_in_the_command_s_group(tmp_path: Path) -> None:
    with own_process_groups(None):
        started = services.start_ray_process(["sleep", "60"], "raylet", fate_share=True)
    try:
        assert os.getpgid(started.process.pid) == started.process.pid != os.getpgid(0)
    finally:
        started.process.kill()
        started.process.wait()
    assert services.ConsolePopen.__name__ == "ConsolePopen"


def test_ray_s_dashboard_has_its_temporary_files_elsewhere(tmp_path: Path) -> None:
    for program, expected in (("dashboard.py", str(tmp_path)), ("other.py", "")):
        path, said = tmp_path / program, tmp_path / "said"
        path.write_text("import os, sys\nopen(sys.argv[1], 'w').write(os.environ.get('TMPDIR', ''))\n")
        with own_process_groups(tmp_path):
            started = services.start_ray_process([sys.executable, str(path), str(said)], "dashboard", fate_share=True)
        started.process.wait()
        assert said.read_text() == expected
    assert Path(dashboard.__file__).name == "dashboard.py"


def test_others_that_use_ray_wait_for_its_start_and_do_not_start_it(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, called = Event(), list[str]()
    is_up = False

    def init() -> None:
        nonlocal is_up
        called.append("init")
        is_up = True

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "is_initialized", lambda: is_up)
    monkeypatch.setattr(auto_init_hook, "enable_auto_connect", True)
    refused: list[str] = []

    def use_ray() -> None:
        begun.wait(30)
        try:
            ray.init()
        except RuntimeError as error:
            refused.append(str(error))
        auto_init_hook.auto_init_ray()
        called.append("used")

    thread = Thread(target=use_ray)
    thread.start()
    with others_wait():
        begun.set()
        thread.join(0.2)
        assert thread.is_alive()
        ray.init()
    thread.join(30)
    assert called == ["init", "used"]
    (line,) = refused
    assert line.startswith(
        "ray.init() is called, and raygpu starts Ray by itself: leave ray.init() out of the experiment"
    )
    assert ray.init is init


def test_the_address_of_the_dashboard_is_empty_for_its_start_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries are imported in other threads meanwhile, and keep the functions that they find."""
    imported: list[Any] = []

    def start_api_server() -> list[Any]:
        elsewhere = Thread(target=lambda: imported.extend((internal_kv._internal_kv_get, look())))
        elsewhere.start()
        elsewhere.join()
        return [look(), "process"]

    def look() -> Any:
        return internal_kv._internal_kv_get("dashboard")

    monkeypatch.setattr(internal_kv, "_internal_kv_get", lambda key: f"{key} of the head")
    monkeypatch.setattr(services, "start_api_server", start_api_server)
    with without_waits():
        assert services.start_api_server() == [b"", "process"]
    function, seen = imported
    assert seen == function("dashboard") == look() == "dashboard of the head"
    assert services.start_api_server is start_api_server


def test_a_start_looks_often_whether_its_node_has_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = iter([[], [{"NodeID": "other"}], [{"NodeID": "other"}, {"NodeID": "own"}]])
    monkeypatch.setattr(
        state,
        "GlobalState",
        lambda: SimpleNamespace(_initialize_global_state=lambda options: None, node_table=lambda: next(looked)),
    )
    monkeypatch.setattr(services, "_get_gcs_client_options", lambda address: address)
    monkeypatch.setattr(services, "get_node", lambda address, node_id: (address, node_id))
    with without_waits():
        assert services.get_node("127.0.0.1:1", "own") == ("127.0.0.1:1", "own")
    assert next(looked, None) is None


AUTOSCALERS = """
import subprocess, sys
from raygpu.engines.cluster.ray_private_api import kill_autoscaler
processes = [subprocess.Popen([sys.executable, "-u", path, "--logs-dir=x"]) for path in sys.argv[1:]]
try:
    killed = kill_autoscaler()
    processes[0].wait(60)
    print(killed == [processes[0].pid], [process.poll() for process in processes], kill_autoscaler())
finally:
    for process in processes:
        process.kill()
"""


def test_the_autoscaler_alone_is_killed(tmp_path: Path) -> None:
    """In a process of its own: the tests' own process may have a Ray."""
    paths = [tmp_path / "ray/autoscaler/v2/monitor.py", tmp_path / "autoscaler/monitor.py"]
    paths.append(tmp_path / "ray/autoscaler/other.py")
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("import time; time.sleep(600)")
    done = subprocess.run(
        [sys.executable, "-c", AUTOSCALERS, *map(str, paths)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "True [-9, None, None] []\n"


def test_ray_still_starts_its_autoscaler_by_these_names() -> None:
    for folder in (services.AUTOSCALER_V2_DIR, services.AUTOSCALER_PRIVATE_DIR):
        program = Path(services.RAY_PATH, folder, "monitor.py")
        assert program.is_file()
        assert ray_private_api._is_autoscaler(program)


def test_ray_still_follows_its_logs_by_this_name() -> None:
    program = Path(services.RAY_PATH, services.RAY_PRIVATE_DIR, "log_monitor.py")
    assert program.is_file()
    assert ray_private_api._is_log_monitor(program)


def test_the_raylet_and_the_head_of_this_process_are_found(ray_address: str) -> None:
    ray.init(ray_address, log_to_driver=False)
    try:
        servers = ray_private_api.servers()
    finally:
        ray.shutdown()
    assert {name: process.name() for name, process in servers.items()} == {"raylet": "raylet", "head": "gcs_server"}


def test_ray_still_finds_the_cluster_for_auto_by_this_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert ray_private_api.address_of_auto() == "10.0.0.1:6379"
