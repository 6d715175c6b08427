"""The connection to Ray, on the tests' own cluster."""

from __future__ import annotations

import subprocess
import sys

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
