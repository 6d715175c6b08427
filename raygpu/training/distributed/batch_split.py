"""The spread of a production training over devices: its batches, its learning rate, and lines that tell of both."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from raygpu.config import TrainConfig
from raygpu.config.source import Source
from raygpu.errors import BadInput
from raygpu.experiment import Splits, reads_later
from raygpu.planning.batch_shares import split_batch
from raygpu.training.distributed.loss_check import MOST, differences
from raygpu.training.distributed.micro_batch_check import (
    LOOKED_AT,
    effect_lines,
    evaluation_lines,
    gradient_lines,
    loss_evaluator,
    loss_line,
    metric_lines,
    require_dense,
    state_lines,
    users_code,
)
from raygpu.training.distributed.ranks import ParallelSettings
from raygpu.training.hyperparameters import OptimizerSettings
from raygpu.training.torch.experiment import overrides, yields_losses

WARMUP = 0.05
"""Share of all epochs over which a scaled learning rate rises, without a configured warm-up."""
COLLATED = (
    "collate_fn makes a sample of others of its batch too, or fills it up and the outputs depend on how far: each part"
    " of a batch is made by itself"
)
MOST_CHANGES = 6
"""Largest number of changes by epoch that a line names."""


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """The split of a training's batches over its devices."""

    parallel: ParallelSettings
    lines: tuple[str, ...]
    """Lines for a person."""
    lr_line: str = ""
    """Line on the learning rate."""

    @property
    def settings(self) -> OptimizerSettings:
        """Settings of the optimizer steps, with the learning rate scaled."""
        assert self.parallel.optimizer_settings is not None
        return self.parallel.optimizer_settings


def spread(config: TrainConfig, devices: int, samples_per_epoch: int, *, global_batch: int | None = None) -> BatchPlan:
    """Return the batch, shares and learning rate of each optimizer step.

    devices: number of devices of all workers. global_batch: samples per step of an earlier start of the same run, which
    go on.

    Raises BadInput with a line for each fault.
    """
    settings, total = require_batch(config, devices, global_batch=global_batch)
    if samples_per_epoch < devices:
        raise BadInput(
            f"workers: {_count(devices, 'device')}, but there are {_count(samples_per_epoch, 'training sample')}"
        )
    lines = []
    if total > samples_per_epoch:
        lines.append(f"a batch is all {samples_per_epoch} training samples of an epoch, not {total}")
        total = samples_per_epoch
    growth = total / min(settings.batch_size, samples_per_epoch)  # as a trial's batch is
    factor = {"none": 1.0, "linear": growth, "sqrt": growth**0.5}[config.lr_scaling]
    warmup = config.warmup_epochs
    chosen = any("warmup_epochs" in values for values in (config.hyperparameters, *config.changes))
    if warmup is None and factor != 1 and not chosen:
        warmup = WARMUP * (config.epochs or 1)
    scaled = settings.scaled(factor, warmup, growth)
    if scaled.ema_decay != settings.ema_decay:
        lines.append(
            f"ema_decay {settings.ema_decay:g} becomes {scaled.ema_decay:.4g}: a batch is {growth:.4g} times as large"
        )
    most = max(split_batch(total, config.chosen_ratios or [1.0] * devices))
    parallel = ParallelSettings(
        total,
        config.accumulate,
        config.chosen_ratios,
        config.ratios == "auto",
        config.compile,
        scaled,
        micro_parts=len(settings.parts_of(most)),
    )
    batches = _batches(config, parallel, devices, settings.batch_size)
    return BatchPlan(parallel, (batches, *lines), _lr(settings, scaled, factor))


def require_batch(
    config: TrainConfig, devices: int, *, global_batch: int | None = None
) -> tuple[OptimizerSettings, int]:
    """Return the optimizer settings, and the samples of an optimizer step, before anything about the data is known.

    devices: number of devices of all workers. global_batch: see `spread`. Raises BadInput with a line for each fault.
    """
    try:
        settings = OptimizerSettings.of(config.hyperparameters, config.changes)
    except ValueError as error:
        raise BadInput(f"hyperparameters: {str(error).removeprefix('hyper-parameter ')}") from error
    total = global_batch or config.global_batch or settings.batch_size * devices * config.accumulate
    numbers, faults = len(config.chosen_ratios), []
    if numbers not in (0, devices):
        faults.append(f"ratios: read {config.ratios}, {_count(numbers, 'number')} for {_count(devices, 'device')}")
    if total < devices:
        faults.append(f"global_batch: read {total}; {devices} devices need {devices} samples at least, one each")
    if faults:
        raise BadInput(faults)
    return settings, total


def checked(config: TrainConfig, plan: BatchPlan, devices: int, source: Source, code: Any, splits: Splits) -> BatchPlan:
    """Check that the loss can be split as planned; return the plan with a line for each inexact result.

    Raises BadInput if a batch is cut and its loss does not follow from those of its parts.
    """
    with users_code(source):
        return _checked(config, plan, devices, source, code, splits)


