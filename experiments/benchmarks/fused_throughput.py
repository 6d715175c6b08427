"""Training throughput of arrays of models beside one training alone, and beside one training on each core.

    python -m experiments.benchmarks.fused_throughput [--rounds 3] [--seconds 3] [--networks mlp,cnn,resnet]

Samples/s of training, without evaluation: the median of the epochs after the first ones. Every measurement is a process
of its own; rounds are interleaved, and every second one runs backwards. Each network has a record with every number,
whose ratios are medians of the rounds' own ratios, and a plot of samples/s against the width beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from experiments.benchmarks import record
from experiments.benchmarks.fresh import together, wait_for_the_word
from experiments.digits import Cnn, Mlp
from experiments.resnet import SmallResNet
from raygpu import TorchExperiment
from raygpu.devices.host import num_cpus
from raygpu.planning.batches import batch_bounds, epoch_order
from raygpu.search.trials import Trial
from raygpu.training.base import Settings

if TYPE_CHECKING:
    from raygpu.training.fused.model_array import TorchArray

MODULE = "experiments.benchmarks.fused_throughput"
SEARCHED: dict[str, Any] = {
    "lr": {"loguniform": [1e-3, 1.0]},
    "momentum": {"uniform": [0.0, 0.95]},
    "batch_size": 32,
}
NETWORKS: dict[str, tuple[type[TorchExperiment], dict[str, Any]]] = {
    "mlp": (Mlp, {"hidden": 128}),
    "cnn": (Cnn, {"blocks": 2, "channels": 8, "channels2": 16}),
    "resnet": (SmallResNet, {"channels": 8}),
}
WIDTHS = (1, 2, 3, 5, 8, 13, 21, 34, 64, 128)
OTHER_WIDTHS = (1, 4, 16)
"""Of the networks that are measured eagerly alone."""
WIDE = 64
"""The array that the goals are about."""
WARM_EPOCHS = 2
LEAST_EPOCHS = 3
MANY_EPOCHS = 1_000_000


@dataclass(frozen=True)
class Case:
    """One measurement."""

    network: str
    way: str
    """Of one model: TorchSolo, or a plain loop (torch.optim), as it is or compiled. Of an array: eager or compiled."""
    threads: int
    width: int = 0
    """Of an array; 0 for one model alone."""
    at_once: int = 1
    """Processes of it that train at the same time; their samples/s are added."""

    @property
    def label(self) -> str:
        if self.width:
            return f"{self.network}: array of {self.width}, {self.way}"
        where = f"{self.at_once} at once" if self.at_once > 1 else "alone"
        return f"{self.network}: {where}, {self.way}, {self.threads} thread{'s' if self.threads > 1 else ''}"


def cases(network: str, widths: list[int] | None, cpus: int) -> list[Case]:
    """What is measured of a network."""
    mlp = network == "mlp"
    alone_ways = ["TorchSolo", "plain loop", "plain loop, compiled"] if mlp else ["TorchSolo"]
    array_ways = ["eager", "compiled"] if mlp else ["eager"]
    chosen = widths or (WIDTHS if mlp else OTHER_WIDTHS)
    alone = [Case(network, way, threads) for way in alone_ways for threads in sorted({1, cpus})]
    on_each = [Case(network, way, 1, at_once=cpus) for way in alone_ways if cpus > 1]
    arrays = [Case(network, way, cpus, width) for width in chosen for way in array_ways]
    return [*alone, *on_each, *arrays]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="of the measured epochs of each case")
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--widths", default=None, help="of the arrays, as in 1,8,64; by default each network's own")
    parser.add_argument("--one", default=None, help="a case as JSON: measure it in this process")
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(**json.loads(arguments.one))))
        return
    widths = [int(width) for width in arguments.widths.split(",")] if arguments.widths else None
    configuration = {name: value for name, value in vars(arguments).items() if name != "one"}
    for network in arguments.networks.split(","):
        chosen = cases(network, widths, num_cpus())
        with tempfile.TemporaryDirectory(prefix="raygpu-bench-") as folder:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder  # compiled by the first round, read again by the others
            rounds = []
            for number in range(arguments.rounds):
                order = chosen if number % 2 == 0 else [*reversed(chosen)]
                rounds.append({case: run(case, arguments.seconds) for case in order})
        medians = {case: median(r[case]["samples_per_s"] for r in rounds) for case in chosen}
        results = {
            "rounds": [{case.label: found for case, found in r.items()} for r in rounds],
            "samples/s, medians": {case.label: round(rate) for case, rate in medians.items()},
            "ratios": ratios(chosen, rounds),
        }
        path = record.write("fused_throughput", results, configuration, network)
        plot(path.with_suffix(".png"), network, medians)


def run(case: Case, seconds: float) -> dict[str, Any]:
    """Measure a case in processes of its own."""
    found = together(MODULE, [asdict(case) | {"seconds": seconds}] * case.at_once, case.threads)
    samples_per_s = sum(part["samples_per_s"] for part in found)
    print(f"{samples_per_s:12,.0f} samples/s  {case.label}", flush=True)
    return {
        "samples_per_s": round(samples_per_s, 1),
        "epochs": min(part["epochs"] for part in found),
        "warm_s": max(part["warm_s"] for part in found),
    }


def measure(network: str, way: str, threads: int, width: int, at_once: int, seconds: float) -> dict[str, Any]:
    """In a process of its own: samples/s of one training or array. warm_s: of the first epochs, compiling included."""
    from raygpu.search.space import parse, random_trials

    kind, constants = NETWORKS[network]
    trials = random_trials(parse(SEARCHED | constants), max(1, width), seed=0)
    settings = Settings(MANY_EPOCHS, threads, "float32", Path())
    if width:
        epoch = array_epochs(kind(), trials, settings, compiled=way == "compiled")
    elif way == "TorchSolo":
        epoch = solo_epochs(kind(), trials[0], settings)
    else:
        epoch = plain_epochs(kind(), trials[0], settings, compiled="compiled" in way)
    started = time.perf_counter()
    for _ in range(WARM_EPOCHS):
        epoch()
    warm_s = time.perf_counter() - started
    wait_for_the_word()
    rates: list[float] = []
    started = time.perf_counter()
    while len(rates) < LEAST_EPOCHS or time.perf_counter() - started < seconds:
        num_samples, train_s = epoch()
        rates.append(num_samples / train_s)
    return {"samples_per_s": median(rates), "epochs": len(rates), "warm_s": round(warm_s, 2)}


Epoch = Callable[[], tuple[int, float]]
"""Trains an epoch: its samples, of all members together, and the seconds that training took."""


def array_epochs(experiment: TorchExperiment, trials: list[Trial], settings: Settings, *, compiled: bool) -> Epoch:
    """Of one array whose members all step at once."""
    from raygpu.training.fused.model_array import TorchArray

    array = TorchArray(experiment, experiment.data(), trials, settings, width=len(trials))
    if compiled:
        array.program.compile(len(trials), array.batch_size)
    return epochs_of(array)


def epochs_of(array: TorchArray) -> Epoch:
    """The epochs of an array, as it is set now and later."""

    def epoch() -> tuple[int, float]:
        results = array.run_epoch()
        assert results is not None
        first = next(iter(results.values()))
        assert first.num_samples is not None
        assert first.train_s is not None
        return first.num_samples * len(results), first.train_s

    return epoch


def solo_epochs(experiment: TorchExperiment, trial: Trial, settings: Settings) -> Epoch:
    """Of one model, as process mode trains it."""
    from raygpu.training.torch.solo import TorchSolo

    solo = TorchSolo(experiment, experiment.data(), trial, settings)

    def epoch() -> tuple[int, float]:
        result = solo.run_epoch()
        assert result is not None
        assert result.num_samples is not None
        assert result.train_s is not None
        return result.num_samples, result.train_s

    return epoch


def plain_epochs(experiment: TorchExperiment, trial: Trial, settings: Settings, *, compiled: bool) -> Epoch:
    """Of one model, as one writes it by hand, the same batches with torch.optim.SGD; forward and loss compiled."""
    import torch

    from raygpu.training.torch.models import default_device, initial_model
    from raygpu.training.torch.solo import prepare_torch

    device = default_device()
    prepare_torch(settings, device)
    hp, splits = trial.hyperparameters, experiment.data()
    inputs = torch.as_tensor(splits.train_inputs).to(device)
    targets = torch.as_tensor(splits.train_targets).to(device)
    model = initial_model(experiment, hp, trial.seed).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=hp["lr"], momentum=hp["momentum"], fused=True)

    def loss_of(chosen_inputs: Any, chosen_targets: Any) -> Any:
        return experiment.loss(model(chosen_inputs), chosen_targets)

    loss_function = loss_of
    if compiled:
        # Not dynamic: the last batch is smaller, and would make the program of all others a slower one for any size.
        # Guards as an array compiles its step, since they are a good part of a small model's.
        guards = {"guard_filter_fn": torch.compiler.keep_tensor_guards_unsafe}
        loss_function = torch.compile(loss_of, fullgraph=True, dynamic=False, options=guards)
    done = 0

    def epoch() -> tuple[int, float]:
        nonlocal done
        done += 1
        model.train()
        started = time.perf_counter()
        order = torch.from_numpy(epoch_order(trial.seed, done, len(inputs))).to(device)
        loss_sum = torch.zeros((), device=device)
        for start, end in batch_bounds(len(inputs), hp["batch_size"]):
            rows = order[start:end]
            loss = loss_function(inputs[rows], targets[rows])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            loss_sum += loss.detach() * (end - start)
        loss_sum.item()
        return len(inputs), time.perf_counter() - started

    return epoch


def ratios(chosen: list[Case], rounds: list[dict[Case, dict[str, Any]]]) -> dict[str, float]:
    """Medians over the rounds of the best way of one kind over the best way of another in the same round."""

    def of(above: list[Case], below: list[Case]) -> float:
        def best(results: dict[Case, dict[str, Any]], those: list[Case]) -> float:
            return max(results[case]["samples_per_s"] for case in those)

        return round(median(best(r, above) / best(r, below) for r in rounds), 3)

    found: dict[str, float] = {}
    for network in dict.fromkeys(case.network for case in chosen):
        own = [case for case in chosen if case.network == network]
        alone = [case for case in own if not case.width and case.at_once == 1]
        on_each = [case for case in own if case.at_once > 1]
        for width in dict.fromkeys(case.width for case in own if case.width):
            goals = ("", "")
            if network == "mlp":
                if width not in (1, WIDE):
                    continue
                goals = (" (goal >= 12, aim 20)", " (goal >= 6)") if width == WIDE else goals
            arrays = [case for case in own if case.width == width]
            found[f"{network}: array of {width} / best alone{goals[0]}"] = of(arrays, alone)
            if width > 1 and (ones := [case for case in own if case.width == 1]):
                found[f"{network}: array of {width} / best of one model, alone or as an array of one"] = of(
                    arrays, [*alone, *ones]
                )
            if on_each:
                found[f"{network}: array of {width} / one on each core{goals[1]}"] = of(arrays, on_each)
    return found


def plot(path: Path, network: str, rates: dict[Case, float]) -> None:
    """Samples/s against the width, with lines for one model alone and for one on each core."""
    try:
        import matplotlib
    except ImportError:
        print("no plot: matplotlib is not installed", file=sys.stderr)
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5))
    for way, marker in (("eager", "o"), ("compiled", "s")):
        points = sorted((case.width, rate) for case, rate in rates.items() if case.width and case.way == way)
        if points:
            axes.plot(
                [width for width, _ in points], [rate for _, rate in points], marker=marker, label=f"array, {way}"
            )
    for name, style, those in (
        ("one training alone, best way", "--", [c for c in rates if not c.width and c.at_once == 1]),
        ("one training on each core, best way", ":", [c for c in rates if c.at_once > 1]),
    ):
        if those:
            axes.axhline(max(rates[case] for case in those), linestyle=style, color="grey", label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("width: models that step as one program")
    axes.set_ylabel("training samples/s, all members")
    axes.set_title(f"{network} on the digits, batch size 32, {num_cpus()} CPUs")
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
    print(f"plot: {path}")


if __name__ == "__main__":
    main()
