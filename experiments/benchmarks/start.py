"""Seconds from the command to the first training step of a sweep, with the service of `raygpu up` and without, beside a
bare process: `ray.init()` and one actor that imports torch.

python -m experiments.benchmarks.start --rounds 5

The ways take turns. The moment of the step is noted by the experiment itself, in the worker. Beside the seconds, which
a busy machine stretches, the record has the seconds of CPU that the command and all of its processes have taken until
that moment, those of the service's among them.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from experiments.benchmarks import record
from experiments.digits import Mlp

MARK = "FIRST_STEP_FILE"
"""Variable with the file that the first step in a worker writes."""
WORKER = "default_worker.py"
WAIT_S = 300.0
BARE = """
import os, time
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
import ray
ray.init(log_to_driver=False, logging_level="ERROR", include_dashboard=True)
@ray.remote
class Actor:
    def begin(self):
        import torch
        open(os.environ["FIRST_STEP_FILE"], "w").write(str(time.time()))
actor = Actor.remote()
ray.get(actor.begin.remote())
"""
WAYS = {
    "process, without": ("process", False, "raygpu"),
    "process, service": ("process", True, "raygpu"),
    "process, service, by module": ("process", True, "raygpu.sweep"),
    "fused, without": ("fused", False, "raygpu"),
    "fused, service": ("fused", True, "raygpu"),
}
"""Mode, whether the service is used, and module of the command, by name."""


class Marked(Mlp):
    """The digits network, which notes the moment of a worker's first step in a file."""

    def loss(self, outputs: Any, targets: Any) -> Any:
        """Return the loss; the first call in a worker writes the file."""
        if sys.argv[0].endswith(WORKER) and (path := os.environ.get(MARK)):
            with suppress(FileExistsError):
                file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
                os.write(file, str(time.time()).encode())
                os.close(file)
        return super().loss(outputs, targets)


def main() -> None:
    """Measure all ways by turns, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--trials", type=int, default=16)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="s-") as folder:
        runs = measured(Path(folder), arguments.rounds, arguments.trials)
    medians = {
        name: {key: round(statistics.median(run[key] for run in of), 2) for key in of[0]} for name, of in runs.items()
    }
    ratios = {
        f"{name}: {key} over bare": round(found[key] / medians["bare"][key], 2)
        for name, found in medians.items()
        if name != "bare"
        for key in found
    }
    record.write("start", {"ratios": medians, "over_bare": ratios, "rounds": runs}, vars(arguments) | {"ways": WAYS})


def measured(folder: Path, rounds: int, trials: int) -> dict[str, list[dict[str, float]]]:
    """Return the seconds and the CPU seconds until the first step of each round, by way."""
    runtime = folder / "run"
    runtime.mkdir(mode=0o700)
    environment = os.environ | {"XDG_RUNTIME_DIR": str(runtime), "RAYGPU_SERVICE": "on"}
    subprocess.run([sys.executable, "-m", "raygpu", "up"], check=True, env=environment)
    try:
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in ("bare", *WAYS)}
        for number in range(rounds):
            _ready(environment)
            runs["bare"].append(_timed([sys.executable, "-c", BARE], folder, environment, f"bare-{number}", None))
            for index, (name, (mode, uses_service, module)) in enumerate(WAYS.items()):
                run = f"{mode}-{index}-{number}"
                command = [sys.executable, "-m", module, *(["sweep"] if module == "raygpu" else [])]
                command += [*_flags(folder, mode, trials), "--name", run]
                service = _ready(environment)  # also before the others: what it prepares takes their processor
                own = environment if uses_service else environment | {"RAYGPU_SERVICE": "off"}
                runs[name].append(_timed(command, folder, own, run, service if uses_service else None))
            print(number, {name: of[-1] for name, of in runs.items()}, flush=True)
        return runs
    finally:
        subprocess.run([sys.executable, "-m", "raygpu", "down", "--now"], check=True, env=environment)


def _flags(folder: Path, mode: str, trials: int) -> list[str]:
    file = folder / "sweep.toml"
    lines = [
        'experiment = "experiments.benchmarks.start:Marked"',
        'metric = "accuracy"',
        "epochs = 2",
        "[space]",
    ]
    lines += ["lr = { loguniform = [1e-3, 1.0] }", "momentum = { uniform = [0.0, 0.95] }", "hidden = 128"]
    file.write_text("\n".join([*lines, "batch_size = 32"]))
    return [
        *(str(file), "--trials", str(trials), "--gpu.mode", mode, "--runs-dir", str(folder / "runs")),
        *("--tracking.uri", f"sqlite:///{folder}/mlflow.db"),
    ]


def _ready(environment: dict[str, str]) -> psutil.Process:
    """Wait until the service is ready for the next command; return its process."""
    import json

    while True:
        told = subprocess.run(
            [sys.executable, "-m", "raygpu", "status", "--json"], capture_output=True, check=True, env=environment
        )
        state = json.loads(told.stdout)
        if state["standby"] and state["idle_workers"] == state["workers"]:
            return psutil.Process(state["pid"])
        time.sleep(1)


def _timed(
    command: list[str], folder: Path, environment: dict[str, str], name: str, service: psutil.Process | None
) -> dict[str, float]:
    """Run a command to its end, and return the seconds and CPU seconds from its start to its first step."""
    mark = folder / f"mark-{name}"
    before = _cpu_s(service) if service is not None else 0.0
    began = time.time()
    with (folder / f"{name}.txt").open("w") as output:
        process = psutil.Popen(
            command,
            env=environment | {MARK: str(mark)},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        while not mark.exists() or not mark.read_text():
            if process.poll() is not None or time.time() - began > WAIT_S:
                raise RuntimeError(f"{name}: no first step: {(folder / f'{name}.txt').read_text()[-2000:]}")
            time.sleep(0.01)
        cpu_s = _cpu_s(process) + (_cpu_s(service) - before if service is not None else 0.0)
        if process.wait(WAIT_S) != 0:
            raise RuntimeError(f"{name}: {(folder / f'{name}.txt').read_text()[-2000:]}")
    return {"seconds": float(mark.read_text()) - began, "cpu_seconds": cpu_s}


def _cpu_s(process: psutil.Process) -> float:
    """Return the CPU seconds of a process and of all that it has started, those that have ended included."""
    total = 0.0
    for each in [process, *process.children(recursive=True)]:
        with suppress(psutil.Error):
            total += sum(each.cpu_times()[:4])
    return total


if __name__ == "__main__":
    main()
