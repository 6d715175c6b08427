"""What a command's first workers import while Ray starts, and a command that is interrupted meanwhile."""

from __future__ import annotations

import io
import os
import signal
import threading
import time
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raygpu import api
from raygpu.cli.console import LiveConsole
from raygpu.config.sections import ClusterSection
from raygpu.engines.cluster import ray_rows, remote_cluster
from raygpu.errors import BadInput
from raygpu.workflow import ray_startup
from raygpu.workflow.packing import find_training


def test_a_command_that_is_interrupted_says_that_it_waits_for_rays_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A thread starts Ray, and cannot be stopped half-way: that takes a busy machine a minute. The second Ctrl-C comes
    meanwhile, and the Ray is closed all the same."""
    ended: list[bool] = []

    def connect(*_: object) -> Any:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.3)
        return SimpleNamespace(close=lambda: ended.append(True))

    monkeypatch.setattr(remote_cluster, "connect", connect)
    monkeypatch.setattr(ray_startup.ray_environment, "prepare", lambda **_: None)
    stream = io.StringIO()
    section = ClusterSection(address="10.0.0.1:6379")
    config: Any = SimpleNamespace(cluster=section, COMMAND="train", name="test", gpu=None)
    console = LiveConsole(stream=stream)
    with (
        pytest.raises(KeyboardInterrupt),
        ray_startup._starting(config, (), tmp_path, console, False, None),
    ):
        raise KeyboardInterrupt
    assert stream.getvalue().startswith("interrupted; Ray still starts, and is ended once it has, in 60 s at most")
    assert ended == [True]


def test_the_modules_that_first_workers_import_exist() -> None:
    modules = {module for kinds in ray_startup.WORKER_MODULES.values() for of in kinds.values() for module in of}
    assert not [module for module in {*modules, *ray_startup.FUSED_MODULES} if find_spec(module) is None]


@pytest.mark.parametrize(
    ("command", "gpus", "cpus", "workers"),
    [
        ("sweep", 0, 2, 1),
        ("sweep", 4, 4, 2),
        ("sweep", 2, 16, 2),
        ("train", 0, 1, 1),
        ("train", 0, 4, 2),
        ("train", 8, 32, 9),
    ],
)
def test_a_training_s_controller_and_workers_import_and_of_a_sweep_half_of_the_cpus(
    command: str, gpus: int, cpus: int, workers: int
) -> None:
    preload = ray_startup._preload(command, gpus, cpus)
    assert preload.workers == workers
    preload.close()


def test_a_ray_that_runs_in_this_process_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "shutdown", lambda: pytest.fail("the user's Ray is ended"))
    config: Any = SimpleNamespace(COMMAND="train", name="test")
    with (
        pytest.raises(
            BadInput, match=r"Ray runs in this process already, by ray\.init\(\); raygpu starts or joins one"
        ),
        ray_startup.ray_starting(config, (), tmp_path, LiveConsole(), apart=False),
    ):
        pass
    with pytest.raises(BadInput, match="Ray runs in this process already"):
        find_training(config, "pack", None, lambda lines: None)


def test_samples_in_a_ray_of_data_are_not_lost_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray_rows, "rows_in_use", lambda: True)
    config: Any = SimpleNamespace(COMMAND="pack", name="test")
    line = r"data\(\) has its samples in Ray \(raygpu.RayRows\), and pack measures in a Ray of its own"
    with pytest.raises(BadInput, match=line), ray_startup.measuring_ray(config, (), print):
        pass
    monkeypatch.setattr(ray, "is_initialized", lambda: False)  # rows of an earlier command, whose Ray has ended
    monkeypatch.setattr(ray_startup, "service_use", lambda *_, **__: pytest.fail("reached"))
    with pytest.raises(pytest.fail.Exception, match="reached"), ray_startup.measuring_ray(config, (), print):
        pass


def test_a_second_thread_s_command_is_refused_and_leaves_ray_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray, and what a sweep changes of Tune, are one for a process."""
    ended, faults = list[bool](), list[str]()
    monkeypatch.setattr(ray_startup, "_end_ray_of_data", lambda: ended.append(True))
    config: Any = SimpleNamespace(COMMAND="pack", name="test")
    nothing: Any = SimpleNamespace()

    def other() -> None:
        """Begin a command of each kind."""
        for begin in (
            lambda: ray_startup.measuring_ray(config, (), lambda _: None),
            lambda: ray_startup.ray_starting(config, (), Path(), nothing, apart=False, wanted=False),
        ):
            try:
                with begin():
                    pass
            except BadInput as error:
                faults.append(str(error))

    with ray_startup.ray_starting(config, (), Path(), nothing, apart=False, wanted=False):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert faults == [ray_startup.USED_ELSEWHERE] * 2
    assert ended == [True], "by the first command, at its own end"


def test_a_second_thread_s_call_is_refused_before_it_does_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    faults = list[str]()
    monkeypatch.setattr("raygpu.api.begin_call", lambda: pytest.fail("began the first one's time anew"))

    def other() -> None:
        """Call each function that uses Ray."""
        for call in (api.run_sweep, api.run_training, api.run_pack, api.run_balance, api.run_placement):
            try:
                call()
            except BadInput as error:
                faults.append(str(error))

    with pytest.raises(KeyError), ray_startup.one_at_a_time():
        raise KeyError
    with ray_startup.one_at_a_time():  # the one before has given it back
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert faults == [ray_startup.USED_ELSEWHERE] * 5
