"""Data parallel, four ways: what do more devices gain at one global batch, and is the gradient that of one device?

    python -m experiments.studies.data_parallel                                   conf/studies/data_parallel.toml
    python -m experiments.studies.data_parallel FILE --devices 1,2 --rounds 3     flags override the file

One device with gradient accumulation, torch's DataParallel (on GPUs), DistributedDataParallel and FSDP2, and
TensorFlow's MirroredStrategy, by turns. Leaves table, plot and summary in `runs/data_parallel-<time>/`, an MLflow run,
and a dated record in `experiments/studies/records/`.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
from pydantic import Field, ValidationError, field_validator, model_validator

from experiments.benchmarks import record
from experiments.benchmarks.ranks import Group
from experiments.studies import parallel_steps
from experiments.studies.parallel_steps import Measured, Problem
from raygpu.cli.command import framed
from raygpu.cli.formatting import aligned
from raygpu.config import read_toml
from raygpu.config.sections import Section, TrackingSection
from raygpu.devices.host import num_cpus
from raygpu.devices.nvml import gpus
from raygpu.errors import BadInput
from raygpu.planning.confidence import Interval, ratio, spread_text

DEFAULT = Path(__file__).parents[2] / "conf/studies/data_parallel.toml"
ONE = "accumulate"
"""The method on one device, with which others are compared."""
MIRRORED = "mirrored"
METHODS = {
    ONE: "one device, gradient accumulation",
    "data_parallel": "torch.nn.DataParallel",
    "ddp": "DistributedDataParallel",
    "fsdp": "FSDP2, fully_shard",
    MIRRORED: "tf.distribute.MirroredStrategy",
}
Devices = tuple[Annotated[int, Field(ge=1)], ...]


class Config(Section):
    """The study's configuration."""

    hidden: Annotated[int, Field(ge=1)] = 1024
    """Hidden units of the network: 75 x hidden + 10 parameters."""
    global_batch: Annotated[int, Field(ge=1)] = 512
    """Samples of an optimizer step, on all devices together."""
    devices: Devices = (1, 2, 4)
    """Numbers of devices to compare."""
    mirrored_devices: Devices = (1, 2, 3, 4, 5, 6, 7, 8)
    """Numbers of devices of the table of MirroredStrategy alone; its batch is the largest below global_batch that
    each of them divides."""
    iterations: Annotated[int, Field(ge=1)] = 50
    """Optimizer steps of one measurement."""
    rounds: Annotated[int, Field(ge=2)] = 5
    """Measurements of each method and number of devices, by turns."""
    tracking: TrackingSection = TrackingSection()

    @field_validator("devices", "mirrored_devices", mode="before")
    @classmethod
    def _numbers(cls, value: Any) -> Any:
        return tuple(value.split(",")) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _divisible(self) -> Config:
        for number in self.devices:
            if self.global_batch % number:
                raise ValueError(f"global_batch: read {self.global_batch}; {number} devices do not divide it")
        if 1 not in self.devices:
            raise ValueError(f"devices: read {self.devices}; 1 is wanted too, with which the others are compared")
        return self

    @property
    def mirrored_batch(self) -> int:
        """The global batch of the table of MirroredStrategy alone."""
        step = int(np.lcm.reduce(self.mirrored_devices))
        return max(step, self.global_batch // step * step)


@dataclass(frozen=True, slots=True)
class Row:
    """A method on a number of devices."""

    method: str
    devices: int
    batch: int
    seconds: tuple[float, ...]
    """Of the iterations, by round."""
    iterations: int
    difference: float
    """Largest difference of the first gradient from one device's, as a part of its largest entry."""
    memory_gib: float | None

    @property
    def samples_per_s(self) -> float:
        """Median throughput of all devices together."""
        return self.batch * self.iterations / median(self.seconds)

    def speedup(self, one: Row) -> Interval:
        """Throughput over one device's, round by round."""
        return ratio(one.seconds, self.seconds)


def load(path: Path, flags: Mapping[str, str]) -> Config:
    """Read the file, with flags laid over it. Raises BadInput with a line for each fault."""
    values: dict[str, Any] = read_toml(path)
    for name, value in flags.items():
        *tables, leaf = name.split(".")
        table = values
        for each in tables:
            table = table.setdefault(each, {})
        table[leaf] = value
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise BadInput([_fault(path, each) for each in error.errors()]) from error


def _fault(path: Path, detail: Any) -> str:
    message = detail["msg"].removeprefix("Value error, ")
    key = ".".join(str(part) for part in detail["loc"])
    return f"{path}: {key}: read {detail['input']!r}; {message}" if key else f"{path}: {message}"


def left_out(config: Config, num_gpus: int) -> list[str]:
    """Lines on what means nothing here. Raises BadInput for more devices than GPUs, where there are several."""
    most = max(config.devices)
    if num_gpus > 1 and most > num_gpus:
        raise BadInput(f"devices: read {most}; this machine has {num_gpus} GPUs")
    if num_gpus > 1:
        return []
    cores = num_cpus()
    lines = [
        "data_parallel: left out: torch.nn.DataParallel needs two GPUs",
        "memory: left out: processes on a CPU share it",
        f"devices are processes with one thread (torch, over gloo) and logical devices (TensorFlow) of {cores} cores: "
        f"beyond {cores} devices nothing can be gained",
    ]
    return lines if num_gpus == 0 else [*lines, "one GPU: it is not used; the study compares several"]


def measure(config: Config, methods: Sequence[str], say: Any) -> list[Row]:
    """All methods on all numbers of devices, by turns."""
    batches = {MIRRORED: config.mirrored_batch}
    numbers = {method: config.devices if method != ONE else (1,) for method in methods}
    cases = [(method, n, config.global_batch) for method in methods for n in numbers[method]]
    if MIRRORED in methods:
        cases += [(MIRRORED, n, batches[MIRRORED]) for n in config.mirrored_devices]
    cases = list(dict.fromkeys(cases))
    with ExitStack() as ending:
        groups: dict[tuple[bool, int], Group] = {}
        for method, n, _ in cases:
            key = method == MIRRORED, n if method != "data_parallel" else 1
            if key not in groups:
                groups[key] = Group.keras(1, n) if method == MIRRORED else Group.torch(key[1])
                ending.callback(groups[key].close)
        found: dict[tuple[str, int, int], list[Measured]] = {case: [] for case in cases}
        for number in range(config.rounds):
            for case in reversed(cases) if number % 2 else cases:
                found[case].append(_measured(groups, config, case))
            say(f"round {number + 1} of {config.rounds}")
        gradients = {case: _gradient(groups, config, case) for case in cases}
    ones = {(method == MIRRORED, batch): gradients[method, n, batch] for method, n, batch in cases if n == 1}
    return [
        Row(
            *case, tuple(each.seconds for each in found[case]), config.iterations,
            _difference(gradients[case], ones[case[0] == MIRRORED, case[2]]), found[case][-1].memory_gib,
        )
        for case in cases
    ]  # fmt: skip


def _measured(groups: Mapping[Any, Group], config: Config, case: tuple[str, int, int]) -> Measured:
    method, n, batch = case
    problem = Problem(config.hidden, batch, config.iterations)
    if method == MIRRORED:
        return groups[True, n].run(parallel_steps.mirrored_steps, problem)[0]
    own = groups[False, n].run(parallel_steps.torch_steps, method, problem, _parts(config, method))
    slowest: Measured = max(own, key=lambda each: each.seconds)
    return slowest


def _gradient(groups: Mapping[Any, Group], config: Config, case: tuple[str, int, int]) -> np.ndarray:
    method, n, batch = case
    problem = Problem(config.hidden, batch, config.iterations)
    if method == MIRRORED:
        return groups[True, n].run(parallel_steps.mirrored_gradient, problem)[0]
    found = groups[False, n].run(parallel_steps.torch_gradient, method, problem, _parts(config, method))
    return found[0]


def _parts(config: Config, method: str) -> int:
    """Parts of a batch: one device takes them one after the other, as many as there are devices at most."""
    return max(config.devices) if method == ONE else 1


def _difference(gradient: np.ndarray, one: np.ndarray) -> float:
    return float(np.abs(gradient - one).max() / np.abs(one).max())


def reference(rows: Sequence[Row], row: Row) -> Row:
    """The row of one device that a row is compared with: of the same framework and batch."""
    method = MIRRORED if row.method == MIRRORED else ONE
    return next(each for each in rows if (each.method, each.devices, each.batch) == (method, 1, row.batch))


def table(rows: Sequence[Row]) -> list[str]:
    """A line for each method and number of devices."""
    lines = [["method", "devices", "batch", "samples/s", "speed-up", "efficiency", "GiB", "gradient's difference"]]
    for row in rows:
        gain = row.speedup(reference(rows, row))
        told = f"{gain.middle:.2f}x{spread_text(gain.low, gain.high, '{:.2f}')}" if row.devices > 1 else ""
        memory = "" if row.memory_gib is None else f"{row.memory_gib:.2f}"
        efficiency = f"{100 * gain.middle / row.devices:.0f} %" if row.devices > 1 else ""
        cells = [row.method, str(row.devices), str(row.batch), f"{row.samples_per_s:,.0f}"]
        lines.append([*cells, told, efficiency, memory, f"{row.difference:.1g}"])
    return aligned(lines)


def verdict(rows: Sequence[Row], batch: int) -> str:
    """The fastest at the global batch, in a sentence; one device unless the rounds show that another is faster."""
    several = [row for row in rows if row.devices > 1 and row.batch == batch]
    faster = [(row, gain) for row in several if (gain := row.speedup(reference(rows, row))).low > 1]
    if not faster:
        return f"verdict: one device: nothing is shown to be faster at {batch} samples a step"
    row, gain = max(faster, key=lambda pair: pair[1].middle)
    spread = spread_text(gain.low, gain.high, "{:.2f}")
    framework = "TensorFlow" if row.method == MIRRORED else "torch"
    return (
        f"verdict: {row.method} on {row.devices} devices is {gain.middle:.2f}x{spread} as fast as {framework} on one"
        f" device, {100 * gain.middle / row.devices:.0f} % efficient"
    )


def plot(rows: Sequence[Row], batch: int, title: str, path: Path) -> None:
    """Throughput and efficiency by number of devices, and the time of MirroredStrategy's iterations."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 4.6), dpi=110, layout="constrained")
    figure.suptitle(title)
    speed, efficiency, times = figure.subplots(1, 3)
    for method in dict.fromkeys(row.method for row in rows):
        own = sorted((row for row in rows if (row.method, row.batch) == (method, batch)), key=lambda row: row.devices)
        numbers = [row.devices for row in own]
        marker = "D" if method == ONE else "o"
        (line,) = speed.plot(numbers, [row.samples_per_s for row in own], marker=marker, label=METHODS[method])
        gains = [row.speedup(reference(rows, row)).middle / row.devices for row in own]
        efficiency.plot(numbers, [100 * gain for gain in gains], marker=marker, color=line.get_color())
    mirrored = sorted((row for row in rows if row.method == MIRRORED and row.batch != batch), key=lambda r: r.devices)
    if mirrored:
        times.plot([row.devices for row in mirrored], [median(row.seconds) for row in mirrored], "o-", color="C3")
        times.set_ylabel(f"seconds of {mirrored[0].iterations} iterations, batch {mirrored[0].batch}")
        times.set_title("MirroredStrategy", fontsize=10)
    speed.set_ylabel(f"samples/s, batch {batch}")
    efficiency.set_ylabel("efficiency: speed-up over one device / devices, %")
    speed.legend(frameon=False, fontsize=8)
    for axes in (speed, efficiency, times):
        axes.set_xlabel("devices")
        axes.set_ylim(bottom=0)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.25)
    figure.savefig(path)


def log(config: Config, name: str, rows: Sequence[Row], files: Sequence[Path]) -> str:
    """Log the study as an MLflow run; return the URL of its page."""
    from raygpu.tracking.runs import RunTree
    from raygpu.tracking.values import MetricValue

    tree = RunTree.open(config.tracking.uri, config.tracking.experiment)
    run_id = tree.start_run(name, {}, config.model_dump(exclude={"tracking"}), kind="data_parallel")
    now_ms = int(time.time() * 1000)
    names = {row: f"{row.method}/batch_{row.batch}/samples_per_s" for row in rows}
    tree.log(run_id, [MetricValue(names[row], row.samples_per_s, row.devices, now_ms) for row in rows])
    for path in files:
        tree.log_artifact(run_id, path)
    tree.end_run(run_id, "finished", {})
    return tree.ui_url


def run(config: Config, folder: Path, source: Path) -> list[Row]:
    """Measure, and leave everything in the folder."""
    num_gpus = len(gpus())
    lines = left_out(config, num_gpus)
    print(*lines, sep="\n")
    methods = [method for method in METHODS if method != "data_parallel" or num_gpus > 1]
    rows = measure(config, methods, print)
    folder.mkdir(parents=True)
    files = [folder / "data_parallel.csv", folder / "data_parallel.png", folder / "summary.json"]
    with files[0].open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["method", "devices", "batch", "round", "seconds"])
        for row in rows:
            writer.writerows([row.method, row.devices, row.batch, i, s] for i, s in enumerate(row.seconds, 1))
    kind = "GPUs" if num_gpus > 1 else f"processes and logical devices of {num_cpus()} CPU cores"
    plot(rows, config.global_batch, f"Data parallel on {kind}: Mlp of {config.hidden} hidden units", files[1])
    result = verdict(rows, config.global_batch)
    summary = {"verdict": result, "left_out": lines, "rows": [dataclasses.asdict(row) for row in rows]}
    files[2].write_text(json.dumps(summary, indent=1))
    print("", *table(rows), "", f"table, plot and data in {folder}", sep="\n")
    try:
        if config.tracking.enabled:
            print(f"MLflow: {log(config, folder.name, rows, files)}")
        values = config.model_dump(exclude={"tracking"}) | {"file": str(source)}
        path = record.write("data_parallel", summary | {"ratios": table(rows)}, values, kind="studies")
        shutil.copy(files[1], path.with_suffix(".png"))
    finally:
        print(result)
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", default=str(DEFAULT))
    names = [name for name in Config.model_fields if name != "tracking"]
    for name in [*names, "tracking.uri", "tracking.enabled"]:
        parser.add_argument(f"--{name.replace('_', '-')}", dest=name, default=argparse.SUPPRESS)
    parser.add_argument("--runs-dir", dest="runs_dir", default="runs")
    flags = vars(parser.parse_args(argv))
    file, runs_dir = Path(flags.pop("file")), Path(flags.pop("runs_dir"))
    folder = runs_dir / f"data_parallel-{time.strftime('%Y%m%d-%H%M%S')}"

    def study() -> int:
        """Read the configuration and run the study."""
        run(load(file, flags), folder, file)
        return 0

    return framed(study, "interrupted; nothing was kept")


if __name__ == "__main__":
    sys.exit(main())
