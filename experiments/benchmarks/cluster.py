"""A cluster by HTTP alone: what a submit costs, and what becomes of trials when something is lost.

    python -m experiments.benchmarks.cluster [--rounds 3] [--trials 16] [--epochs 5]

The composition of deploy/kubernetes/overlays/dev as processes on this machine (PostgreSQL, MLflow with users, object
storage, a Ray head that takes no trials, nodes of one simulated GPU), as tests/services/rehearsal.py starts it. Then
- the same sweep submitted from outside and run in place, beside each other in turn, each alone on the machine;
- trials that sleep a second an epoch and keep a checkpoint each, undisturbed; with the node killed that runs them; with
  the driver killed and the sweep resumed; with MLflow away for a minute.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from experiments.benchmarks import record
from raygpu.storage import Storage
from tests.services.manifests import ROOT, pods
from tests.services.rehearsal import OVERLAY, WORKER, Rehearsal, rehearsal

RUNS = "s3://raygpu/runs"
SECOND = "127.0.0.13"
AWAY_S = 60
KILLED = 128 + signal.SIGKILL
"""A job's own exit code is that of submit."""
EPOCHS = 60
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


class Fault:
    """A sweep of two trials that sleep, and what they marked."""

    def __init__(self, whole: Rehearsal, folder: Path, name: str) -> None:
        self.whole, self.name, self.folder = whole, name, folder / name
        self.folder.mkdir()
        self.marks = self.folder / "marks"
        (self.folder / "sleeping.py").write_text(PROJECT)
        (self.folder / "sleeping.toml").write_text(CONFIGURATION.format(epochs=EPOCHS, marks=self.marks))
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

    def under_way(self) -> None:
        """Until each trial has done ten epochs."""
        self.wait(lambda seen: all(sum(mark["x"] == x for mark in seen) >= 10 for x in (1, 2)))

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
            again = [min(m["at"] for m in seen if m["x"] == x and m["at"] > lost_at + 1.5) for x in trials or {1, 2}]
            found["lost trials train again after, s"] = round(max(again) - lost_at, 1)
        return found

    def epochs_in_mlflow(self) -> int:
        """The steps of all trials' scores that MLflow has."""
        runs = self.whole.runs("raygpu")
        (parent,) = (run for run in runs if run["info"]["run_name"] == self.name)
        of = {"key": "mlflow.parentRunId", "value": parent["info"]["run_id"]}
        children = [run["info"]["run_id"] for run in runs if of in run["data"]["tags"]]
        path = "/api/2.0/mlflow/metrics/get-history?max_results=1000&metric_key=score&run_id="
        found = [self.whole.ask(path + run_id, user="raygpu")[1]["metrics"] for run_id in children]
        return sum(len({point["step"] for point in points}) for points in found)


def submitted(whole: Rehearsal, words: list[str], folder: Path) -> subprocess.Popen[str]:
    """From outside: all that it has is the token."""
    outside = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "MLFLOW_", "RAY_"))}
    outside |= {"RAY_AUTH_TOKEN": whole.token, "RAY_AUTH_MODE": "token", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "raygpu.submit", *words, "--address", whole.cluster.dashboard]
    return _started(command, outside, folder)


