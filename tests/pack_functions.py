"""Functions that the tests of raygpu.pack train, without torch: fast, and each with one behaviour to be seen."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import raygpu


def num_alive(folder: str) -> int:
    """Processes that came here, this one counted, and have not ended."""
    (Path(folder) / str(os.getpid())).touch()
    return sum(Path(f"/proc/{path.name}").exists() for path in Path(folder).iterdir())


def steady(config: dict[str, Any]) -> None:
    """Reports without end, or as many as it is told."""
    for _ in range(config.get("reports", 10**9)):
        time.sleep(config.get("pause_s", 0.002))
        raygpu.report(loss=1.0)


def raises(config: dict[str, Any]) -> None:
    """After two reports, which are those of the warm-up, or with the first one."""
    for number in range(config["after"] + 1):
        if number == config["after"]:
            raise ValueError("this training was meant to fail")
        raygpu.report(loss=1.0)


def lost(config: dict[str, Any]) -> None:
    """Its process ends without a word where it is not alone."""
    while True:
        if num_alive(config["folder"]) > config["room"]:
            os._exit(7)
        time.sleep(0.002)
        raygpu.report(loss=1.0)


def crowded(config: dict[str, Any]) -> None:
    """The device holds `room` processes."""
    if num_alive(config["folder"]) > config["room"]:
        raise MemoryError
    steady(config)


def silent(config: dict[str, Any]) -> None:
    """No report at all."""
