"""Effects of taking a batch in parts, by one device or by several: told in a line, or refused.

notes = lines_of_parts(source, experiment, {"batch_size": 256, "micro_batch_size": 64}, splits)
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from raygpu.config.source import Source
from raygpu.errors import BadInput, one_line
from raygpu.experiment import Experiment, Splits, num_samples, reads_later, take
from raygpu.planning.batches import EVALUATION_BATCH, evaluation_bounds
from raygpu.search.hyperparameters import MissingHyperparameter
from raygpu.training.distributed.loss_check import ADD_LOSS, MOST, Difference, differences
from raygpu.training.hyperparameters import OptimizerSettings
from raygpu.training.loss_kinds import IN_WORDS

LOOKED_AT = 64
"""Smallest number of samples in the comparison of a loss with the losses of parts."""
HOOKED = "the hook of {name} sees the gradient of each part of a batch, before they are summed"
BY_SHARE = "for a loss that compares samples with each other, --loss-by-share trains on each share's own"
WHOLE = "for a loss that compares samples with each other, leave micro_batch_size out"


def part_sizes(hp: Mapping[str, Any], splits: Splits) -> list[int]:
    """Return the samples of each part of a whole batch of a training on one device."""
    settings = OptimizerSettings.of(hp)
    return settings.parts_of(min(settings.batch_size, splits.samples_per_epoch))


def lines_of_parts(source: Source, code: Experiment, hp: Mapping[str, Any], splits: Splits) -> list[str]:
    """Return lines on a torch training on one device whose batches `micro_batch_size` cuts.

    Raises BadInput if the loss of a batch does not follow from those of its parts, or a part is too small.
    """
    from raygpu.training.torch.models import has_batch_norm
    from raygpu.training.torch.parameter_traits import hooked_parameter

    settings, smallest = OptimizerSettings.of(hp), min(part_sizes(hp, splits))
    few = splits.first(MOST) if reads_later(splits.train_inputs) else splits
    inputs, targets = few.train_inputs, few.train_targets
    with users_code(source):
        look = loss_evaluator(source)(code, hp, inputs, targets, with_metrics=False)
        if smallest < look.least_samples():
            raise BadInput(
                f"space.micro_batch_size: read {settings.micro_batch_size}; the model cannot be trained on parts of"
                f" {smallest} samples (BatchNorm?)"
            )
        lines = state_lines(look, by_share=False)
        if (name := hooked_parameter(look.model)) is not None:
            lines.append(HOOKED.format(name=name))
        if has_batch_norm(look.model):
            lines.append("BatchNorm: each part of a batch is normalised by itself")
        require_dense(look, "micro_batch_size", "leave it out")
        inexact = differences(look, inputs, targets, max(settings.batch_size, LOOKED_AT))
        return lines + [loss_line(each, source, WHOLE) for each in inexact]


def require_dense(look: Any, name: str, remedy: str) -> None:
    """Raise BadInput if the optimizer takes sparse gradients alone: those of parts of a batch are added as dense ones.

    look: of a torch experiment. name: of the setting that cuts batches. remedy: what to do about it.
    """
    if look.takes_sparse_gradients():
        raise BadInput(
            f"{name}: optimizer() returned SparseAdam, which takes sparse gradients, and those of the parts of a batch"
            f" are added as dense ones: {remedy}, or use another optimizer"
        )


def metric_lines(source: Source, code: Experiment, hp: Mapping[str, Any], splits: Splits) -> list[str]:
    """Return the lines of `inexact_metrics`; where the experiment's code fails on the samples that are looked at, a
    line that says so. Raises MissingHyperparameter."""
    try:
        return inexact_metrics(source, code, hp, splits)
    except MissingHyperparameter:
        raise
    except Exception as error:  # noqa: BLE001 - the user's code: whatever it raises is the message
        return [
            f"an evaluation takes {EVALUATION_BATCH:,} samples at a time; whether its metrics are means over samples is"
            f" not known, as a look at them failed: {one_line(error)}; raygpu.Mean(total, weight) is exact"
        ]


@contextlib.contextmanager
def users_code(source: Source) -> Iterator[None]:
    """Look at the experiment's loss in its folder. Raises BadInput with the message of any exception of its code."""
    try:
        with contextlib.chdir(source.folder):
            yield
    except BadInput:
        raise
    except Exception as error:  # the user's code: whatever it raises is the message
        raise BadInput(f"experiment: {source.name}: a look at its loss failed: {one_line(error)}") from error


