"""Functions that the sweep tests train: fast, torch-free, and each with one behaviour to be seen."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import raygpu


def behave(config: dict[str, Any]) -> None:
    """As `config["kind"]` says: good, raises, exits, silent, diverges, sparse."""
    kind = config["kind"]
    if kind == "raises":
        raise ValueError("this trial was meant to fail")
    if kind == "exits":
        sys.exit(3)
    if kind == "silent":
        return
    if kind == "sparse":
        raygpu.report(score=0.05)
        raygpu.report(note=1.0)
        return
    for epoch in range(1, 4):
        bad = kind == "diverges" and epoch == 2
        raygpu.report(score=math.nan if bad else epoch / 10, samples_per_s=1000.0)


def ramp(config: dict[str, Any]) -> None:
    """A score that tells good from bad early: `x` times the epoch."""
    for epoch in range(1, config["epochs"] + 1):
        raygpu.report(score=config["x"] * epoch)
        time.sleep(config.get("pause_s", 0.0))


def quadratic(config: dict[str, Any]) -> None:
    raygpu.report(score=-((config["x"] - 1) ** 2))


def killed_once(config: dict[str, Any]) -> None:
    """Its worker is killed at epoch 3, the first time."""
    marker = Path(config["folder"]) / f"killed-{config['x']}"
    done = raygpu.load(0)
    for epoch in range(done + 1, 6):
        if epoch == 3 and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        raygpu.checkpoint(epoch)
        raygpu.report(score=epoch, went_on_from=done)


def tells_its_process(config: dict[str, Any]) -> None:
    from raygpu.records import activity

    raygpu.checkpoint(os.getpid())
    noted = activity.living()[os.getpid()]
    raygpu.report(score=config["x"], pid=os.getpid(), noted_share=noted.share, noted_trials=len(noted.trials))


def other_metric(config: dict[str, Any]) -> None:
    raygpu.report(accuracy=1.0, loss=0.1)


def meet(config: dict[str, Any]) -> None:
    """A barrier of `config["num"]` trials: it is passed only if all of them run at once."""
    import ray

    folder = Path(config["folder"])
    node_id, (gpu_id, *_) = ray.get_runtime_context().get_node_id(), ray.get_gpu_ids()
    (folder / f"{config['x']}-{node_id}-{gpu_id}").touch()
    deadline = time.monotonic() + 900
    while len(list(folder.iterdir())) < config["num"]:
        if time.monotonic() > deadline:
            raise TimeoutError(f"only {len(list(folder.iterdir()))} trials were there at once")
        time.sleep(0.5)
    raygpu.report(score=1.0)


def counts_its_epochs(config: dict[str, Any]) -> None:
    """A line in a file for each epoch that is trained; the driver is interrupted after the third."""
    done, folder = raygpu.load(0), Path(config["folder"])
    for epoch in range(done + 1, 9):
        with (folder / f"epochs-{config['x']}").open("a") as file:
            file.write(f"{epoch}\n")
        time.sleep(config["pause_s"])
        raygpu.checkpoint(epoch)
        raygpu.report(score=epoch)
        mark = folder / "interrupted"
        if epoch == 3 and not mark.exists():
            mark.touch()
            os.kill(config["driver"], signal.SIGINT)


def another_attempt(config: dict[str, Any]) -> None:
    """Without a checkpoint: its first attempt is killed after six epochs, the second one ends after three."""
    mark = Path(config["folder"]) / f"begun-{config['x']}"
    again = mark.exists()
    mark.touch()
    for epoch in range(1, 4 if again else 7):
        raygpu.report(score=epoch / 100 if again else 1.0 + epoch)
        time.sleep(config["pause_s"])
    if not again:
        os.kill(os.getpid(), signal.SIGKILL)


def hangs_once(config: dict[str, Any]) -> None:
    """It hangs at its second epoch, with a child in a session of its own, until a file is there; `slow` never ends."""
    folder = Path(config["folder"])
    raygpu.report(score=config["x"])
    if config["kind"] == "hangs" and not (folder / "mended").exists():
        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        (folder / "child").write_text(str(child.pid))
        time.sleep(600)
    epoch = 1
    while epoch < 3 or (config["kind"] == "slow" and not (folder / "mended").exists()):
        epoch += 1
        time.sleep(0.2)
        raygpu.report(score=config["x"] + epoch)


def fails_until_mended(config: dict[str, Any]) -> None:
    if not (Path(config["folder"]) / "mended").exists():
        raise ValueError("not yet")
    raygpu.report(score=1)


def noisy(config: dict[str, Any]) -> None:
    """A score of `x` with noise by the seed, which sets have in common; the second repeat of `x` = 3 fails at first."""
    noise = config["seed"] % 1000 / 10_000
    if config["x"] == 3 and config["seed"] in config["bad_seeds"] and not Path(config["mended"]).exists():
        raise ValueError("a bad seed")
    for epoch in range(1, 3):
        raygpu.checkpoint(config["seed"])
        raygpu.report(score=config["x"] * epoch / 2 + noise + config["x"] * noise / 100)
