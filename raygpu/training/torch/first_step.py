"""The first step of a torch experiment on a few samples, before anything is started."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from raygpu.experiment import Experiment, Mean, Splits, num_samples
from raygpu.planning.batches import EVALUATION_BATCH
from raygpu.search.trials import EpochResult, Trial
from raygpu.training import base
from raygpu.training.base import Settings
from raygpu.training.own_copy import own_copy
from raygpu.training.random_outputs import SEEDS
from raygpu.training.rounded_steps import rounding_lines
from raygpu.training.sample_pairs import TARGETS, Rows, broadcast_shapes, common_shape, over_pairs, varied_rows
from raygpu.training.torch.experiment import forward, overrides, own_methods, training_loss
from raygpu.training.torch.optimizers import BuiltinOptimizer
from raygpu.training.torch.python_state import learned_outside
from raygpu.training.torch.random_outputs import random_outputs, substitutes
from raygpu.training.torch.reduction import objective
from raygpu.training.torch.seeding import seed_all
from raygpu.training.torch.solo import TorchSolo
from raygpu.training.torch.training_mode import switched

Measure = Callable[[Any, Any], Mapping[str, Any]]
"""Function of values and targets, tensors (batch, ...) or trees of them, that returns numbers by name."""

MANY_NUMBERS = 2**24
"""Numbers of outputs above which a look at what metrics remember takes two samples alone."""
UNTRAINED = (
    "{name} gets a gradient and is no part of the model, so that no optimizer changes it: make it a part of what"
    " model(hp) returns, or set its requires_grad to False"
)
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
"""Modules that torch by itself computes in TF32."""


def first_result(
    experiment: Experiment, splits: Splits, hp: Mapping[str, Any]
) -> tuple[EpochResult, frozenset[str], list[str], bool]:
    """Train and evaluate on a few samples, on the CPU, before anything is started.

    Returns the result, the names of the hyper-parameters that were read, lines on what the training ignores or rounds
    away, and whether the model has convolutions. A very large model is evaluated alone. splits: the few samples. Raises
    any exception of the experiment.
    """
    settings = Settings(epochs=1, threads=torch.get_num_threads(), precision="float32", folder=Path())
    experiment = own_copy(experiment)
    training = TorchSolo(experiment, splits, Trial("t0000", 0, hp), settings, torch.device("cpu"))
    if own_methods(experiment):
        _ = training.optimizer  # made also for a large model, which takes no step: what it reads counts as read
    before = training.model.state_dict().keys()
    result = base.first_result(training, sum(parameter.numel() for parameter in training.model.parameters()))
    untrained = _untrained(training)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about single samples, whose axes a squeeze() drops
        _require_sample_by_sample(training)
    if added := training.model.state_dict().keys() - before:
        raise ValueError(
            f"{min(added)} is in the model's state after a step, and not before it: a new model could not take a"
            " checkpoint's state over; make it in model(hp)"
        )
    convolves = any(isinstance(module, CONVOLUTIONS) for module in training.model.modules())
    return result, frozenset(training.hp.names_read), [*untrained, *_switched(training), *_rounded(training)], convolves


def _rounded(training: TorchSolo) -> list[str]:
    """Return a line on parameters in half precision that got a gradient in the step, for raygpu's own optimizer: one of
    the experiment's may keep what is rounded away. Of a large model, which takes no step, all count that may get
    one."""
    optimizer = vars(training).get("optimizer")
    if optimizer is None:
        trained = [parameter for parameter in training.model.parameters() if parameter.requires_grad]
    elif isinstance(optimizer, BuiltinOptimizer):
        steps = max(1, optimizer.num_steps)
        rows = zip(optimizer.parameters, optimizer.missed, strict=True)
        trained = [parameter for parameter, missed in rows if missed < steps]
    else:
        return []
    return rounding_lines(str(parameter.dtype).removeprefix("torch.") for parameter in trained)


def _switched(training: TorchSolo) -> list[str]:
    """Return a line on a part that `model(hp)` left in evaluation mode, that is put into training mode because its
    parameters may train, and that got no gradient in the step, for raygpu's own optimizer: a teacher, for one."""
    optimizer = vars(training).get("optimizer")
    if not isinstance(optimizer, BuiltinOptimizer) or not optimizer.num_steps:
        return []
    rows = zip(optimizer.parameters, optimizer.missed, strict=True)
    trained = {id(parameter) for parameter, missed in rows if missed < optimizer.num_steps}
    for name, module in switched(training.model):
        if not any(id(parameter) in trained for parameter in module.parameters()):
            return [
                f"{name} of the model is in evaluation mode and gets no gradient, and is put into training mode: in"
                " model(hp), requires_grad_(False) keeps it as it is"
            ]
    return []


def _untrained(training: TorchSolo) -> list[str]:
    """Return a line on a parameter or module of the experiment, or of a variable that its code reads, that has got a
    gradient and is not the model's."""
    parameter_ids = {id(parameter) for parameter in training.model.parameters()}
    for name, value in vars(training.experiment).items():
        items = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else [value]
        parameters = [each for each in items if isinstance(each, nn.Parameter)]
        parameters += [each for module in items if isinstance(module, nn.Module) for each in module.parameters()]
        if any(each.grad is not None and id(each) not in parameter_ids for each in parameters):
            return [UNTRAINED.format(name=f"self.{name}")]
    with suppress(Exception):  # objects of the user's, which may raise anything
        for path, tensor in learned_outside(training.model, training.experiment):
            if tensor.grad is not None:
                return [UNTRAINED.format(name=path)]
    return []


