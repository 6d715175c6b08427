"""Functions for production trainings: one that walks, and may be killed or interrupted; some that end early or fail."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import raygpu


def walk(config: dict[str, Any]) -> None:
    """Take random steps by the trial's seed, and go on from the last checkpoint, made at every report or less often.

    `folder`: where the dict it got is written to, for each start. `killed_at`, `interrupted_at`: the epoch in which the
    worker dies, or the driver (`driver`) is interrupted, once each.
    """
    if "folder" in config:
        with (Path(config["folder"]) / f"{config.get('label', 'starts')}.jsonl").open("a") as file:
            file.write(json.dumps(config) + "\n")
    epoch, x = raygpu.load((0, 0.0))
    while epoch < config["epochs"]:
        x += random.Random(f"{config['seed']} {epoch}").gauss(0, 1) * config["step"]
        epoch += 1
        if epoch == config.get("killed_at"):
            _once(Path(config["folder"]) / "killed", os.getpid(), signal.SIGKILL)
        if epoch == config.get("interrupted_at"):
            _once(Path(config["folder"]) / "interrupted", config["driver"], signal.SIGINT)
        if (epoch - 1) % config.get("every", 1) == 0:
            raygpu.checkpoint((epoch, x))
        raygpu.report(score=x, loss=1 / (1 + x * x))


def _once(mark: Path, process: int, number: signal.Signals) -> None:
    """Send a signal once, after the driver has had the time to take in the last checkpoint, and wait for its effect."""
    if not mark.exists():
        mark.touch()
        time.sleep(2.0)
        os.kill(process, number)
        time.sleep(3.0)


def patient(config: dict[str, Any]) -> None:
    """End by itself after the second report, in whose score it is best."""
    for epoch in (1, 2):
        raygpu.checkpoint({"epoch": epoch})
        raygpu.report(score=float(epoch))


def forgetful(config: dict[str, Any]) -> dict[str, float]:
    """Report once, and make no checkpoint."""
    return {"score": 3.0}


def fails_until_mended(config: dict[str, Any]) -> None:
    """Raise an error in the second epoch, unless there is a file `mended`."""
    for epoch in range(raygpu.load(0), config["epochs"]):
        if epoch == 1 and not (Path(config["folder"]) / "mended").exists():
            raise ValueError(f"this function was meant to fail, with {raygpu.__file__}")
        raygpu.checkpoint(epoch + 1)
        raygpu.report(score=float(epoch))
