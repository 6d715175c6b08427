"""The Redis that the head keeps its state in, with the folders of submitted jobs in it."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from ray._private.ray_constants import DASHBOARD_CLIENT_MAX_SIZE

from tests.deploy.test_kubernetes import in_bytes
from tests.services.manifests import command, one, pods
from tests.services.redis import redis
from tests.services.rehearsal import OVERLAY, secrets

FOLDERS = 4
"""Largest folders that are there at once, of jobs by several people."""


def test_its_memory_holds_the_folders_of_submitted_jobs(tmp_path: Path) -> None:
    """Ray keeps each as one value, and Redis has one that comes several times over. Without the memory, Kubernetes ends
    Redis, and the head and its sweeps with it."""
    pod = next(pod for pod in pods(OVERLAY) if pod.name == "StatefulSet/redis")
    container = pod.container("redis")
    limit = container["resources"]["limits"]["memory"]
    password = secrets()["raygpu-redis"]["password"]
    configuration = one(OVERLAY, "ConfigMap", "redis")["data"]["redis.conf"]
    with redis(tmp_path, command(container, {}), configuration, password) as port:
        ask = ["redis-cli", "-p", str(port)]
        environment = {**os.environ, "REDISCLI_AUTH": password}
        folder = os.urandom(DASHBOARD_CLIENT_MAX_SIZE)
        for number in range(FOLDERS):
            subprocess.run(
                [*ask, "-x", "HSET", "packages", str(number)], input=folder, env=environment, check=True, timeout=60,
                capture_output=True,
            )  # fmt: skip
        told = subprocess.run([*ask, "INFO", "server"], env=environment, check=True, capture_output=True, text=True)
        process = re.search(r"process_id:(\d+)", told.stdout)
        assert process is not None
        most = re.search(r"VmHWM:\s*(\d+) kB", Path(f"/proc/{process[1]}/status").read_text())
        assert most is not None
    assert int(most[1]) * 2**10 < in_bytes(limit)
