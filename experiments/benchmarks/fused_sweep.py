"""What fused mode comes to: whole commands, many trials, early stopping, and memory.

    python -m experiments.benchmarks.fused_sweep [--only command,many,halving,memory] [--rounds 2] [--most 10000]

command  256 trials, tracked, beside the same sweep by hand on Ray Tune and beside a plain loop
many     the wall time of a trial and the driver's memory as the number of trials grows
halving  an array whose losers are dropped, beside the time that its survivors alone would take
memory   a trial's share of an array's process, beside a process for each trial

Rounds are interleaved, and every second one runs backwards. Each part has a record of its own, with every number; the
ratios are medians of the rounds' own ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from typing import Any

from experiments.benchmarks import record
from experiments.benchmarks.fresh import Fresh, together, wait_for_the_word
from experiments.benchmarks.fused_command import CONFIGURATION, WAYS, command, fused
from experiments.digits import Mlp
from raygpu.config import SweepConfig, load
from raygpu.devices.host import num_cpus
from raygpu.search.halving import Halving
from raygpu.search.space import parse, random_trials
from raygpu.search.trials import Trial
from raygpu.training.base import Settings

MODULE = "experiments.benchmarks.fused_sweep"
BY_HAND_TRIALS = (32, 64)
"""How many trials the sweep by hand is measured at."""
PLAIN_TRIALS = (16, 32)
"""And the plain loop."""
MANY_TRIALS = (100, 1_000, 10_000)
MANY_EPOCHS = 5
GRACE_EPOCHS, REDUCTION = 2, 3.0
NUM_ALONE = 4
"""Processes whose memory is looked at."""
MEMORY_EPOCHS = 3
REPEATS = 3
"""Of what is timed within one process."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--trials", type=int, default=256, help="command: of the fused sweep")
    parser.add_argument("--epochs", type=int, default=20, help="command, halving: of each trial")
    parser.add_argument("--fraction", type=float, default=0.2, help="command: of the GPU, for each trial by hand")
    parser.add_argument("--by-hand", default=",".join(map(str, BY_HAND_TRIALS)), help="command: trials measured at")
    parser.add_argument("--ways", default=";".join(WAYS), help="command: what the fused sweep is compared with")
    parser.add_argument("--plain", default=",".join(map(str, PLAIN_TRIALS)), help="command: trials measured at")
    parser.add_argument("--most", type=int, default=max(MANY_TRIALS), help="many: the largest number of trials")
    parser.add_argument("--array", type=int, default=64, help="halving: members of the array")
    parser.add_argument("--members", type=int, default=256, help="memory: members of the array")
    parser.add_argument("--one", default=None, help="a case as JSON: measure it in this process")
    arguments = parser.parse_args()
    if arguments.one:
        case = json.loads(arguments.one)
        part = case.pop("part")
        print(json.dumps(halved(**case) if part == "halving" else trained(**case)))
        return
    configuration = {name: value for name, value in vars(arguments).items() if name != "one"}
    for part in arguments.only.split(","):
        with tempfile.TemporaryDirectory(prefix="raygpu-bench-") as folder:
            found = PARTS[part](Path(folder), arguments)
        record.write("fused_sweep", found, configuration, part)


# --- many


