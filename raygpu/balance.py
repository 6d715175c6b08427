"""How is a batch split best over unequal devices? Measured on each, tried as a job, and written for raygpu.train.

python -m raygpu.balance conf/train/digits.toml
python -m raygpu.balance conf/train/digits.toml --batches 512,355        a split of your own
python -m raygpu.balance conf/train/digits.toml --write conf/train/balanced.toml
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tomli_w

from raygpu import flags
from raygpu.balancing import Balanced, Curve, balanced, lowered, predicted
from raygpu.command import Command, Outcome
from raygpu.config import BalanceConfig, TrainConfig
from raygpu.errors import BadInput, RaygpuError
from raygpu.experiment import Splits, take
from raygpu.preparation import PreparedTrain, Problem, find, prepare_train, training_problem
from raygpu.progress import Progress
from raygpu.redaction import redacted
from raygpu.runfolder import RunFolder, rounded
from raygpu.spreading import spread
from raygpu.starting import arrived, started, told_at_once
from raygpu.training.parallel import FIRST, Parallel
from raygpu.trials import Scoring
from raygpu.views import balances
from raygpu.views.balances import Job
from raygpu.views.console import SweepConsole, hyperparameters

if TYPE_CHECKING:
    from raygpu.engines.cluster import Cluster
    from raygpu.engines.production import Placing

DEFAULT = Path("conf/train/digits.toml")
SWITCHES = {"json": "Print the summary as JSON on standard output, and all else on standard error."}
OPTIONS = {"write": "A new file for raygpu.train: this configuration with the ratios and the batch that were found."}
EPOCHS = 1_000_000
"""More than a job is given time for."""
STEPS = 16
"""Of an epoch of the job, at least."""
EVALUATED = 64
"""Samples, where the job's epochs are short."""


@dataclass(frozen=True, slots=True)
class Result:
    """What was measured."""

    summary: dict[str, Any]
    """The content of `summary.json`."""
    folder: Path


def run(
    config: BalanceConfig,
    *,
    stem: str = "balance",
    source_folder: Path | None = None,
    write: Path | None = None,
    console: SweepConsole | None = None,
) -> Result:
    """Measure each device, train the balanced job and the equal one for a while, and leave all in `runs/<name>/`.

    write: where a configuration with the ratios goes, beside the run's folder. Raises BadInput, with a line for each
    fault.
    """
    console = console or SweepConsole()
    source_folder = (source_folder or Path.cwd()).resolve()
    if write is not None:
        _require_writable(write)
    prepared = prepare_train(config.model_copy(update={"epochs": config.epochs or 1}), stem)
    what = config.experiment or config.command
    console.lines([f"balance {prepared.config.name}: {what}; {hyperparameters(config.hyperparameters)}"])
    console.lines(prepared.left_out)
    source, code = find(prepared.config, source_folder)
    starts = config.cluster, prepared.gpus, source_folder, console.line
    with started(*starts, apart=False) as starting, told_at_once():
        found = training_problem(prepared, source, code)
        assert starting is not None
        cluster = arrived(starting)
        from raygpu.engines.production import placing

        where = placing(cluster, config.workers, config.devices_per_worker, source.kind, config.cluster.most_gpus)
        _check(config, found, cluster, where)
        folder = RunFolder.create(Path(prepared.config.runs_dir), str(prepared.config.name), prepared.config.storage)
        try:
            measuring = _Measuring(config, prepared, found, cluster, where, folder, console)
            cluster.require(folder.shared)
            curves, split = measuring.curves()
            split, job = measuring.job(split.shares, curves)
            equal = measuring.equal(split.global_batch)
        except BaseException:
            folder.remove()
            raise
    return _finish(measuring, source_folder, curves, split, job, equal, write)


def _check(config: BalanceConfig, found: Problem, cluster: Cluster, where: Placing) -> None:
    """Raises BadInput where the split that is asked for is not one for these devices."""
    ranks, chosen, most = where.ranks, config.chosen_batches, config.cluster.most_gpus
    if most is not None and most < len(cluster.devices):
        raise BadInput(f"cluster.max_gpus: a balance measures all {len(cluster.devices)} devices; leave it out")
    if chosen is not None and len(chosen) != ranks:
        raise BadInput(f"batches: read {config.batches}, {len(chosen)} numbers for {ranks} devices")
    if where.each > 1:
        raise BadInput("devices_per_worker: a balance measures workers of one device each; leave it at 1")
    if ranks % len(cluster.devices):
        raise BadInput(
            f"workers: {ranks} for {len(cluster.devices)} devices; Ray would choose among them: take all, or"
            " choose by --gpu.devices"
        )
    if ranks == 1:
        raise BadInput("workers: 1; there is nothing to balance on one device (--workers 2 shares it)")
    assert found.splits is not None
    spread(config.model_copy(update={"ratios": "equal"}), ranks, found.splits.num_train)


