"""What a local run opens to the network: nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from raygpu.engines.cluster import ray_environment

PROJECT = """
import os
import time
from pathlib import Path

import numpy as np
import raygpu
from torch import nn

def train(config):
    for epoch in range(1000):
        Path(config["begun"]).touch()
        time.sleep(0.1)
        raygpu.report(score=epoch)

class Net(raygpu.TorchExperiment):
    def data(self):
        x = np.random.default_rng(0).normal(size=(400, 8)).astype(np.float32)
        return raygpu.Splits.of(x, (x.sum(axis=1) > 0).astype(np.int64), validation=0.2)

    def model(self, hp):
        return nn.Linear(8, 2)

    def augment(self, inputs, hp):
        if "RAY_JOB_ID" in os.environ:  # in a worker, not in the first step that is tried before Ray starts
            Path(hp["begun"]).touch()
        time.sleep(0.1)
        return inputs
"""
SWEEP = """
experiment = "project:train"
trials = 2
metric = "score"
direction = "max"
[gpu]
fraction = 0.5
[space]
begun = "{begun}"
"""
TRAINING = """
experiment = "project:Net"
epochs = 1000
metric = "accuracy"
workers = 2
[hyperparameters]
lr = 0.1
batch_size = 16
begun = "{begun}"
"""
LOOPBACK = ("127.0.0.1", "::1", "::ffff:127.0.0.1")


@pytest.mark.slow
@pytest.mark.parametrize(("command", "text"), [("sweep", SWEEP), ("train", TRAINING)])
def test_every_listener_of_a_local_run_is_on_loopback(command: str, text: str, tmp_path: Path) -> None:
    """Of a sweep's trials; of a training's ranks, which find each other by a store of torch's."""
    begun = tmp_path / "begun"
    (tmp_path / "project.py").write_text(PROJECT)
    (tmp_path / "case.toml").write_text(text.format(begun=begun))
    words = [sys.executable, "-m", f"raygpu.{command}", "case.toml", "--tracking.enabled", "false"]
    outside = {name: value for name, value in os.environ.items() if name != ray_environment.ON_LOOPBACK}
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(words, cwd=tmp_path, stdout=log, stderr=log, env=outside)
    try:
        seen, deadline = set[tuple[str, str]](), time.monotonic() + 300
        while not begun.exists():
            assert process.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < deadline, (tmp_path / "log").read_text()
            seen |= listeners(psutil.Process(process.pid))
            time.sleep(0.2)
        for _ in range(10):
            seen |= listeners(psutil.Process(process.pid))
            time.sleep(0.2)
    finally:
        process.terminate()
        process.wait(120)
    names = {name for name, _ in seen}
    assert {"gcs_server", "raylet"} <= names
    assert command != "train" or any(name.startswith("ray::") and "Train" in name for name in names), names
    assert not {(name, address) for name, address in seen if address not in LOOPBACK}


def listeners(parent: psutil.Process) -> set[tuple[str, str]]:
    """The name and address of each listener of a process and its children."""
    found = set()
    for process in [parent, *parent.children(recursive=True)]:
        try:
            name = Path((process.cmdline() or [""])[0]).name
            listening = [c for c in process.net_connections("inet") if c.status == psutil.CONN_LISTEN]
        except psutil.Error:
            continue
        found |= {(name, connection.laddr.ip) for connection in listening}
    return found
