"""The parts of an experiment's data that a command trains and scores on: a fraction, folds, the samples of an epoch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from raygpu.config import ProblemConfig, SweepConfig, TrainConfig
from raygpu.config.source import Source
from raygpu.errors import BadInput
from raygpu.experiment import Splits, class_labels, named, num_samples, reads_later
from raygpu.search.trials import BATCH_SIZE
from raygpu.training.folds import Folds


def part_of(config: ProblemConfig, splits: Splits, hp: Mapping[str, Any]) -> Splits:
    """Return the data with the fraction to train on and the length of an epoch. Raises BadInput.

    hp: hyper-parameters of the training, of a sweep's those with the largest batch.
    """
    if splits.per_epoch is not None:
        raise BadInput(
            f"experiment: data() returned Splits with per_epoch={splits.per_epoch}; data.samples_per_epoch sets it"
        )
    source = config.source if isinstance(config, TrainConfig) else {}
    part = splits.part(config.data.fraction, source.get("data_seed", config.seed))  # the samples that the trials had
    read = config.data.samples_per_epoch
    if read is None:
        return part
    batch = hp.get("batch_size", BATCH_SIZE)
    if read < batch:
        raise BadInput(f"data.samples_per_epoch: read {read}; an epoch has at least one batch, here of {batch} samples")
    if reads_later(part.train_inputs):
        _require_shorter(read, part)
    return replace(part, per_epoch=read)


def _require_shorter(read: int, part: Splits) -> None:
    """Raise BadInput for epochs that samples which are read do not allow."""
    if any(getattr(array, "in_order", False) for array in named(part.train_inputs).values()):
        raise BadInput(
            f"data.samples_per_epoch: read {read}; a stream begins anew in each epoch: num_samples of dataset_splits"
            " tells its length"
        )
    if read > part.num_train:
        raise BadInput(
            f"data.samples_per_epoch: read {read}, of {part.num_train} training samples; an epoch of"
            " dataset_splits is one pass at most"
        )


def require_own_settings(config: ProblemConfig, source: Source) -> None:
    """Raise BadInput for settings of data and precision, which a function or a script decides itself."""
    faults = [
        f"data.{key}: read {read}; a {source.kind} loads its own data, and decides on its epochs"
        for key in ("fraction", "samples_per_epoch")
        if (read := getattr(config.data, key)) not in (None, 1.0)
    ]
    if config.gpu.precision != "float32":
        advice = f"a {source.kind} sets its own precision; give --gpu.precision float32"
        faults.append(f"gpu.precision: read {config.gpu.precision}; {advice}")
    if faults:
        raise BadInput(faults)


def folds_of(config: SweepConfig, splits: Splits) -> Folds | None:
    """Return the folds of a cross-validation; None without one. Raises BadInput."""
    if config.folds is None:
        return None
    if reads_later(splits.train_inputs):
        raise BadInput(
            f"folds: read {config.folds}; folds are cut from arrays, and this data is of dataset_splits, whose"
            " validation samples may be read in another way than those to train on"
        )
    if config.data.samples_per_epoch is not None:
        raise BadInput(
            f"folds: read {config.folds}; data.samples_per_epoch: read {config.data.samples_per_epoch}; one of the two"
        )
    try:
        return Folds.of(splits, config.folds, config.seed, config.data.fraction)
    except ValueError as error:
        raise BadInput(f"folds: read {config.folds}; {error}") from error


def cut_lines(splits: Splits, part: Splits, folds: Folds | None = None) -> Iterable[str]:
    """Yield a line on each way in which the data is cut. part: what is trained on."""
    if folds is not None:
        each = sorted({folds.num_validation(fold) for fold in range(folds.num_folds)})
        samples = " or ".join(f"{count:,}" for count in each)
        how = "stratified by class" if class_labels(folds.targets) is not None else "cut at random"
        cut = f"{folds.num_folds} folds of {samples} samples, {how}"
        yield f"data: {cut}; each training leaves one out to validate on it"
    if splits.test_targets is not None:
        tested = num_samples(splits.test_targets)
        yield f"data: {tested:,} test samples, kept from all training, for the best model alone"
    if part.per_epoch is not None:
        passes = f"{part.per_epoch / part.num_train:.3g} passes over the {part.num_train:,} there are"
        yield f"data: an epoch is {part.per_epoch:,} training samples, {passes}"
