"""A trial that takes twice its share of the memory, among four: what becomes of it, and of its neighbours.

    python -m experiments.benchmarks.greedy

Four trials at a quarter of a device each; on a machine without a GPU, of the host's memory. From its second epoch on
one of them holds twice its share. The same sweep without it is what the neighbours are compared with.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

import raygpu
from experiments.benchmarks import record
from raygpu.devices import host
from raygpu.devices.nvml import gpus

SHARES = 4
EPOCHS = 8


def train(config: dict[str, Any]) -> None:
    """A second of work an epoch; `gib` of memory are held from the second epoch on."""
    held: Any = None
    done = raygpu.load(0)
    for epoch in range(done + 1, EPOCHS + 1):
        if epoch == 2 or (held is None and epoch > 2):
            held = _hold(config["gib"])
        for _ in range(40):
            np.linalg.norm(np.random.default_rng(epoch).normal(size=(400, 400)))
        raygpu.checkpoint(epoch)
        raygpu.report(score=epoch, went_on_from=done)


def _hold(gib: float) -> Any:
    if gpus():
        import torch

        return torch.ones(int(gib * 2**30 / 4), device="cuda")
    return np.ones(int(gib * 2**30 / 8))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.parse_args()
    found = gpus()
    share_gib = (found[0].memory_gib if found else host.available_memory_gib()) / SHARES
    with tempfile.TemporaryDirectory(prefix="raygpu-bench-") as folder:
        alone = run(Path(folder), "without", [0.01] * SHARES)
        greedy = run(Path(folder), "greedy", [0.01, 2 * share_gib, 0.01, 0.01])
    ratios = {
        "completed of 4": greedy["completed"],
        "out of memory, and again with a larger share": greedy["out_of_memory"],
        "workers lost": greedy["retries"],
        "failed": greedy["failed"],
        "neighbours that reported every epoch once": greedy["undisturbed"],
    }
    configuration = {"share_gib": round(share_gib, 2), "asked_gib": round(2 * share_gib, 2), "epochs": EPOCHS}
    record.write("greedy", {"without": alone, "greedy": greedy, "ratios": ratios}, configuration)


def run(folder: Path, name: str, gib: list[float]) -> dict[str, Any]:
    """One sweep as a command."""
    path = folder / f"{name}.toml"
    values = {
        "experiment": "experiments.benchmarks.greedy:train",
        "metric": "score",
        "epochs": EPOCHS,
        "search": {"algorithm": "grid"},
        "checkpoint_s": 0.1,
        "space": {"gib": {"grid_search": gib}},
        "gpu": {"mode": "process", "fraction": 1 / SHARES},
    }
    path.write_text(tomli_w.dumps(values))
    command = [sys.executable, "-m", "raygpu.sweep", str(path), "--json", "--runs-dir", str(folder / "runs")]
    command += ["--name", name, "--tracking.uri", f"sqlite:///{folder}/mlflow.db"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    summary = json.loads(done.stdout)
    return {
        **{key: summary[key] for key in ("completed", "failed", "retries", "out_of_memory", "wall_s")},
        "undisturbed": undisturbed(f"sqlite:///{folder}/mlflow.db", summary["tracking"]["run_id"]),
    }


def undisturbed(uri: str, run_id: str) -> int:
    """The trials that began once and went through."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(uri)
    experiment = client.get_run(run_id).info.experiment_id
    runs = client.search_runs([experiment], f"tags.`mlflow.parentRunId` = '{run_id}'")
    return sum(
        run.data.metrics["went_on_from"] == 0
        and "raygpu.out_of_memory" not in run.data.tags
        and len(client.get_metric_history(run.info.run_id, "score")) == EPOCHS
        for run in runs
    )


if __name__ == "__main__":
    main()
