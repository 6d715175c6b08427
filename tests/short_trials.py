"""A function as an experiment whose trials are shorter than the start of a worker."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import raygpu


def train(config: dict[str, Any]) -> None:
    """Note this process in the folder `config["pids"]`, and report `config["x"]`."""
    time.sleep(0.02)
    (Path(config["pids"]) / f"{os.getpid()}").touch()
    raygpu.report(score=config["x"])
