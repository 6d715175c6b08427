"""A worker is killed at a random step, three times: the parameters in the end against the undisturbed run's.

    python -m experiments.benchmarks.killed [--kills 3] [--seed 0]

Two workers over gloo, 60:40, a checkpoint an epoch. One undisturbed run, then one for each kill. Goal: equal to the
bit.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from pathlib import Path
from typing import Any

import torch

from experiments.benchmarks import record
from raygpu import train
from raygpu.config import TrainConfig

EPOCHS = 5
BATCH = 64
STEPS = 23
"""Of an epoch."""


def trained(folder: Path, name: str, **hp: Any) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The last checkpoint's parameters, and the summary."""
    config = TrainConfig.model_validate(
        {
            "name": name,
            "experiment": "experiments.benchmarks.networks:Mortal",
            "epochs": EPOCHS,
            "metric": "accuracy",
            "workers": 2,
            "ratios": "3,2",
            "global_batch": BATCH,
            "runs_dir": str(folder),
            "tracking": {"enabled": False},
            "hyperparameters": {"batch_size": 32, "lr": 0.1, "momentum": 0.9, "mark": "", "rank": 0, "step": 0} | hp,
        }
    )
    result = train.run(config)
    assert result.folder is not None
    last = sorted((result.folder / "checkpoints" / "training").glob("checkpoint_*/checkpoint.pt"))[-1]
    return torch.load(last, weights_only=True)["model"], result.summary


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        wanted, undisturbed = trained(Path(folder), "undisturbed")
        for number in range(arguments.kills):
            step, rank = draw.randrange(2, EPOCHS * STEPS), draw.randrange(2)
            mark = str(Path(folder) / f"mark-{number}")
            found, summary = trained(Path(folder), f"killed-{number}", mark=mark, rank=rank, step=step)
            largest = max(float((found[name] - wanted[name]).abs().max()) for name in wanted)
            same = summary["metrics"] == undisturbed["metrics"]
            if not summary["retries"]:
                raise SystemExit("the worker was not killed; nothing was measured")
            rows.append({"rank": rank, "step": step, "retries": summary["retries"], "largest difference": largest})
            rows[-1] |= {"metrics the same": same, "wall_s": summary["wall_s"]}
            print(rows[-1], flush=True)
    ratios = {
        "kills": sum(row["retries"] for row in rows),
        "largest difference of a parameter": max(row["largest difference"] for row in rows),
    }
    results = {"rows": rows, "undisturbed wall_s": undisturbed["wall_s"], "ratios": ratios}
    record.write("killed", results, vars(arguments) | {"epochs": EPOCHS, "steps an epoch": STEPS})


if __name__ == "__main__":
    main()
