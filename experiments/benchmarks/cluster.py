"""A cluster by HTTP alone: what a submit costs, and what becomes of trials when something is lost.

    python -m experiments.benchmarks.cluster [--rounds 3] [--trials 16] [--epochs 5]

The composition of deploy/kubernetes/overlays/dev as processes on this machine (PostgreSQL, MLflow with users, object
storage, a Ray head that takes no trials, nodes of one simulated GPU), as tests/services/rehearsal.py starts it. Then
- the same sweep submitted from outside and run in place, beside each other in turn, each alone on the machine;
- trials that sleep a second an epoch and keep a checkpoint each: undisturbed, with the node killed that runs them, with
  the driver killed and the sweep resumed, with the head killed, started again and the sweep resumed, and with MLflow
  away for a minute.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from experiments.benchmarks import record
from tests.services.manifests import ROOT, pods
from tests.services.ray_cluster import HEAD
from tests.services.rehearsal import OVERLAY, WORKER, Rehearsal, rehearsal
from tests.services.sleeping import RUNS, Sleeping, ended, started, submitted

SECOND = "127.0.0.13"
AWAY_S = 60
KILLED = 128 + signal.SIGKILL
"""A job's own exit code is that of submit."""
EPOCHS, UNDER_WAY = 60, 10
"""Of a trial that sleeps; done before anything is lost."""


def in_place(whole: Rehearsal, words: list[str], folder: Path) -> subprocess.Popen[str]:
    """On the head: in its environment, without a job."""
    head = next(pod for pod in pods(OVERLAY) if pod.name == "RayCluster/raygpu head").container("ray-head")
    inside = {**whole.cluster.environment, **whole.variables(head), "PYTHONPATH": str(ROOT)}
    return started(["-m", f"raygpu.{words[0]}", *words[1:], "--cluster.address", whole.cluster.address], inside, folder)


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
    fault = Sleeping(whole, folder, "lost-node", EPOCHS)
    fault.under_way(UNDER_WAY)
    node = fault.seen()[-1]["node"]
    lost = {mark["x"] for mark in fault.seen()[-4:] if mark["node"] == node}
    at = time.time()
    whole.cluster.kill(node)
    fault.end()
    return {"trials on it": len(lost)} | fault.result(at, lost)


def lost_driver(whole: Rehearsal, folder: Path) -> dict[str, Any]:
    fault = Sleeping(whole, folder, "lost-driver", EPOCHS)
    fault.under_way(UNDER_WAY)
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
    fault.resume()
    fault.end()
    return {
        "submit tells of it after, s": round(told, 1),
        "trials train on for, s": round(max(0.0, gone), 1),
        "train again after --resume, s": round(
            min(mark["at"] for mark in fault.seen() if mark["at"] > resumed) - resumed, 1
        ),
    } | fault.result()


def lost_head(whole: Rehearsal, folder: Path) -> dict[str, Any]:
    """And started again at once, as its pod is: the worker stays, and the state is in Redis."""
    fault = Sleeping(whole, folder, "lost-head", EPOCHS)
    fault.under_way(UNDER_WAY)
    at = time.time()
    whole.cluster.kill(HEAD)
    whole.start_head()
    answers = time.time() - at
    while WORKER not in whole.cluster.alive():
        time.sleep(0.1)
    joined = time.time() - at
    fault.process.communicate(timeout=900)
    resumed = time.time()
    fault.resume()
    fault.end()
    return {
        "the dashboard answers again after, s": round(answers, 1),
        "its worker is back after, s": round(joined, 1),
        "submit ends with": fault.process.returncode,
        "train again after --resume, s": round(
            min(mark["at"] for mark in fault.seen() if mark["at"] > resumed) - resumed, 1
        ),
    } | fault.result()


def lost_mlflow(whole: Rehearsal, folder: Path) -> dict[str, Any]:
    fault = Sleeping(whole, folder, "lost-mlflow", EPOCHS)
    fault.under_way(UNDER_WAY)
    with whole.mlflow_away():
        time.sleep(AWAY_S)
    out = fault.end()
    return fault.result() | {
        "epochs in MLflow": fault.epochs_in_mlflow(),
        "of": 2 * EPOCHS,
        "what the sweep said": [line for line in out.splitlines() if "MLflow" in line],
    }


def undisturbed(whole: Rehearsal, folder: Path) -> dict[str, Any]:
    fault = Sleeping(whole, folder, "undisturbed", EPOCHS)
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
        for act in (undisturbed, lost_mlflow, lost_driver, lost_head, lost_node):
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