def in_place(whole: Rehearsal, words: list[str], folder: Path) -> subprocess.Popen[str]:
    """On the head: in its environment, without a job."""
    head = next(pod for pod in pods(OVERLAY) if pod.name == "RayCluster/raygpu head").container("ray-head")
    inside = {**whole.cluster.environment, **whole.variables(head), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", f"raygpu.{words[0]}", *words[1:], "--cluster.address", whole.cluster.address]
    return _started(command, inside, folder)


def _started(command: list[str], environment: dict[str, str], folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command, env=environment, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def ended(process: subprocess.Popen[str], status: int) -> str:
    out = process.communicate(timeout=900)[0]
    if process.returncode != status:
        raise SystemExit(f"it ended with {process.returncode}, not {status}:\n{out}")
    return out


def compared(whole: Rehearsal, arguments: argparse.Namespace) -> list[dict[str, float]]:
    """Seconds of the same sweep in both ways, in turn."""
    rows = []
    for number in range(arguments.rounds):
        row = {}
        for way in (in_place, submitted) if number % 2 else (submitted, in_place):
            words = ["sweep", "conf/sweep/digits.toml", "--trials", str(arguments.trials)]
            words += ["--epochs", str(arguments.epochs), "--storage", RUNS, "--name", f"{way.__name__}-{number}"]
            began = time.monotonic()
            ended(way(whole, words, ROOT), 0)
            row[way.__name__] = round(time.monotonic() - began, 2)
        rows.append(row)
        print(row, flush=True)
    return rows


def lost_node(whole: Rehearsal, folder: Path) -> dict[str, Any]:
    fault = Fault(whole, folder, "lost-node")
    fault.under_way()
    node = fault.seen()[-1]["node"]
    lost = {mark["x"] for mark in fault.seen()[-4:] if mark["node"] == node}
    at = time.time()
    whole.cluster.kill(node)
    fault.end()
    return {"trials on it": len(lost)} | fault.result(at, lost)


def lost_driver(whole: Rehearsal, folder: Path) -> dict[str, Any]:
    fault = Fault(whole, folder, "lost-driver")
    fault.under_way()
    workers = {mark["pid"] for mark in fault.seen()[-4:]}
    at = time.time()
    for process in psutil.process_iter(["cmdline"]):
        if process.info["cmdline"][1:] == ["-m", "raygpu.job"]:
            process.kill()
    ended(fault.process, KILLED)
    told = time.time() - at
    while any(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in workers):
        time.sleep(0.1)
    gone = max(mark["at"] for mark in fault.seen()) - at
    resumed = time.time()
    fault.process = submitted(whole, ["sweep", "--resume", f"{RUNS}/lost-driver"], fault.folder)
    fault.end()
    return {
        "submit tells of it after, s": round(told, 1),
        "trials train on for, s": round(max(0.0, gone), 1),
        "train again after --resume, s": round(
            min(mark["at"] for mark in fault.seen() if mark["at"] > resumed) - resumed, 1
        ),
    } | fault.result()


def lost_mlflow(whole: Rehearsal, folder: Path) -> dict[str, Any]:
    fault = Fault(whole, folder, "lost-mlflow")
    fault.under_way()
    with whole.mlflow_away():
        time.sleep(AWAY_S)
    out = fault.end()
    return fault.result() | {
        "epochs in MLflow": fault.epochs_in_mlflow(),
        "of": 2 * EPOCHS,
        "what the sweep said": [line for line in out.splitlines() if "MLflow" in line],
    }


def undisturbed(whole: Rehearsal, folder: Path) -> dict[str, Any]:
    fault = Fault(whole, folder, "undisturbed")
    fault.end()
    return fault.result()


@contextmanager
def composition(folder: Path) -> Iterator[tuple[Rehearsal, dict[str, float]]]:
    """Everything, and the seconds until the first remote sweep has ended."""
    began = time.monotonic()
    with rehearsal(folder) as whole:
        os.environ.update(whole.storage)
        words = ["sweep", "conf/sweep/digits.toml", "--trials", "16", "--epochs", "5", "--storage", RUNS]
        ended(submitted(whole, [*words, "--name", "first"], ROOT), 0)
        took = {**whole.took_s, "first sweep finished": time.monotonic() - began}
        yield whole, {name: round(value, 1) for name, value in took.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=5)
    arguments = parser.parse_args()
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # object storage tells of each request
    with tempfile.TemporaryDirectory() as name, composition(Path(name)) as (whole, took):
        print(took, flush=True)
        folder = Path(name)
        rows = compared(whole, arguments)
        found: dict[str, Any] = {}
        for act in (undisturbed, lost_mlflow, lost_driver, lost_node):
            if act is lost_node:
                whole.cluster.add_node(SECOND, num_cpus=2, num_gpus=1, environment=whole.worker)
            found[act.__name__.replace("_", " ")] = act(whole, folder)
            print(act.__name__, found[act.__name__.replace("_", " ")], flush=True)
    extra = [row["submitted"] - row["in_place"] for row in rows]
    ratios = {
        "submitted over in place, median of rounds": round(
            median(row["submitted"] / row["in_place"] for row in rows), 3
        ),
        "seconds more, median of rounds": round(median(extra), 2),
    }
    results = {"seconds from nothing until": took, "submitted and in place, s": rows, "lost": found, "ratios": ratios}
    configuration = vars(arguments) | {"epochs of a trial that sleeps": EPOCHS, "nodes": [WORKER, SECOND]}
    record.write("cluster", results, configuration | {"MLflow away, s": AWAY_S})


if __name__ == "__main__":
    main()