def _checked(
    config: TrainConfig, plan: BatchPlan, devices: int, source: Source, code: Any, splits: Splits
) -> BatchPlan:
    parallel, lines, lr_line, look_at = plan.parallel, list(plan.lines), plan.lr_line, loss_evaluator(source)
    if source.kind == "torch" and overrides(code, "optimizer"):
        lr_line = "optimizer() is the experiment's own: its learning rate is not changed to the size of a batch"
    samples_per_epoch = splits.samples_per_epoch
    all_splits, splits = splits, splits.first(MOST) if reads_later(splits.train_inputs) else splits
    if devices > 1 or parallel.num_parts > 1:
        if parallel.num_parts > 1 and source.kind == "torch" and yields_losses(code):
            raise BadInput(
                f"accumulate: read {parallel.num_parts}; {source.name} has several optimizers, which take turns with"
                " whole batches: leave it out"
            )
        inputs, targets = splits.train_inputs, splits.train_targets
        look = look_at(code, config.hyperparameters, inputs, targets, with_metrics=False)
        if source.kind == "torch":
            parallel = _with_least(parallel, look.least_samples(), devices, samples_per_epoch)
            require_dense(
                look, *(("workers", "train on one device") if devices > 1 else ("accumulate", "leave it out"))
            )
            lines += state_lines(look, by_share=config.loss_by_share)
            if devices > 1 and config.sharding != "full":  # with which all devices evaluate
                lines += evaluation_lines(look)
        else:
            lines += effect_lines(look)
            lines += [] if config.loss_by_share else gradient_lines(look)
        if (devices > 1 or source.kind == "keras") and look.collates_together(all_splits):
            lines.append(COLLATED)
        if config.loss_by_share:
            lines.append("loss by share: each device's loss is of its share of a batch alone, as loss_by_share asks")
        else:
            most = max(parallel.global_batch, LOOKED_AT)
            lines += dict.fromkeys(loss_line(each, source) for each in differences(look, inputs, targets, most))
    lines += metric_lines(source, code, config.hyperparameters, all_splits)
    return BatchPlan(parallel, tuple(lines), lr_line)


def _with_least(parallel: ParallelSettings, least: int, devices: int, samples_per_epoch: int) -> ParallelSettings:
    """Give each part of a batch at least the samples that the model needs. Raises BadInput if there are too few."""
    if least == 1:
        return parallel
    for name, samples in (("global_batch", parallel.global_batch), ("training samples", samples_per_epoch)):
        if samples < least * devices:
            raise BadInput(
                f"{name}: read {samples}; the model cannot be trained on a single sample (BatchNorm?), so {devices}"
                f" devices need {least * devices} samples at least"
            )
    return replace(parallel, least=least)


def _batches(config: TrainConfig, parallel: ParallelSettings, devices: int, size: int) -> str:
    shares = split_batch(parallel.global_batch, parallel.ratios or [1.0] * devices)
    parts = " + ".join(map(str, shares)) if len(shares) <= 8 else f"{min(shares)} to {max(shares)} on each device"
    how = {"auto": ", to begin with, then by measured speeds", "equal": ""}.get(config.ratios, f", as {config.ratios}")
    accumulation = f", each in {parallel.num_parts} parts" if parallel.num_parts > 1 else ""
    if devices > 1 and parallel.micro_parts > parallel.accumulate:  # a small share has fewer
        assert parallel.optimizer_settings is not None
        accumulation = f", in parts of {_count(parallel.optimizer_settings.micro_batch_size or 1, 'sample')} at most"
    batch = f"{parallel.global_batch} samples" if devices == 1 else f"{parallel.global_batch} samples: {parts}{how}"
    return f"an optimizer step: {batch}{accumulation} (batch_size is {size})"


def _lr(settings: OptimizerSettings, scaled: OptimizerSettings, factor: float) -> str:
    lr = f"{settings.lr:g}"
    if factor != 1:
        lr += f" x {factor:.4g} = {scaled.lr:.4g}"
    rising = f", rising over {_count(round(scaled.warmup_epochs, 2), 'epoch')}" if scaled.warmup_epochs else ""
    changes = ""
    if scaled.later:
        epochs = [str(epoch) for epoch, _ in scaled.later]
        more = " ..." if len(epochs) > MOST_CHANGES else ""
        changes = f"; other values from epoch {', '.join(epochs[:MOST_CHANGES])}{more} on"
    return f"{settings.optimizer}, learning rate {lr}{rising}, {settings.schedule}{changes}"


def _count(number: float, thing: str) -> str:
    return f"{number:g} {thing}" if number == 1 else f"{number:g} {thing}s"