def _require_sample_by_sample(training: TorchSolo) -> None:
    """Raise ValueError if the loss or a metric compares each sample's output with each sample's target, or if a metric
    adds up the batches of earlier calls."""
    few = slice(0, min(EVALUATION_BATCH, training.data.num_validation))
    inputs, targets = next(training.data.validation_batches([few]))
    experiment, model = own_copy(training.experiment), training.model
    model.eval()
    with torch.no_grad():
        outputs = forward(model, inputs)
        _require_no_memory(training.experiment, outputs, targets)
        shapes = broadcast_shapes(_shapes(outputs), _shapes(targets))
        if shapes is None:
            return
        names = _each_with_each(lambda o, t: {"loss()": experiment.loss(o, t)}, outputs, targets)
        for each in chain([outputs], (random_outputs(outputs, seed) for seed in SEEDS)):
            names += _each_with_each(partial(_metrics, experiment), each, targets)
    size = sum(parameter.numel() for parameter in model.parameters())
    if overrides(experiment, "training_step") and size <= base.LARGE:  # which may take gradients itself
        step = partial(training_loss, experiment, model, hp=training.hp)
        names += _each_with_each(lambda x, t: {"training_step()": step(x, t)}, inputs, targets)
    if names:
        raise ValueError(
            f"{names[0]} gets outputs {shapes[0]} and targets {shapes[1]}, and compares each with each: reshape one of"
            f" them, as targets.reshape({common_shape(*shapes, 'outputs')})"
        )


def _shapes(tree: Any) -> list[tuple[int, ...]]:
    return [tuple(leaf.shape) for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _require_no_memory(experiment: Experiment, outputs: Any, targets: Any) -> None:
    """Raise ValueError if a metric of some samples depends on which ones were evaluated before, or on their outputs,
    and not on the number of calls or the time alone."""
    is_large = sum(leaf.numel() for leaf in tree_leaves(outputs) if isinstance(leaf, torch.Tensor)) > MANY_NUMBERS
    count, seeds = (2, SEEDS[:1]) if is_large else (num_samples(targets), SEEDS)
    first, others = list(range(count // 2)), list(range(count // 2, count))

    def after(other_outputs: Any, other_targets: Any) -> dict[tuple[str, str], float]:
        """Return the metrics of the first samples after they and these have been evaluated."""
        metrics = partial(_metrics, own_copy(experiment))
        _values(metrics, outputs, targets, first)
        _values(metrics, other_outputs, other_targets, list(range(num_samples(other_targets))))
        return _values(metrics, outputs, targets, first)

    try:
        same, other = ((_taken(outputs, rows), _taken(targets, rows)) for rows in (first, others))
        values, again = after(*other), after(*other)
    except Exception:  # noqa: BLE001 - metrics may want more samples, or other ones
        return
    steady = {key: value for key, value in values.items() if math.isclose(value, again.get(key, value), rel_tol=1e-6)}
    for pair in chain([same], ((each, other[1]) for each in substitutes(*other, seeds))):
        changed: Mapping[tuple[str, str], float] = {}
        with suppress(Exception):  # as above
            changed = after(*pair)
        for key, value in steady.items():
            later = changed.get(key, value)
            if not math.isclose(value, later, rel_tol=1e-4):
                raise ValueError(
                    f"{key[0]} of some samples is {value:.4g} or {later:.4g}: it depends on what was evaluated before:"
                    " compute it from outputs and targets alone, as torchmetrics.functional does"
                )


def _metrics(experiment: Experiment, outputs: Any, targets: Any) -> dict[str, Any]:
    return {f"the metric {name!r}": value for name, value in experiment.metrics(outputs, targets).items()}


def _each_with_each(measure: Measure, values: Any, targets: Any) -> list[str]:
    """Return the names of those measures of a few samples that are measures of all their pairs, of all targets or of
    one of several by name."""
    places = varied_rows([leaf.detach().numpy() for leaf in tree_leaves(targets)])
    names: list[Any] = list(targets) if isinstance(targets, Mapping) else []
    pair_measures: list[str] = []

    @cache
    def score(rows: Rows) -> dict[tuple[str, str], float]:
        """Return the measures of some samples."""
        return _values(measure, values, targets, [places[row] for row in rows])

    for group in [names, *([name] for name in names if 1 < len(names) <= TARGETS)]:

        def pair(row: int, column: int, group: Sequence[Any] = group) -> dict[tuple[str, str], float]:
            """Return the measures of a sample's values beside another one's targets, of those in the group."""
            own, other = [places[row]], [places[column]]
            if not isinstance(targets, Mapping):
                return _values(measure, _taken(values, own), _taken(targets, other), [0])
            mixed = {name: _taken(each, other if name in group else own) for name, each in targets.items()}
            return _values(measure, _taken(values, own), mixed, [0])

        with suppress(Exception):  # a measure may want more samples, or be no number
            pair_measures += [name for name, _ in over_pairs(score, pair, len(places))]
    return pair_measures


def _taken(tree: Any, rows: list[int]) -> Any:
    return tree_map(lambda leaf: leaf if leaf is None else leaf[rows], tree)


def _values(measure: Measure, values: Any, targets: Any, rows: list[int]) -> dict[tuple[str, str], float]:
    """Return the measures of some samples' values and targets, by name: the value, and the numerator of a `Mean`."""
    seed_all(0)  # a loss may draw noise
    numbers = {}
    for name, value in measure(_taken(values, rows), _taken(targets, rows)).items():
        if isinstance(value, Mean):  # its denominator may be of the samples where its numerator is of pairs
            numbers[name, "total"] = float(torch.as_tensor(value.total).detach())
        numbers[name, "value"] = float(torch.as_tensor(objective(value)).detach())
    return numbers
