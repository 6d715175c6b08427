"""The first array of a kind beside the second one, which finds the compiled step and the measured widths of the first.

    python -m experiments.benchmarks.kept_steps [--rounds 5] [--epochs 20] [--networks mlp,cnn]

not kept  an array as it trains without a store: its widths are measured, and its step is compiled only if that repays
first     an array with an empty store: another process compiles its step, while it trains or once it has ended
second    an array with the store that the first one left
again     the first step by torch.compile alone, whose own cache on disk has this program already

Each measurement is a process of its own; rounds are interleaved, every second one backwards. Seconds are of the
processor (user and system, of the measured process alone), and of the clock, which a busy machine lengthens.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from experiments.benchmarks import record
from experiments.benchmarks.fresh import together, wait_for_the_word
from experiments.benchmarks.fused_throughput import NETWORKS, SEARCHED
from raygpu.config.source import Source
from raygpu.devices.host import num_cpus
from raygpu.records.array_store import ArrayStore
from raygpu.training.base import Settings

if TYPE_CHECKING:
    from raygpu.training.fused.model_array import TorchArray

MODULE = "experiments.benchmarks.kept_steps"
WAYS = ("not kept", "first", "second", "again")
WIDTHS = {"mlp": 23, "cnn": 16}
"""Members: as many as a group of 64 trials of conf/sweep/digits.toml has."""
MOST_S = 600.0
"""Seconds to wait for the process that compiles."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--networks", default=",".join(WIDTHS))
    parser.add_argument("--one", default=None, help="a case as JSON: measure it in this process")
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(**json.loads(arguments.one))))
        return
    configuration = {name: value for name, value in vars(arguments).items() if name != "one"}
    for network in arguments.networks.split(","):
        with tempfile.TemporaryDirectory(prefix="raygpu-bench-") as folder:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{folder}/inductor"
            kept = Path(folder, "kept")
            warm = [run(network, "again", kept, arguments.epochs), run(network, "first", kept, arguments.epochs)]
            wait_for_program(kept)
            rounds = []
            for number in range(arguments.rounds):
                order = WAYS if number % 2 == 0 else WAYS[::-1]
                rounds.append({way: run(network, way, kept, arguments.epochs) for way in order})
        results = {"warm_up": warm, "rounds": rounds, "medians": medians(rounds), "ratios": ratios(rounds)}
        record.write("kept_steps", results, configuration, network)


def run(network: str, way: str, kept: Path, epochs: int) -> dict[str, Any]:
    """Measure a way in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="raygpu-bench-") as empty:
        store = Path(empty, "kept") if way == "first" and (kept / "arrays").exists() else kept
        case = {"network": network, "way": way, "folder": str(store), "epochs": epochs}
        (found,) = together(MODULE, [case], num_cpus())
        if way == "first":
            wait_for_program(store)  # it would disturb what is measured next
    print(f"{network}, {way}: {found}", flush=True)
    return found


def wait_for_program(folder: Path) -> None:
    """Wait until the process that compiles has kept its step. Raises RuntimeError if it does not."""
    store, deadline = ArrayStore.at(str(folder)), time.monotonic() + MOST_S
    while not store.programs(""):
        if time.monotonic() > deadline:
            raise RuntimeError(f"nothing was compiled in {MOST_S:.0f} s")
        time.sleep(0.5)


def measure(network: str, way: str, folder: str, epochs: int) -> dict[str, Any]:
    """In a process of its own: seconds from the array's making to its first step, and to its end."""
    from raygpu.search.space import parse, random_trials
    from raygpu.training.fused.array_cache import ArrayCache
    from raygpu.training.fused.model_array import TorchArray
    from raygpu.training.fused.width import settle, take_compiled

    kind, constants = NETWORKS[network]
    experiment = kind()
    trials = random_trials(parse(SEARCHED | constants), WIDTHS[network], seed=0)
    splits = experiment.data()
    array = TorchArray(experiment, splits, trials, Settings(epochs, num_cpus(), "float32", Path()))
    wait_for_the_word()
    began = time.perf_counter(), time.process_time()

    def since() -> dict[str, float]:
        """Return seconds of the clock and of the processor."""
        wall_s, cpu_s = time.perf_counter() - began[0], time.process_time() - began[1]
        return {"wall_s": round(wall_s, 3), "cpu_s": round(cpu_s, 3)}

    if way == "again":
        first_step_compiled(array)
        return {"ready": since()}
    kept = None
    if way != "not kept":
        source = Source("torch", f"{kind.__module__}:{kind.__name__}", os.getcwd())
        kept = ArrayCache(ArrayStore.at(folder), array, source, os.environ)
    lines = settle(array, kept=kept)
    ready = since()
    while array.run_epoch() is not None:
        if kept is not None:
            lines += take_compiled(array, kept)
    return {"ready": ready, "end": since(), "lines": lines}


def first_step_compiled(array: TorchArray) -> None:
    """Take a step by torch.compile, as arrays on a GPU do."""
    from raygpu.training.fused.compile_process import step_arguments
    from raygpu.training.fused.compiled_step import compiled_in_memory

    arguments = step_arguments(array, array.all_optimizers, array.settings, len(array.trials))
    with array.program.training():
        compiled_in_memory(array.program.eager_step, arguments)(*arguments)


def medians(rounds: list[dict[str, dict[str, Any]]]) -> dict[str, dict[str, float]]:
    """Return medians over the rounds, by way."""
    names = [("ready", "wall_s"), ("ready", "cpu_s"), ("end", "wall_s"), ("end", "cpu_s")]
    return {
        way: {
            f"{moment} {unit}": round(median(each[way][moment][unit] for each in rounds), 3)
            for moment, unit in names
            if moment in rounds[0][way]
        }
        for way in WAYS
    }


def ratios(rounds: list[dict[str, dict[str, Any]]]) -> dict[str, float]:
    """Return medians of the rounds' own ratios, in seconds of the processor or, where told, of the clock."""

    def of(above: tuple[str, str], below: tuple[str, str], unit: str = "cpu_s") -> float:
        def seconds(found: Mapping[str, Any], which: tuple[str, str]) -> float:
            return float(found[which[0]][which[1]][unit])

        return round(median(seconds(each, above) / seconds(each, below) for each in rounds), 3)

    return {
        "whole training: not kept / second": of(("not kept", "end"), ("second", "end")),
        "whole training: first / not kept": of(("first", "end"), ("not kept", "end")),
        "whole training: first / not kept, clock": of(("first", "end"), ("not kept", "end"), "wall_s"),
        "until it steps: torch.compile with its cache / second": of(("again", "ready"), ("second", "ready")),
    }


if __name__ == "__main__":
    main()