@dataclass(slots=True)
class _Steady:
    """A job's samples/s, once it is under way."""

    enough_s: float
    skipped: int = 0
    samples: list[int] = field(default_factory=list)
    wall_s: float = 0.0
    devices: dict[int, int] = field(default_factory=dict)
    """By rank."""

    def rates(self) -> tuple[float, ...]:
        """Samples/s in the order of the devices, and not of the ranks, which Ray numbers as it likes."""
        ranks = sorted(self.devices, key=lambda rank: (self.devices[rank], rank))
        return tuple(self.samples[rank] / self.wall_s for rank in ranks)

    def hear(self, told: Any) -> None:
        from raygpu.engines.production_worker import Joined

        if isinstance(told, Joined):
            self.devices[told.rank] = told.device
        if not isinstance(told, Progress):
            return
        if self.skipped < len(FIRST):  # the first steps allocate and trace
            self.skipped += 1
            return
        self.samples = [a + b for a, b in zip(self.samples or [0] * len(told.samples), told.samples, strict=True)]
        self.wall_s += told.wall_s

    def enough(self) -> bool:
        return self.wall_s >= self.enough_s


@dataclass(slots=True)
class _Measuring:
    """A training, and the devices that it is measured on."""

    config: BalanceConfig
    prepared: PreparedTrain
    found: Problem
    cluster: Cluster
    where: Placing
    folder: RunFolder
    console: SweepConsole
    places: list[int] = field(default_factory=list)
    """Each rank's device, by its index."""
    readings: dict[int, Any] = field(default_factory=dict)

    def curves(self) -> tuple[list[Curve], Balanced]:
        """Each rank's speeds alone, and the split that follows from them, or the one that is asked for."""
        from raygpu.engines.pace import Pace

        config, chosen = self.config, self.config.chosen_batches
        splits, say = self.found.splits, self.console.line
        assert splits is not None
        what = self.found.source, splits, self.prepared.trial, config.gpu.precision
        pace = Pace(self.cluster, self.where, *what, config.window_s)
        try:
            self.places = pace.places
            if chosen is not None:
                shares, curves = pace.at(chosen, say)
                return curves, predicted(curves, shares)
            first = min(int(config.hyperparameters.get("batch_size", 32)), splits.num_train)
            curves = pace.climb(first, say)
            whole = min(config.global_batch or splits.num_train, splits.num_train)
            found = balanced(curves, config.global_batch and whole)
            return curves, found if found.global_batch <= whole else balanced(curves, whole)
        except ValueError as error:
            raise RaygpuError(f"global_batch: {error}") from error
        finally:
            self.readings = pace.readings
            pace.close()

    def job(self, shares: Sequence[int], curves: Sequence[Curve]) -> tuple[Balanced, Job]:
        """The data-parallel job with these shares; lowered by a fifth while memory does not hold them."""
        from raygpu.engines.production import TrainingFailed

        while True:
            try:
                return predicted(curves, shares), self._trained(shares)
            except TrainingFailed as error:
                if not error.out_of_memory:
                    raise
                self.console.line(f"{error}; all shares by a fifth less")
                try:
                    shares = lowered(shares)
                except ValueError as nothing_left:
                    raise RaygpuError(str(error)) from nothing_left

    def equal(self, global_batch: int) -> Job | None:
        """The same with equal shares; None where memory does not hold them."""
        from raygpu.batching import split
        from raygpu.engines.production import TrainingFailed

        try:
            return self._trained(split(global_batch, [1.0] * self.where.ranks))
        except TrainingFailed as error:
            if not error.out_of_memory:
                raise
            return None

    def _trained(self, shares: Sequence[int]) -> Job:
        from raygpu.engines import production
        from raygpu.engines.production_worker import Job as Work

        config, steady = self.config, _Steady(self.config.job_s)
        self.console.line(f"training with {' + '.join(map(str, shares))} samples a step ...")
        work = Work(
            source=self.cluster.travelled(self.found.source),
            trial=self.prepared.trial,
            epochs=EPOCHS,
            precision=config.gpu.precision,
            threads=max(1, int(self.where.cpus)),
            parallel=Parallel(sum(shares), config.accumulate, tuple(map(float, shares)), compile=config.compile),
            devices=self.cluster.places(),
            scoring=Scoring(config.metric, config.maximize),
            checkpoint_epochs=EPOCHS,
            checkpoint_s=None,
            shared=self.where.shared,
            simulated=self.where.simulated,
        )
        assert self.found.splits is not None
        splits = _at_least(self.found.splits, STEPS * sum(shares))
        what = self.cluster, work, splits, self.where
        checkpoints = self.folder.shared_checkpoints
        try:
            ended = production.run(
                *what,
                checkpoints,
                keep=1,
                max_failures=0,
                listen=steady.hear,
                tick=self._look,
                say=self.console.line,
                enough=steady.enough,
            )
        finally:
            checkpoints.remove()
        if ended.interrupted:
            raise KeyboardInterrupt("interrupted; nothing was written")
        if not steady.samples:
            raise RaygpuError("the training diverged before its speed was measured; take a smaller lr")
        return Job(tuple(shares), steady.rates())

    def _look(self) -> None:
        self.readings |= {index: reading.metrics() for index, reading in self.cluster.readings().items()}


