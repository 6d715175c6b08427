"""Measure how a batch is split best over unequal devices: on each device, then on all; write it for raygpu.train.

python -m raygpu.balance conf/train/digits.toml
python -m raygpu.balance conf/train/digits.toml --batches 40,24          a split of your own
python -m raygpu.balance conf/train/digits.toml --best-batch --lr-scaling sqrt        a larger batch, where it is faster
python -m raygpu.balance conf/train/digits.toml --write conf/train/balanced.toml

The training stays as it is, with the configuration's global batch and learning rate; --best-batch searches for the
fastest batch, of at most a tenth of the training data, and says what that changes. Each device is measured several
times by turns, and so are trainings with balanced and with equal shares. Shares are unequal only where both show a
difference beyond their spread (95 % confidence); otherwise the verdict is "equal shares; within noise".
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raygpu.cli import balance_view
from raygpu.cli.command import Command, Outcome
from raygpu.cli.console import LiveConsole
from raygpu.cli.flags import Arguments
from raygpu.cli.formatting import hyperparameters
from raygpu.cli.process_exit import run_and_exit
from raygpu.cli.run_description import measurement_description
from raygpu.config import BalanceConfig
from raygpu.config.command_names import typed
from raygpu.engines.cluster.service.handover import served
from raygpu.engines.profiling.workload import Workload
from raygpu.errors import BadInput, RaygpuError
from raygpu.planning.batch_balancing import (
    LARGEST_PART,
    BalanceVerdict,
    MeasuredSplit,
    ThroughputCurve,
    alike,
    around,
    balance_shares,
    level_groups,
    needs_another_pair,
    predict,
    reduce_shares,
)
from raygpu.planning.batch_shares import split_batch, with_least
from raygpu.planning.gpu_shares import Node
from raygpu.planning.worker_devices import WorkerDevices, place_workers
from raygpu.records.run_directory import RunDirectory
from raygpu.training.distributed.batch_split import checked, require_batch, spread
from raygpu.workflow import balance_results
from raygpu.workflow.ray_startup import ray_starting
from raygpu.workflow.run_folder import published, removed_if_failed
from raygpu.workflow.run_report import report_of
from raygpu.workflow.user_code import Problem, find, require_experiment, training_problem
from raygpu.workflow.validation import PreparedTrain, prepare_train

if TYPE_CHECKING:
    from raygpu.engines.cluster.cluster import Cluster
    from raygpu.engines.profiling.short_trainings import ShortTrainings

DEFAULT = Path("conf/train/digits.toml")
SWITCHES = {"json": "Print the summary as JSON on standard output, and all else on standard error."}
OPTIONS = {"write": "A new file for raygpu.train: this configuration with the batch and the shares of the verdict."}


@dataclass(frozen=True, slots=True)
class BalanceResult:
    """The result of a balance: its summary and its run's folder."""

    summary: dict[str, Any]
    """The content of `summary.json`."""
    folder: Path


def run(
    config: BalanceConfig,
    *,
    stem: str = "balance",
    source_folder: Path | None = None,
    write: Path | None = None,
    console: LiveConsole | None = None,
) -> BalanceResult:
    """Measure each device, train with balanced and equal shares by turns, and leave the results in `runs/<name>/`.

    write: the file of a configuration with the verdict's shares; by default in the run's folder. Raises BadInput, with
    a line for each fault.
    """
    console = console or LiveConsole()
    source_folder = (source_folder or Path.cwd()).resolve()
    if write is not None:
        _require_writable(write)
    prepared = prepare_train(config.model_copy(update={"epochs": config.epochs or 1}), stem)
    trained = f"{config.code_name}; {hyperparameters(config.hyperparameters)}"
    console.line(f"balance {prepared.config.name}: {trained}")
    console.warnings(prepared.left_out)
    source, code = find(prepared.config, source_folder)
    require_experiment(prepared.config, source, code, "raygpu.balance")
    if prepared.nodes is not None:
        _placed(config, source.kind, prepared.nodes, simulated=not prepared.gpus)
    with ray_starting(prepared.config, prepared.gpus, source_folder, console, apart=False) as starting:
        problem = training_problem(prepared, source, code)
        console.lines(problem.notes)
        assert starting is not None
        assert problem.splits is not None
        cluster = starting.wait()
        console.details(cluster.detail_lines())
        simulated = any(device.uuid is None for device in cluster.devices)
        where = _placed(config, source.kind, cluster.nodes, simulated=simulated)
        plan = spread(_equal(config), where.ranks, problem.splits.samples_per_epoch)
        plan = checked(_equal(config), plan, where.ranks, source, code, problem.splits)
        folder = RunDirectory.create_for(prepared.config)
        with removed_if_failed(folder):
            measuring = _Measuring(config, prepared, problem, cluster, where, folder, console, plan.parallel.least)
            cluster.require(folder.shared)
            verdict = measuring.verdict()
    return _finish(measuring, source_folder, verdict, write)