def inexact_metrics(source: Source, code: Experiment, hp: Mapping[str, Any], splits: Splits) -> list[str]:
    """Return a line for the loss, and for each metric, that is no mean over samples, where an evaluation takes the
    validation or the test samples in several batches. Some validation samples are looked at. Raises any exception of
    the experiment."""
    look_at, num_validation = loss_evaluator(source), num_samples(splits.validation_targets)
    sizes = {"validation": num_validation}
    if splits.test_targets is not None:
        sizes["test"] = num_samples(splits.test_targets)
    cut = {part: size for part, size in sizes.items() if len(evaluation_bounds(size)) > 1}
    if not cut:
        return []
    rows = np.unique(np.linspace(0, num_validation - 1, MOST).astype(int))
    inputs, targets = take(splits.validation_inputs, rows), take(splits.validation_targets, rows)
    look = look_at(code, hp, inputs, targets, with_metrics=True)
    return [
        f"{' and '.join(f'{part}/{difference.name}, of {size:,} samples,' for part, size in cut.items())}"
        f" {'is' if len(cut) == 1 else 'are'} the mean of batches of {EVALUATION_BATCH:,},"
        f" as it is no mean over samples: {difference}; raygpu.Mean(total, weight) is exact"
        for difference in differences(look, inputs, targets, with_random_outputs=True)
        if difference.kind == "parts"
    ]


def loss_evaluator(source: Source) -> Any:
    """Return the framework's class that evaluates a loss on chosen samples."""
    if source.kind == "torch":
        from raygpu.training.distributed.torch_loss_check import TorchLossEvaluator

        return TorchLossEvaluator
    from raygpu.training.distributed.keras_loss_check import KerasLossEvaluator

    return KerasLossEvaluator


def state_lines(look: Any, *, by_share: bool) -> list[str]:
    """Return lines on effects of a batch's parts on a torch model that differ from those of the whole batch."""
    lines, path = effect_lines(look), look.moving_state()
    if written := look.written_parameters():
        lines.append(
            f"a forward pass writes to parameters in place ({', '.join(written[:3])}): each device changes its own copy"
            " by its own share of a batch, and the first device's is kept"
        )
    if path is not None:
        lines.append(f"{path} changes while it trains: each device, and each part of a batch, changes its own")
    if not by_share:
        lines += gradient_lines(look)
    return lines


def evaluation_lines(look: Any) -> list[str]:
    """Return a line on state in Python that an evaluation changes, where one of several devices evaluates."""
    path = look.evaluated_state()
    if path is None:
        return []
    return [
        f"{path} changes in an evaluation, which the first device alone runs: a training step that reads it differs"
        " between devices; a buffer of the model is the same on all"
    ]


def gradient_lines(look: Any) -> list[str]:
    """Return a line on a gradient that does not follow from those of a batch's parts, in any framework."""
    if look.gradient_adds_up():
        return []
    return [
        "the gradient of a batch is not the mean of those of its parts, though the loss is: each part's is computed by"
        f" itself. It may be {look.gradient_causes}"
    ]


def effect_lines(look: Any) -> list[str]:
    """Return lines on effects of a batch's parts, in any framework, that differ from those of the whole batch."""
    lines, names = [], look.moving_buffers()
    if names:
        which = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        lines.append(
            f"buffers that training changes ({which}): each part of a batch changes them by itself, and each step"
            " begins with the first device's"
        )
    if look.augments_together():
        lines.append("augment() makes a sample of others of its batch too: each part of a batch is augmented by itself")
    return lines


def loss_line(found: Difference, source: Source, remedy: str = BY_SHARE) -> str:
    """Return a line for an inexact loss. Raises BadInput for a loss that would silently become another one.

    remedy: what to do about a loss that is right, and cannot be cut.
    """
    if found.kind == "unsteady":
        return (
            "the loss of the same samples changes from call to call, or is not finite: whether it is a mean over"
            " samples, as splitting a batch needs, is not known"
        )
    if found.kind == "outputs":
        return (
            f"the model's outputs for a sample depend on the rest of its batch: the loss is {found}; each part of a"
            " batch is by itself"
        )
    if found.name == ADD_LOSS:
        raise BadInput(
            f"experiment: {source.name}: what add_loss() adds to the loss is no mean over samples: {found}. Each part"
            " of a batch, as on each device, would count with another weight: give add_loss() a mean over samples;"
            " --loss-by-share trains on each share's own"
        )
    assert found.value is not None
    kind = found.value.kind
    fault = "no mean over samples" if kind == "scalar" else f"{IN_WORDS[kind]} that does not add up"
    raise BadInput(
        f"experiment: {source.name}: the loss is {fault}: {found}. The loss of each part of a batch, as on each device,"
        " would be of that part alone: return raygpu.Mean(total, weight) or raygpu.Sum(total) from loss() or"
        f" training_step(); {remedy}"
    )
