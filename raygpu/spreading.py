"""How a production training is spread over devices: its batches, its learning rate, and lines that tell of both."""

from __future__ import annotations

from dataclasses import dataclass

from raygpu.batching import split
from raygpu.config import TrainConfig
from raygpu.errors import BadInput
from raygpu.training.hyperparameters import OptimizerSettings, batch_size
from raygpu.training.parallel import Parallel

WARMUP = 0.05
"""Of all epochs: over which a scaled learning rate rises where nothing is said."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A training's batches over its devices."""

    parallel: Parallel
    lines: tuple[str, ...]
    """For a person."""


def spread(config: TrainConfig, devices: int, num_train: int, *, global_batch: int | None = None) -> Spread:
    """What each optimizer step is.

    devices: of all workers. global_batch: of an earlier start of the same run, whose steps go on.

    Raises BadInput with a line for each fault.
    """
    try:
        size, settings = batch_size(config.hyperparameters), OptimizerSettings.of(config.hyperparameters)
    except ValueError as error:
        raise BadInput(f"hyperparameters: {str(error).removeprefix('hyper-parameter ')}") from error
    whole = global_batch or config.global_batch or size * devices * config.accumulate
    ratios = config.chosen_ratios
    faults = []
    if len(ratios) not in (0, devices):
        faults.append(f"ratios: read {config.ratios}, {_count(len(ratios), 'number')} for {_count(devices, 'device')}")
    if whole < devices:
        faults.append(f"global_batch: read {whole}; {devices} devices need {devices} samples at least, one each")
    if num_train < devices:
        faults.append(f"workers: {_count(devices, 'device')}, but there are {_count(num_train, 'training sample')}")
    if faults:
        raise BadInput(faults)
    lines = []
    if whole > num_train:
        lines.append(f"a batch is all {num_train} training samples, not {whole}")
        whole = num_train
    factor = {"none": 1.0, "linear": whole / size, "sqrt": (whole / size) ** 0.5}[config.lr_scaling]
    warmup = config.warmup_epochs
    if warmup is None and factor != 1 and "warmup_epochs" not in config.hyperparameters:
        warmup = WARMUP * (config.epochs or 1)
    parallel = Parallel(whole, config.accumulate, ratios, config.ratios == "auto", config.compile, factor, warmup)
    return Spread(parallel, (_batches(config, parallel, devices, size), *lines, _lr(settings, parallel)))


def _batches(config: TrainConfig, parallel: Parallel, devices: int, size: int) -> str:
    shares = split(parallel.global_batch, parallel.ratios or [1.0] * devices)
    parts = " + ".join(map(str, shares)) if len(shares) <= 8 else f"{min(shares)} to {max(shares)} on each device"
    how = {"auto": ", to begin with, then by measured speeds", "equal": ""}.get(config.ratios, f", as {config.ratios}")
    taken = f", each in {parallel.accumulate} parts" if parallel.accumulate > 1 else ""
    whole = f"{parallel.global_batch} samples" if devices == 1 else f"{parallel.global_batch} samples: {parts}{how}"
    return f"an optimizer step: {whole}{taken} (batch_size is {size})"


def _lr(settings: OptimizerSettings, parallel: Parallel) -> str:
    warmup = settings.warmup_epochs if parallel.warmup_epochs is None else parallel.warmup_epochs
    lr = f"{settings.lr:g}"
    if parallel.lr_factor != 1:
        lr += f" x {parallel.lr_factor:.4g} = {settings.lr * parallel.lr_factor:.4g}"
    rising = f", rising over {_count(round(warmup, 2), 'epoch')}" if warmup else ""
    return f"{settings.optimizer}, learning rate {lr}{rising}, {settings.schedule}"


def _count(number: float, thing: str) -> str:
    return f"{number:g} {thing}" if number == 1 else f"{number:g} {thing}s"
