"""The connection to Ray, on the tests' own cluster."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import psutil
import pytest
import ray

from raygpu.devices.nvml import Reading
from raygpu.engines.cluster import cluster, orphan_processes
from raygpu.engines.cluster.dashboard import Dashboard
from raygpu.engines.cluster.remote_cluster import connect
from raygpu.records.device import Device

GARBAGE_DURING_SHUTDOWN = """
import gc, sys, threading
from raygpu.engines.cluster import ray_environment
ray_environment.prepare()
import ray
from raygpu.engines.cluster.remote_cluster import connect

cluster = connect(sys.argv[1])
references = [ray.put(number) for number in range(2000)]
closed = threading.Event()
gc.set_threshold(1)

def make_cycles():
    while references and not closed.is_set():
        cycle = [references.pop()]
        cycle.append(cycle)
        closed.wait(2e-4)

thread = threading.Thread(target=make_cycles)
thread.start()
cluster.close()
closed.set()
thread.join()
print("alive")
"""


def test_garbage_of_another_thread_does_not_end_the_process(ray_address: str) -> None:
    """Ray ends a process, with status 1 and no word, that frees a reference while Ray shuts down."""
    command = [sys.executable, "-c", GARBAGE_DURING_SHUTDOWN, ray_address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "alive\n", done.stderr


def test_what_trials_have_started_ends_with_a_ray_that_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "head_answers", lambda: False)
    with orphan_processes.marked():
        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        cluster.Cluster([], [], Dashboard(), True).close()
        assert child.wait(60) != 0
    finally:
        child.kill()


def test_a_ray_whose_first_process_was_told_to_end_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM to all processes of a command: a call to a raylet that is ending ends this process."""
    answers = iter([True, True, False, False])
    monkeypatch.setattr(cluster, "head_answers", lambda: next(answers))
    monkeypatch.setattr(cluster, "end_local", lambda extra: pytest.fail("Ray was called"))
    ray_of_command = cluster.Cluster([], [], Dashboard(), True)
    child = subprocess.Popen(["sleep", "600"])
    ray_of_command.log_monitor = psutil.Process(child.pid)
    try:
        ray_of_command.require_head(settle=False)
        child.terminate()
        child.wait(60)
        with pytest.raises(KeyboardInterrupt):
            ray_of_command.require_head(settle=True)
        ray_of_command.close()
    finally:
        child.kill()


def test_all_nodes_are_asked_at_once_and_those_that_are_slow_are_left_out(
    ray_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that is gone takes the longest wait; two of them must not take it twice."""

    @ray.remote(num_cpus=0)
    class Probe:
        def __init__(self, slow: bool) -> None:
            self.slow = slow

        def read(self, uuids: Sequence[str]) -> dict[str, Reading]:
            time.sleep(600 if self.slow and uuids else 0)
            return {uuid: Reading(1.0, 2.0, 3.0, 4.0) for uuid in uuids}

    waits, wait = list[float](), ray.wait

    def noted(calls: list[Any], **options: Any) -> Any:
        waits.append(options["timeout"])
        return wait(calls, **options)

    monkeypatch.setattr(ray, "wait", noted)
    joined = connect(ray_address)
    try:
        probes = {name: Probe.remote(name != "fast") for name in ("gone", "lost", "fast")}  # type: ignore[attr-defined]
        ray.get([probe.read.remote([]) for probe in probes.values()])
        joined.devices = [Device(index, name, "0", "T4", f"GPU-{name}") for index, name in enumerate(probes)]
        joined._probes = probes
        assert joined.readings() == {2: Reading(1.0, 2.0, 3.0, 4.0)}
        assert waits == [cluster.READ_S]
        for probe in probes.values():
            ray.kill(probe)
    finally:
        joined.close()