def _placed(config: BalanceConfig, framework: str, nodes: Sequence[Node], *, simulated: bool) -> WorkerDevices:
    """Place the workers on the devices. Raises BadInput if the requested split does not suit these."""
    where = place_workers(nodes, config, framework, simulated=simulated)
    devices, ranks = sum(node.num_gpus for node in nodes), where.ranks
    chosen, most = config.chosen_batches, config.cluster.most_gpus
    if most is not None and most < devices:
        raise BadInput(f"cluster.max_gpus: a balance measures all {devices} devices; leave it out")
    if chosen is not None and len(chosen) != ranks:
        raise BadInput(f"batches: read {config.batches}, {len(chosen)} numbers for {ranks} devices")
    if config.sharding == "full":
        raise BadInput("sharding: a balance measures devices that each have the whole model; leave it out")
    if where.devices_per_worker > 1:
        raise BadInput("devices_per_worker: a balance measures workers of one device each; leave it at 1")
    if ranks % devices:
        advice = "Ray would choose among them: take all, or choose by --gpu.devices"
        raise BadInput(f"workers: {ranks} for {devices} devices; {advice}")
    if ranks == 1:
        raise BadInput("workers: 1; there is nothing to balance on one device (--workers 2 shares it)")
    require_batch(_equal(config), ranks)
    return where


def _equal(config: BalanceConfig, global_batch: int | None = None) -> BalanceConfig:
    """Return the configuration with equal shares. global_batch: by default the configuration's."""
    return config.model_copy(update={"ratios": "equal", "global_batch": global_batch or config.global_batch})


