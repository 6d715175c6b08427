"""A person's folder on the login node of a real Slurm, with a sweep whose epochs leave marks."""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.services.slurm import Slurm

PROJECT = """
import os
import time
from pathlib import Path

import raygpu

def train(config):
    state = raygpu.load({"epoch": 0})
    for epoch in range(state["epoch"], config["epochs"]):
        time.sleep(config["seconds"])
        with open(config["marks"], "a") as file:
            file.write(f"{config['x']:.6f} {epoch} {os.environ.get('SLURM_JOB_ID')}\\n")
        raygpu.checkpoint({"epoch": epoch + 1})
        raygpu.report(score=epoch + config["x"])
"""
CONFIGURATION = """
experiment = "project:train"
trials = 2
metric = "score"
direction = "max"
checkpoint_s = 2

[gpu]
fraction = 0.5

[space]
x = {{ uniform = [0.0, 1.0] }}
epochs = {epochs}
seconds = {seconds}
marks = "{folder}/marks"

[slurm]
cpus_per_task = 2
mem = "3G"
signal_s = 20
"""


class Project:
    """A person's folder on the login node."""

    def __init__(self, folder: Path, cluster: Slurm, new_store: Callable[[Path], str] | None = None) -> None:
        """new_store: makes the MLflow store that the first job would make."""
        self.folder, self.cluster = folder, cluster
        if new_store is not None:
            new_store(folder / "runs")
        (folder / "project.py").write_text(PROJECT)

    def write(self, epochs: int, seconds: float = 0.1) -> None:
        (self.folder / "mine.toml").write_text(CONFIGURATION.format(epochs=epochs, seconds=seconds, folder=self.folder))

    def submit(self, *words: str, timeout_s: float = 300) -> subprocess.CompletedProcess[str]:
        return self.cluster.raygpu("submit", *words, cwd=self.folder, timeout_s=timeout_s)

    def started(self, *words: str) -> str:
        """Submit a sweep without following it; return Slurm's number of the job."""
        done = self.submit("sweep", "mine.toml", *words, "--detach")
        assert done.returncode == 0, done.stderr
        number = re.search(r"Submitted batch job (\d+)", done.stdout)
        assert number is not None
        return number[1]

    def marks(self) -> Counter[str]:
        """How often each epoch of each trial was trained."""
        path = self.folder / "marks"
        return (
            Counter(line.rpartition(" ")[0] for line in path.read_text().splitlines()) if path.exists() else Counter()
        )

    def log(self, name: str) -> str:
        path = self.folder / "runs" / name / "slurm" / "job.out"
        return path.read_text() if path.exists() else ""

    def record(self, name: str) -> dict[str, Any]:
        return dict(json.loads((self.folder / "runs" / name / "slurm" / "job.json").read_text()))

    def summary(self, name: str) -> dict[str, Any]:
        return dict(json.loads((self.folder / "runs" / name / "summary.json").read_text()))

    def points(self, name: str, store: Path | None = None) -> dict[str, list[int]]:
        """The epochs of each trial of a run in the store of MLflow."""
        query = """
            SELECT trial.value, metrics.step FROM metrics
            JOIN tags trial ON trial.run_uuid = metrics.run_uuid AND trial.key = 'raygpu.trial_id'
            JOIN tags parent ON parent.run_uuid = metrics.run_uuid AND parent.key = 'mlflow.parentRunId'
            JOIN tags own ON own.run_uuid = parent.value AND own.key = 'raygpu.name' AND own.value = ?
            JOIN runs ON runs.run_uuid = metrics.run_uuid AND runs.lifecycle_stage = 'active'
            WHERE metrics.key = 'score' AND metrics.step > 0 ORDER BY metrics.step
        """
        found: dict[str, list[int]] = {}
        with closing(sqlite3.connect(store or self.folder / "runs" / "mlflow.db")) as database:
            for trial_id, step in database.execute(query, (name,)):
                found.setdefault(trial_id, []).append(step)
        return found


def until(done: Callable[[], Any], limit_s: float = 120, what: str = "it") -> None:
    deadline = time.monotonic() + limit_s
    while not done():
        assert time.monotonic() < deadline, f"{what}: not within the time"
        time.sleep(0.3)
