"""raygpu.train against the same training without Ray, by hand: steady samples/s of two workers.

    python -m experiments.benchmarks.production [--devices simulated,processors] [--rounds 3] [--seconds 12]

torch: DistributedDataParallel under torchrun, written as PyTorch's tutorial has it (`torchrun_loop`). Keras: raygpu's
own step in two plain processes. Both by turns with raygpu.train, the same model, data, batches and threads; of each run
the median of its exchanges, or of its seconds. Goal: 0.975.

simulated: a small network, beside a wait as long as a device would take. processors: a network that keeps both CPUs of
a small machine busy, where what Ray's own processes use (a sixth of one core, in twenty processes) is taken from it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from experiments.benchmarks import record
from experiments.benchmarks.ranks import on_keras_ranks
from raygpu import train
from raygpu.cli.training_view import TrainConsole
from raygpu.config import TrainConfig
from raygpu.records.training_progress import ControlRequest, Progress
from raygpu.training.distributed.coordinator import FIRST
from raygpu.training.distributed.ranks import ParallelSettings

BATCH = 128
"""Of each worker."""
HP = {
    "simulated": {"channels": 1, "layers": 1, "lr": 0.01, "batch_size": BATCH, "samples_per_s": 4000},
    "processors": {"channels": 16, "layers": 4, "lr": 0.01, "batch_size": BATCH, "samples_per_s": 0},
}
NETWORKS = {"torch": "Long", "keras": "KerasLong"}


class Listener(TrainConsole):
    """Keeps what each exchange told, and stops the training after `seconds` of them."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds, self.told = seconds, dict[tuple[int, int], Progress]()

    def update(self, history: Any, readings: Any, trouble: str | None = None) -> None:
        super().update(history, readings, trouble)
        if history.last is not None:
            self.told[history.last.epoch, history.last.step] = history.last
        enough = len(self.told) > len(FIRST) + 1
        if enough and sum(progress.wall_s for progress in self.told.values()) > self.seconds:
            self.seconds = float("inf")
            os.kill(os.getpid(), signal.SIGINT)  # as Ctrl-C, which the training ends by itself

    def rate(self) -> float:
        return steady(list(self.told.values()))


def steady(told: list[Progress]) -> float:
    """The median of the exchanges after the first ones, by samples/s."""
    return median(sum(progress.samples) / progress.wall_s for progress in told[len(FIRST) :])


def by_raygpu(framework: str, hp: dict[str, Any], seconds: float) -> float:
    with tempfile.TemporaryDirectory() as folder:
        config = TrainConfig.model_validate(
            {
                "experiment": f"experiments.benchmarks.networks:{NETWORKS[framework]}",
                "epochs": 1000,
                "metric": "accuracy",
                "workers": 2,
                "runs_dir": f"{folder}/runs",
                "tracking": {"uri": f"sqlite:///{folder}/mlflow.db"},
                "hyperparameters": hp,
            }
        )
        listener = Listener(seconds)
        train.run(config, console=listener)
        return listener.rate()


def by_hand(framework: str, hp: dict[str, Any], seconds: float) -> float:
    if framework == "keras":
        return float(on_keras_ranks(2, keras_loop, hp, seconds)[0])
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    command += ["-m", "experiments.benchmarks.torchrun_loop", json.dumps(hp), str(seconds)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout.strip().splitlines()[-1])


def keras_loop(ranks: Any, hp: dict[str, Any], seconds: float) -> float:
    from experiments.benchmarks.networks import KerasLong
    from raygpu.search.trials import Trial
    from raygpu.training.base import Settings
    from raygpu.training.distributed.keras_ranks import KerasParallel

    experiment, settings = KerasLong(), Settings(epochs=1000, threads=1, precision="float32", folder=Path())
    told: list[Progress] = []

    def over() -> ControlRequest:  # asked on rank 0 alone: all ranks stop at the same exchange
        return "stop" if sum(progress.wall_s for progress in told) > seconds else ""

    what = experiment, experiment.data(), Trial("t0000", 0, hp), settings, ParallelSettings(2 * BATCH), ranks
    own = KerasParallel(*what, request=over)
    while not told or told[-1].request != "stop":
        progress = own.advance()
        assert progress is not None
        told.append(progress)
    return steady(told)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--frameworks", default="torch,keras")
    parser.add_argument("--devices", default="simulated,processors")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=12.0)
    arguments = parser.parse_args()
    ways: dict[str, Callable[..., float]] = {"raygpu.train": by_raygpu, "by hand": by_hand}
    results: dict[str, Any] = {"ratios": {}}
    for framework, devices in itertools.product(arguments.frameworks.split(","), arguments.devices.split(",")):
        rows = []
        for number in range(arguments.rounds):
            turns = list(ways.items()) if number % 2 == 0 else list(ways.items())[::-1]
            rows.append({name: way(framework, HP[devices], arguments.seconds) for name, way in turns})
            print(framework, devices, rows[-1], flush=True)
        results[f"{framework}, {devices}"] = rows
        ratio = median(row["raygpu.train"] / row["by hand"] for row in rows)
        results["ratios"][f"{framework}, {devices}: raygpu.train / by hand"] = round(ratio, 3)
    part = arguments.devices if "," not in arguments.devices else None
    record.write("production", results, vars(arguments) | {"batch of each worker": BATCH, "hyperparameters": HP}, part)


if __name__ == "__main__":
    main()