@dataclass(slots=True)
class _Measuring:
    """A training, and the devices on which it is measured."""

    config: BalanceConfig
    prepared: PreparedTrain
    found: Problem
    cluster: Cluster
    where: WorkerDevices
    folder: RunDirectory
    console: LiveConsole
    least: int
    """Smallest number of samples on which the model can be trained at once."""
    places: list[int] = field(default_factory=list)
    """Each rank's device, by its index."""
    readings: dict[int, Any] = field(default_factory=dict)
    """The last NVML readings while devices worked, by device."""

    @property
    def samples_per_epoch(self) -> int:
        """Number of training samples of an epoch."""
        assert self.found.splits is not None
        return self.found.splits.samples_per_epoch

    @property
    def configured(self) -> int:
        """The global batch that raygpu.train takes with this configuration."""
        return spread(_equal(self.config), self.where.ranks, self.samples_per_epoch).parallel.global_batch

    def verdict(self) -> BalanceVerdict:
        """Measure the devices, then trainings with the resulting shares and with equal ones, and decide by both."""
        curves, wanted = self.devices()
        asked = self.config.chosen_batches is not None
        with closing(self._short_trainings()) as trainings:
            first, shares = self._first(trainings, wanted)
            equal = split_batch(sum(shares), [1.0] * len(shares))
            same = list(shares) == equal
            tried_turns, its = ([first], []) if same else self._by_turns(trainings, shares, first, equal)
        self.readings |= trainings.readings
        return BalanceVerdict(
            curves=curves,
            groups=[] if asked else alike(curves),
            split=predict(curves, shares),
            tried=MeasuredSplit(shares, tuple(tried_turns)),
            equal=MeasuredSplit(tuple(equal), tuple(its)) if its else None,
            fits=same or bool(its),
            asked=asked,
        )

    def devices(self) -> tuple[list[ThroughputCurve], tuple[int, ...]]:
        """Measure each rank's speeds; return them with the split that follows, or with the requested one."""
        from raygpu.engines.profiling.device_benchmark import DeviceBenchmark

        config, chosen, say = self.config, self.config.chosen_batches, self.console.line
        benchmark = DeviceBenchmark(
            self.cluster,
            self.where,
            self._workload(),
            window_s=config.window_s,
            rounds=config.rounds,
            parts=config.accumulate,
            least=self.least,
        )
        try:
            self.places = benchmark.places
            if chosen is not None:
                shares, curves = benchmark.at(with_least(chosen, self.least), say)
                return curves, tuple(shares)
            if config.best_batch:
                first = max(self.least, self.configured // self.where.ranks)
                curves = benchmark.doubled(first, say)
            else:
                batch = self.configured
                curves = benchmark.around(around(batch // self.where.ranks, batch, self.least), say)
            level = level_groups(curves, alike(curves))
            return curves, tuple(with_least(balance_shares(level, self._whole(level)).shares, self.least))
        except ValueError as error:
            raise RaygpuError(f"global_batch: {error}") from error
        finally:
            self.readings = benchmark.readings
            benchmark.close()

    def _whole(self, curves: Sequence[ThroughputCurve]) -> int:
        """Return the global batch: the configuration's, or the fastest of at most a tenth of an epoch."""
        if not self.config.best_batch:
            return self.configured
        most = max(self.configured, int(LARGEST_PART * self.samples_per_epoch))
        return min(balance_shares(curves).global_batch, most)

    def _short_trainings(self) -> ShortTrainings:
        from raygpu.engines.profiling.short_trainings import ShortTrainings

        checkpoints, say = self.folder.shared_checkpoints, self.console.line
        return ShortTrainings(self.config, self._workload(), self.cluster, self.where, checkpoints, say, self.least)

    def _workload(self) -> Workload:
        return Workload(self.found.source, self.found.splits, self.prepared.trial, self.config.gpu.precision)

    def _first(self, trainings: ShortTrainings, shares: Sequence[int]) -> tuple[tuple[float, ...], tuple[int, ...]]:
        """Train a first turn with these shares, lowered by a fifth while memory does not hold them; each as large as
        the model needs. Raises RaygpuError if there are too few samples for that."""
        from raygpu.engines.train.production import TrainingFailed

        while True:
            shares = self._with_least(shares)
            try:
                return trainings.train(shares, self.config.turn_s), tuple(shares)
            except TrainingFailed as error:
                if not error.out_of_memory:
                    raise
                self.console.warn(f"{error}; all shares by a fifth less")
                try:
                    shares = reduce_shares(shares)
                except ValueError as nothing_left:
                    raise RaygpuError(str(error)) from nothing_left

    def _with_least(self, shares: Sequence[int]) -> tuple[int, ...]:
        try:
            return tuple(with_least(shares, self.least))
        except ValueError as error:
            raise RaygpuError(f"global_batch: {error}") from error

    def _by_turns(
        self, trainings: ShortTrainings, shares: Sequence[int], first: tuple[float, ...], equal: Sequence[int]
    ) -> tuple[list[tuple[float, ...]], list[tuple[float, ...]]]:
        """Train with both shares in pairs of turns, until they differ clearly or there are as many pairs as rounds.

        Returns the turns with `shares`, and those with equal shares; none of these where memory does not hold them.
        """
        from raygpu.engines.train.production import TrainingFailed

        tried_turns, its, seconds = [first], [], self.config.turn_s
        try:
            its.append(trainings.train(equal, seconds))
            while needs_another_pair(tried_turns, its, self.config.rounds):
                order = [(its, equal), (tried_turns, shares)]  # neither has always the quieter moment
                for turns, part in order if len(tried_turns) % 2 else reversed(order):
                    turns.append(trainings.train(part, seconds))
        except TrainingFailed as error:
            if not error.out_of_memory:
                raise
            return tried_turns, []
        return tried_turns, its


def _finish(measuring: _Measuring, source_folder: Path, verdict: BalanceVerdict, write: Path | None) -> BalanceResult:
    """Print the table, and write the summary, the report and the configuration."""
    config, console, folder = measuring.prepared.config, measuring.console, measuring.folder
    assert isinstance(config, BalanceConfig)
    devices = [measuring.cluster.devices[place] for place in measuring.places]
    ranks, samples_per_epoch = measuring.where.ranks, measuring.samples_per_epoch
    before, after = (
        balance_view.Step(plan.parallel.global_batch, plan.settings.lr)
        for plan in (spread(_equal(config, batch), ranks, samples_per_epoch) for batch in (None, sum(verdict.shares)))
    )
    lines = [*balance_view.lines(verdict), *balance_view.training(before, after, samples_per_epoch)]
    console.results(["", *balance_view.table(devices, verdict, measuring.readings), ""])
    console.results(lines)
    folder.trials.rmdir()
    RunDirectory(folder.path).write_config(config, source_folder, kind="balance")
    summary = balance_results.summary(config.name, measuring.configured, devices, verdict, measuring.readings)
    summary["lines"] = lines
    folder.write_summary(summary)
    target = write or folder.path / "train.toml"
    balance_results.write_train(config.model_copy(update={"epochs": measuring.config.epochs}), verdict, target)
    files = [folder.summary, target, *report_of(folder, console.line, console.warn)]
    try:
        with published(folder, console.warn) as kept:
            console.result(f"table, plot and data in {kept}")
            if config.tracking.enabled:
                from raygpu.tracking.measurement_run import log_balance

                shown = measurement_description(config, kept, lines, [f"{typed('train')} {target}"])
                names = [device.name for device in devices]
                console.line(f"MLflow: {log_balance(config, names, verdict, files, shown)}")
    finally:
        console.result(f"train with these shares: {typed('train')} {target}")
    return BalanceResult(summary, folder.path)


def _require_writable(path: Path) -> None:
    """Raise BadInput if no new file can be made at this path."""
    if path.exists():
        raise BadInput(f"--write: {path} exists already; choose another file")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        path.unlink()
    except OSError as error:
        raise BadInput(f"--write: {path} cannot be written: {error.strerror}") from error


def _main(arguments: Arguments) -> Outcome:
    config, stem, folder = COMMAND.read(arguments)
    write = arguments.options.get("write")
    result = run(
        config,
        stem=f"{stem}-balance",
        source_folder=folder,
        write=Path(write) if write is not None else None,
        console=LiveConsole(json="json" in arguments.switches),
    )
    return Outcome(0, result.summary)


COMMAND = Command("balance", __doc__, BalanceConfig, DEFAULT, SWITCHES, _main, OPTIONS)
main = COMMAND.main


if __name__ == "__main__":
    run_and_exit(lambda: served([COMMAND.name, *sys.argv[1:]], main))