def _at_least(splits: Splits, count: int) -> Splits:
    """The data, over again where it is less: an epoch's end is no part of what is measured."""
    if splits.num_train >= count:
        return splits
    rows = np.arange(count) % splits.num_train
    inputs, targets = take(splits.train_inputs, rows), take(splits.train_targets, rows)
    few = slice(0, EVALUATED)
    return Splits(inputs, targets, take(splits.validation_inputs, few), take(splits.validation_targets, few))


def _finish(
    measuring: _Measuring,
    source_folder: Path,
    curves: Sequence[Curve],
    split: Balanced,
    job: Job,
    equal: Job | None,
    write: Path | None,
) -> Result:
    """The table, the plot, the summary and the configuration."""
    config, console, folder = measuring.prepared.config, measuring.console, measuring.folder
    assert isinstance(config, BalanceConfig)
    devices = [measuring.cluster.devices[place] for place in measuring.places]
    console.lines(["", *balances.table(devices, curves, split, measuring.readings), ""])
    console.lines(balances.verdict(split, job, equal))
    folder.trials.rmdir()
    folder.write_config(config, source_folder, kind="balance")
    balances.plot(
        f"{config.experiment}, {split.global_batch} samples a step",
        devices,
        curves,
        split,
        job,
        equal,
        folder.path / "balance.png",
    )
    summary = {
        "name": config.name,
        "ranks": [
            {
                "device": device.index,
                "name": device.name,
                "best_batch": curve.best,
                "rates": {str(batch): rounded(rate) for batch, rate in sorted(curve.rates.items())},
                "ended": curve.ended,
                "share": share,
                "samples_per_s": rounded(rate),
                "readings": dict(measuring.readings.get(device.index, {})),
            }
            for device, curve, share, rate in zip(devices, curves, split.shares, job.by_rank, strict=True)
        ],
        "global_batch": split.global_batch,
        "predicted_samples_per_s": rounded(split.samples_per_s),
        "balanced_samples_per_s": rounded(job.samples_per_s),
        "equal_samples_per_s": rounded(equal.samples_per_s) if equal is not None else None,
    }
    folder.write_summary(summary)
    target = write or folder.path / "train.toml"
    _write_train(config.model_copy(update={"epochs": measuring.config.epochs}), split, target)
    folder.publish()
    console.line(f"table, plot and data in {folder}")
    console.line(f"train with these ratios: python -m raygpu.train {target}")
    return Result(summary, folder.path)


def _require_writable(path: Path) -> None:
    """Raises BadInput where a new file cannot be made there."""
    if path.exists():
        raise BadInput(f"--write: {path} exists already; choose another file")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        path.unlink()
    except OSError as error:
        raise BadInput(f"--write: {path} cannot be written: {error.strerror}") from error


def _write_train(config: BalanceConfig, split: Balanced, path: Path) -> None:
    """The configuration with the ratios, as a file for raygpu.train."""
    values = config.model_dump(exclude_none=True, exclude_defaults=True, exclude={"name"})
    own = set(BalanceConfig.model_fields) - set(TrainConfig.model_fields)
    values = {name: value for name, value in values.items() if name not in own}
    if "uri" in (tracking := values.get("tracking", {})):
        tracking["uri"] = redacted(tracking["uri"])
    values |= {"ratios": ",".join(map(str, split.shares)), "global_batch": split.global_batch}
    path.write_text(tomli_w.dumps(values))


COMMAND = Command("balance", __doc__, BalanceConfig, DEFAULT, SWITCHES, OPTIONS)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    return COMMAND.main(argv, _main)


def _main(arguments: flags.Arguments) -> Outcome:
    path, config = COMMAND.read(arguments)
    write = arguments.options.get("write")
    result = run(
        config,
        stem=f"{path.stem}-balance",
        source_folder=flags.source_folder(config.experiment, path),
        write=Path(write) if write is not None else None,
        console=SweepConsole(json="json" in arguments.switches),
    )
    return Outcome(0, result.summary)


if __name__ == "__main__":
    sys.exit(main())