def many(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Wall time of a trial and the driver's peak memory, at more and more trials."""
    store = f"sqlite:///{folder}/mlflow.db"
    watched(fused(folder, "store", 2, 1, store))
    counts = [count for count in MANY_TRIALS if count <= arguments.most] or [arguments.most]
    sweeps = {count: watched(fused(folder, f"many-{count}", count, MANY_EPOCHS, store)) for count in counts}
    for count, sweep in sweeps.items():
        sweep["wall_ms_per_trial"] = round(1e3 * sweep["wall_s"] / count, 1)
    for fewer, more in pairwise(counts):
        seconds = sweeps[more]["wall_s"] - sweeps[fewer]["wall_s"]
        sweeps[more]["wall_ms_per_further_trial"] = round(1e3 * seconds / (more - fewer), 1)
        grown = sweeps[more]["driver_peak_mib"] - sweeps[fewer]["driver_peak_mib"]
        sweeps[more]["driver_kib_per_further_trial"] = round(1024 * grown / (more - fewer), 1)
    first, last = counts[0], counts[-1]
    found: dict[str, Any] = {"epochs": MANY_EPOCHS, "sweeps": sweeps, "ratios": {}}
    if first != last:
        for name, key in (("wall time of a trial", "wall_ms_per_trial"), ("driver's peak memory", "driver_peak_mib")):
            ratio = sweeps[last][key] / sweeps[first][key]
            found["ratios"][f"many: {name}, {last} trials / {first}"] = round(ratio, 3)
    return found


def watched(words: list[str]) -> dict[str, Any]:
    """Run a sweep to its end: wall seconds, the stages, and the peak of its own process's resident memory.

    driver_peak_mib: the last VmHWM that was seen of the process. largest_process_mib: wait4's ru_maxrss, which counts
    the largest one of the process and the descendants that it has waited for.
    """
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        started = time.monotonic()
        process = subprocess.Popen([sys.executable, "-m", *words], stdout=output, stderr=errors)
        peak_kib = 0
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            peak_kib = max(peak_kib, status_kib(process.pid, "VmHWM"))
            time.sleep(0.1)
        wall_s = time.monotonic() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        errors.seek(0)
        if process.returncode:
            raise RuntimeError(f"{' '.join(words)} ended with {process.returncode}:\n{errors.read()[-3000:]}")
        summary = json.loads(output.read())
    print(f"{wall_s:7.1f} s  {' '.join(words[-3:])}, driver's peak {peak_kib / 1024:.0f} MiB", flush=True)
    return {
        "wall_s": round(wall_s, 2),
        "driver_peak_mib": round(peak_kib / 1024, 1),
        "largest_process_mib": round(usage.ru_maxrss / 1024, 1),
        "stages_s": summary["stages_s"],
        "arrays_s": summary["arrays_s"],
        "failed": summary["failed"],
        "best": summary["best"]["score"],
    }


def status_kib(pid: int, field: str) -> int:
    """A memory field of /proc/PID/status; 0 of a process that has just ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{field}:")), 0)


# --- halving


def halving(_: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """An array whose losers are dropped against the same epochs at exactly the survivors' widths."""
    case = {"part": "halving", "members": arguments.array, "epochs": arguments.epochs}
    rounds = []
    for number in range(arguments.rounds):
        [found] = together(MODULE, [case | {"ideal_first": number % 2 == 1}], num_cpus())
        print(f"{found['wall_s']:7.2f} s with drops, ideal {found['ideal_s']:.2f} s", flush=True)
        rounds.append(found)
    return {
        "how": f"steps not compiled; grace {GRACE_EPOCHS}, reduction {REDUCTION}. ideal_s: over the epochs, the sum of"
        " the median epoch of an array of exactly as many members as are left",
        "rounds": rounds,
        "ratios": {
            "halving: wall / ideal (goal <= 1.2)": round(median(r["wall_s"] / r["ideal_s"] for r in rounds), 3),
            "halving: every trial to its end / wall": round(median(r["full_s"] / r["wall_s"] for r in rounds), 3),
        },
    }


def halved(members: int, epochs: int, ideal_first: bool) -> dict[str, Any]:
    """In a process of its own: the wall time of a halving, and of its epochs at exactly the survivors' widths."""
    trials = drawn(members)
    survivors, _ = with_drops(trials, epochs)  # warms the process, and tells how many are left in each epoch
    wait_for_the_word()
    epoch_s: dict[int, float] = {}

    def measure_ideal() -> None:
        epoch_s.update({width: array_epoch_s(trials[:width]) for width in sorted({*survivors, members})})

    if ideal_first:
        measure_ideal()
    walls = [with_drops(trials, epochs)[1] for _ in range(REPEATS)]
    if not ideal_first:
        measure_ideal()
    return {
        "wall_s": median(walls),
        "ideal_s": sum(epoch_s[count] for count in survivors),
        "full_s": epochs * epoch_s[members],
        "walls_s": walls,
        "survivors": survivors,
        "epoch_s": epoch_s,
    }


def with_drops(trials: list[Trial], epochs: int) -> tuple[list[int], float]:
    """Members in each epoch, and the seconds of all epochs and drops."""
    array = new_array(trials, epochs)
    rule = Halving(GRACE_EPOCHS, REDUCTION, epochs, maximize=True)
    survivors: list[int] = []
    started = time.perf_counter()
    while (results := array.run_epoch()) is not None:
        survivors.append(len(results))
        scores = [(name, result.metrics["validation/accuracy"]) for name, result in results.items()]
        array.drop(rule.decide(array.epoch, scores))
    return survivors, time.perf_counter() - started


def array_epoch_s(trials: list[Trial]) -> float:
    """Seconds of an epoch and its evaluation of an array of these trials alone: the median after the first one."""
    array = new_array(trials, 1 + 2 * REPEATS)
    array.run_epoch()
    times = []
    for _ in range(2 * REPEATS):
        started = time.perf_counter()
        array.run_epoch()
        times.append(time.perf_counter() - started)
    return median(times)


def drawn(count: int) -> list[Trial]:
    return random_trials(parse(load(CONFIGURATION, {}, SweepConfig).space), count, seed=0)


def new_array(trials: list[Trial], epochs: int) -> Any:
    """An array of the digits MLP, its step as it is."""
    from raygpu.training.fused.model_array import TorchArray

    experiment = Mlp()
    settings = Settings(epochs, num_cpus(), "float32", Path())
    return TorchArray(experiment, experiment.data(), trials, settings)


# --- memory


def memory(_: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Resident memory of a trial: processes of one training each, and one process of an array."""
    rounds = []
    for number in range(arguments.rounds):
        parts = {
            "alone": lambda: resident(NUM_ALONE, members=0, threads=1),
            "array": lambda: resident(1, members=arguments.members, threads=num_cpus()),
        }
        order = list(parts) if number % 2 == 0 else list(reversed(parts))
        found = {name: parts[name]() for name in order}
        found["array"]["rss_mib_per_trial"] = round(found["array"]["rss_mib"] / arguments.members, 3)
        print(f"{found['alone']['pss_mib']:.1f} MiB alone, {found['array']['rss_mib_per_trial']:.2f} MiB in an array")
        rounds.append(found)
    return {
        "how": f"after {MEMORY_EPOCHS} epochs, means over the processes. alone: {NUM_ALONE} processes at once, PSS, so"
        f" that what they share is counted once. array: RSS of one process of {arguments.members} members, all of it",
        "rounds": rounds,
        "ratios": {
            "memory: a trial's own process (PSS) / its share of an array's process (RSS) (goal >= 5)": round(
                median(r["alone"]["pss_mib"] / r["array"]["rss_mib_per_trial"] for r in rounds), 1
            )
        },
    }


def resident(count: int, members: int, threads: int) -> dict[str, float]:
    """Means of what `count` processes hold that live at the same time, each after a few epochs."""
    processes = [Fresh(MODULE, {"part": "memory", "members": members}, threads) for _ in range(count)]
    for process in processes:
        process.prepare()
    found = {
        f"{field.lower()}_mib": round(mean(rollup_kib(process.pid, field) for process in processes) / 1024, 2)
        for field in ("Pss", "Rss")
    }
    found["peak_rss_mib"] = round(mean(status_kib(process.pid, "VmHWM") for process in processes) / 1024, 2)
    for process in processes:
        process.go()
    for process in processes:
        process.answer()
    return found


def rollup_kib(pid: int, field: str) -> int:
    """A field of /proc/PID/smaps_rollup."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def trained(members: int) -> dict[str, Any]:
    """In a process of its own: a training alone (no members) or an array, kept until the word."""
    from raygpu.training.torch.solo import TorchSolo

    experiment = Mlp()
    training: Any
    if members:
        training = new_array(drawn(members), MEMORY_EPOCHS)
    else:
        settings = Settings(MEMORY_EPOCHS, 1, "float32", Path())
        training = TorchSolo(experiment, experiment.data(), drawn(1)[0], settings)
    while training.run_epoch() is not None:
        pass
    wait_for_the_word()
    return {"epochs": training.epoch}


PARTS: dict[str, Callable[[Path, argparse.Namespace], dict[str, Any]]] = {
    "command": command,
    "many": many,
    "halving": halving,
    "memory": memory,
}


if __name__ == "__main__":
    main()
