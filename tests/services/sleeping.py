"""Sweeps of a rehearsed cluster from outside, whose trials only sleep: what becomes of them shows when one looks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from raygpu.storage import Storage
from tests.services.manifests import ROOT
from tests.services.rehearsal import USER, Rehearsal

RUNS = "s3://raygpu/runs"
TRIALS = (1, 2)
"""The x of each."""
PROJECT = """
import json, os, time
import ray, raygpu

def train(config):
    state = raygpu.load({"epoch": 0})
    for epoch in range(state["epoch"], config["epochs"]):
        time.sleep(1)
        with open(config["marks"], "a") as marks:
            line = {"at": time.time(), "x": config["x"], "epoch": epoch + 1, "node": ray.util.get_node_ip_address()}
            marks.write(json.dumps(line | {"pid": os.getpid()}) + chr(10))
        raygpu.checkpoint({"epoch": epoch + 1})
        raygpu.report(score=float(epoch))
"""
CONFIGURATION = """
experiment = "sleeping:train"
metric = "score"
direction = "max"
checkpoint_s = 1

[search]
algorithm = "grid"

[gpu]
fraction = 0.5

[space]
x = {{ grid_search = [1, 2] }}
epochs = {epochs}
marks = "{marks}"
"""


class Sleeping:
    """A sweep of two trials that sleep, and what they marked."""

    def __init__(self, whole: Rehearsal, folder: Path, name: str, epochs: int) -> None:
        """Begins it. epochs: of each, a second long."""
        self.whole, self.name, self.folder = whole, name, folder / name
        self.folder.mkdir()
        self.marks = self.folder / "marks"
        (self.folder / "sleeping.py").write_text(PROJECT)
        (self.folder / "sleeping.toml").write_text(CONFIGURATION.format(epochs=epochs, marks=self.marks))
        self.began = time.time()
        words = ["sweep", "sleeping.toml", "--name", name, "--storage", RUNS]
        self.process = submitted(whole, words, self.folder)

    def seen(self) -> list[dict[str, Any]]:
        lines = self.marks.read_text().splitlines() if self.marks.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def wait(self, condition: Callable[[list[dict[str, Any]]], bool]) -> None:
        while not condition(self.seen()):
            if self.process.poll() is not None:
                raise SystemExit(f"{self.name} ended too early:\n{self.process.communicate()[0]}")
            time.sleep(0.1)

    def under_way(self, epochs: int) -> None:
        """Until each trial has done that many."""
        self.wait(lambda seen: all(sum(mark["x"] == x for mark in seen) >= epochs for x in TRIALS))

    def resume(self) -> None:
        self.process = submitted(self.whole, ["sweep", "--resume", f"{RUNS}/{self.name}"], self.folder)

    def end(self) -> str:
        return ended(self.process, 0)

    def result(self, lost_at: float | None = None, trials: set[int] | None = None) -> dict[str, Any]:
        """Its time, and how the trials that were lost went on."""
        seen, summary = self.seen(), json.loads((Storage.at(RUNS) / self.name).read("summary.json"))
        found: dict[str, Any] = {
            "completed": summary["completed"],
            "retries": summary["retries"],
            "from first to last epoch, s": round(seen[-1]["at"] - seen[0]["at"], 1),
            "epochs done twice": len(seen) - len({(mark["x"], mark["epoch"]) for mark in seen}),
        }
        if lost_at is not None:
            again = [min(m["at"] for m in seen if m["x"] == x and m["at"] > lost_at + 1.5) for x in trials or TRIALS]
            found["lost trials train again after, s"] = round(max(again) - lost_at, 1)
        return found

    def epochs_in_mlflow(self) -> int:
        """The steps of all trials' scores that MLflow has."""
        runs = self.whole.runs("raygpu")
        (parent,) = (run for run in runs if run["info"]["run_name"] == self.name)
        of = {"key": "mlflow.parentRunId", "value": parent["info"]["run_id"]}
        children = [run["info"]["run_id"] for run in runs if of in run["data"]["tags"]]
        path = "/api/2.0/mlflow/metrics/get-history?max_results=1000&metric_key=score&run_id="
        found = [self.whole.ask(path + run_id, user=USER)[1]["metrics"] for run_id in children]
        return sum(len({point["step"] for point in points}) for points in found)


def submitted(whole: Rehearsal, words: list[str], folder: Path) -> subprocess.Popen[str]:
    """From outside: all that a person has is the token, for where MLflow and the storage are, the nodes know."""
    outside = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "MLFLOW_", "RAY_"))}
    outside |= {"RAY_AUTH_TOKEN": whole.token, "RAY_AUTH_MODE": "token", "PYTHONPATH": str(ROOT)}
    return started(["-m", "raygpu.submit", *words, "--address", whole.cluster.dashboard], outside, folder)


def started(words: list[str], environment: Mapping[str, str], folder: Path) -> subprocess.Popen[str]:
    """This Python with what follows."""
    return subprocess.Popen(
        [sys.executable, *words], env=dict(environment), cwd=folder, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )  # fmt: skip


def ended(process: subprocess.Popen[str], status: int) -> str:
    """What it printed."""
    out = process.communicate(timeout=900)[0]
    assert process.returncode == status, f"it ended with {process.returncode}, not {status}:\n{out}"
    return out
