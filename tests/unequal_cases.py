"""Functions that the tests of unequal GPUs train: each tells where it ran, and when."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import ray

import raygpu


def tells_where(config: dict[str, Any]) -> None:
    """Writes what Ray gave it, and the time from its start to its end, to a file of its own."""
    node_id, gpu_ids = ray.get_runtime_context().get_node_id(), [str(gpu_id) for gpu_id in ray.get_gpu_ids()]
    began = time.time()
    # The faster type's trials take half as long.
    time.sleep(config["pause_s"] / (2 if gpu_ids == [config.get("fast")] else 1))
    told = {
        "node": node_id,
        "gpus": gpu_ids,
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "pid": os.getpid(),
        "raylet": os.getppid(),
        "began": began,
        "ended": time.time(),
    }
    Path(config["folder"], f"{config['x']}.json").write_text(json.dumps(told))
    raygpu.report(score=config["x"])


def tells_where_and_interrupts(config: dict[str, Any]) -> None:
    """Once four of them run, one presses Ctrl-C in the sweep's own process. Each tells its own pid and its node's."""
    folder = Path(config["folder"])
    (folder / f"{os.getpid()}-{os.getppid()}").touch()
    if config["x"] == 0:
        while len(list(folder.iterdir())) < 4:
            time.sleep(0.1)
        os.kill(config["driver"], signal.SIGINT)
    time.sleep(120)
