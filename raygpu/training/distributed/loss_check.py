"""Check, before training, whether the loss of a batch follows from the losses of its parts.

A batch is cut where several devices share it, or where one takes it in parts. The loss of some samples is compared with
the combined losses of parts of them, on the CPU, in evaluation mode, without any knowledge of how it is written.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np

from raygpu.config.generators import random_state_kept
from raygpu.experiment import Arrays, Experiment, Mean, Sum, num_samples
from raygpu.planning.batch_shares import parts
from raygpu.training.base import LOSS
from raygpu.training.distributed.telling_rows import telling_rows
from raygpu.training.loss_kinds import LossKind
from raygpu.training.random_outputs import SEEDS

MOST = 256
"""Largest number of samples in a comparison."""
FEW = 8
"""Number of samples in a comparison if the model is slow."""
ADD_LOSS = "add_loss"
"""Name of what the layers of a Keras model add to the loss."""
FITTED = 32
"""Largest number of samples of which a model fits some, for a comparison."""
OUTPUT_STEPS = tuple(0.1 * 3**number for number in range(10))
"""Lengths of the steps by which outputs are fitted to targets of any size: the largest change of an output by the
gradient that it has at the beginning."""
OVERSHOT = 10.0
"""Factor of the loss above which outputs have left those that a training may have."""
BUDGET_S = 10.0
"""Approximate seconds of a comparison."""
DOUBLE, SINGLE, HALF = 1e-6, 1e-4, 3e-2
"""Largest relative difference from rounding: in float64, in float32, and in bfloat16 or float16."""


@dataclass(frozen=True, slots=True)
class Value:
    """Value of a loss or a metric, as numerator and denominator."""

    kind: LossKind
    total: float
    weight: float

    @classmethod
    def of(cls, value: Any) -> Value:
        """Convert a result of `loss` or `metrics`."""
        if isinstance(value, Mean):
            return cls("mean", _number(value.total), _number(value.weight))
        if isinstance(value, Sum):
            return cls("sum", _number(value.total), 0.0)
        return cls("scalar", _number(value), 1.0)

    @property
    def result(self) -> float:
        """The value itself: `total / weight`, or `total` if the weight is 0."""
        return self.total / (self.weight or 1.0)


PartValues = Callable[[slice, int], Mapping[str, Value]]
"""Function of a part of some samples, and of a seed for a loss of outputs alone; returns its loss and metrics."""


class LossEvaluator(Protocol):
    """An experiment's untrained model on some of its samples."""

    rounding: float
    """Largest relative difference that is rounding: DOUBLE, SINGLE or HALF."""
    with_metrics: bool
    """Whether the values are those of an evaluation; these may not exist for a few samples, as a score of classes."""

    def values(self, rows: np.ndarray, *, loss_alone: bool = False) -> Mapping[str, Value]:
        """Return the loss and the metrics of these samples, or the loss, from a forward pass of these alone."""

    def values_without_noise(self, rows: np.ndarray) -> Mapping[str, Value] | None:
        """Return `values` with a constant in place of each random number; None if that cannot be."""

    def hold(self, rows: np.ndarray) -> None:
        """Keep the outputs of these samples for `held`. Raises ValueError if they cannot be cut into samples."""

    def draw(self, seed: int) -> None:
        """Put random numbers in the place of the kept outputs."""

    def held(self, places: slice, seed: int = 0) -> Mapping[str, Value]:
        """Return the loss and the metrics of a part of the kept outputs, of random ones the metrics alone; state and
        random numbers begin anew."""

    def fitted(self, rows: np.ndarray) -> Iterator[PartValues]:
        """Yield functions that return values of a part of these samples, for a model that fits some of them ever
        better. Raises any exception of the experiment."""


def loss_and_metrics(
    experiment: Experiment, outputs: Any, targets: Any, *, with_loss: bool = True, with_metrics: bool
) -> dict[str, Value]:
    """Return the loss and the metrics of outputs, or one of both."""
    values: dict[str, Any] = {LOSS: experiment.loss(outputs, targets)} if with_loss else {}
    if with_metrics:
        values |= experiment.metrics(outputs, targets)
    return {name: Value.of(value) for name, value in values.items()}


@dataclass(frozen=True, slots=True)
class Difference:
    """A loss or metric of some samples that does not follow from those of parts of them."""

    name: str
    kind: Literal["parts", "outputs", "unsteady"]
    """parts: the parts combine to another value. outputs: they do so only because the model's outputs for a sample
    depend on the others. unsteady: the value changes at each call, so that nothing can be compared."""
    whole: float = math.nan
    together: float = math.nan
    """Value computed from the parts."""
    sizes: tuple[int, ...] = ()
    """Samples of each part."""
    value: Value | None = None
    outputs: Literal["untrained", "random", "fitted"] = "untrained"
    """The model's outputs: its own at the beginning, random numbers in their place, or those once it fits some of the
    samples."""

    def __str__(self) -> str:
        cut = " + ".join(map(str, self.sizes)) if len(self.sizes) < 4 else f"{len(self.sizes)} parts"
        if self.outputs == "random":
            whole = f"{self.whole:.6g} of {sum(self.sizes)} samples together"
            return f"tried with random numbers for outputs: {whole}, {self.together:.6g} from parts of {cut}"
        fitted = ", once the model fits some of them" if self.outputs == "fitted" else ""
        return f"{self.whole:.6g} of {sum(self.sizes)} samples, but {self.together:.6g} from parts of {cut}{fitted}"


def differences(
    look: LossEvaluator, inputs: Arrays, targets: Arrays, most: int = MOST, *, with_random_outputs: bool = False
) -> list[Difference]:
    """Return one difference for each loss or metric that is not the mean, `Mean` or `Sum` that it claims to be.

    inputs, targets: the split of the data that `look` evaluates. with_random_outputs: whether metrics are evaluated on
    random outputs too, as those of an untrained model may hide a difference: without a sample of a class among them, F1
    is 0 for all samples and for each part. Raises any exception of the experiment.
    """
    most = min(most, MOST, num_samples(targets))
    if most < 2:
        return []
    rows = telling_rows(inputs, targets, most)
    planned = len(list(cuts(most))) + 2
    needed, each_s = _needed_samples(look, rows)
    affordable = int(BUDGET_S / (each_s * planned))
    rows = telling_rows(inputs, targets, max(min(FEW, most), needed, min(most, affordable)))
    values, again = look.values(rows), look.values(rows)
    steady = {name: value for name, value in values.items() if _same(value, again[name], look)}
    looked = [_first_difference(look, rows, name, value) for name, value in steady.items()]
    inexact = [difference for difference in looked if difference is not None]
    if inexact:  # by itself, or because the experiment counts its calls
        again = look.values(rows)
        inexact = [difference for difference in inexact if _same(values[difference.name], again[difference.name], look)]
    unsteady = [name for name, value in values.items() if not _same(value, again[name], look)]
    inexact += _unsteady(look, rows, unsteady)
    inexact = inexact or _fitted_differences(look, rows[:FITTED], list(steady))
    known = [difference.name for difference in inexact if difference.kind != "unsteady"]
    return inexact + (_random_differences(look, rows, known) if with_random_outputs else [])


def _needed_samples(look: LossEvaluator, rows: np.ndarray) -> tuple[int, float]:
    """Return the number of samples that can be evaluated, a few or more where metrics need more, and the seconds of
    one. Raises any exception of the experiment."""
    with contextlib.suppress(Exception):
        look.values(rows[:2])  # warm
    return _first_evaluated(look, rows, (4, 4 * FEW, len(rows)) if look.with_metrics else (4,))


def try_values(look: LossEvaluator, few: int, total: int) -> None:
    """Evaluate a few samples, or more of them where metrics need more. Raises any exception of the experiment."""
    rows = np.arange(min(total, MOST))
    if look.with_metrics and look.rounding == DOUBLE:  # more samples do not help a loss that takes no float64
        look.values(rows[:few], loss_alone=True)
    _first_evaluated(look, rows, (few, few, 4 * FEW, len(rows)) if look.with_metrics else (few,))


def _first_evaluated(look: LossEvaluator, rows: np.ndarray, counts: Sequence[int]) -> tuple[int, float]:
    """Evaluate the first of these numbers of samples, each next one if that fails and takes no longer than BUDGET_S, as
    told by the one before it; return the number, and the seconds of one sample. Raises any exception of the experiment.
    """
    for count, following in zip(counts, (*counts[1:], None), strict=True):
        chosen, began = rows[:count], time.perf_counter()
        try:
            look.values(chosen)
        except Exception:
            each_s = (time.perf_counter() - began) / len(chosen)
            if following is None or each_s * following > BUDGET_S:
                raise
            continue
        return len(chosen), (time.perf_counter() - began) / len(chosen)
    raise AssertionError


def fit_shares(count: int) -> np.ndarray:
    """Return how far a model shall fit each of some samples, 0 to 1: a third of them not at all, a third fully;
    (count,)."""
    return np.clip(3 * np.random.default_rng(0).random(count) - 1, 0.0, 1.0)


def _fitted_differences(look: LossEvaluator, rows: np.ndarray, names: Sequence[str]) -> list[Difference]:
    """Compare what has added up so far where the model fits some of the samples and not others: a mean over hard or
    over confident samples is one over all of them before a training. Empty if that cannot be tested."""
    began, largest, all_rows = time.perf_counter(), 0.0, slice(0, len(rows))
    with contextlib.suppress(Exception), random_state_kept():  # a loss may not take such outputs
        for values_of in look.fitted(rows):
            whole, again = values_of(all_rows, 0), values_of(all_rows, 1)
            loss = abs(whole[LOSS].result)
            largest = largest or OVERSHOT * loss
            if loss > largest:
                break
            steady = [name for name in names if _same(whole[name], again[name], look)]
            names = [name for name in steady if math.isfinite(whole[name].result)]
            for sizes in cuts(len(rows)):
                if time.perf_counter() - began > BUDGET_S:
                    return []
                if found := _cut_differences(look, values_of, {name: whole[name] for name in names}, sizes):
                    return [replace(each, outputs="fitted") for each in found]
    return []


def cuts(count: int) -> Iterator[list[int]]:
    """Yield sizes of parts: two halves, very unequal ones, several, and many small ones."""
    if count >= 8:
        yield [2, count - 2]
        yield [count - 2, 2]
        yield [count // 8, 3 * count // 8, count - count // 8 - 3 * count // 8]
        yield parts(count, max(3, count // 8))
        yield parts(count, count // 2)
    yield [count // 2, count - count // 2]


def _first_difference(look: LossEvaluator, rows: np.ndarray, name: str, whole: Value) -> Difference | None:
    if not math.isfinite(whole.result):
        return Difference(name, "unsteady")
    failed: list[Exception] = []
    compared = list(cuts(len(rows)))
    for sizes in compared:
        try:
            values = [look.values(part)[name] for part in np.split(rows, np.cumsum(sizes)[:-1])]
        except Exception as error:
            if not look.with_metrics:
                raise
            failed.append(error)  # of a metric that these few samples do not have
            continue
        difference = _compared(look, name, whole, values, sizes)
        if difference is not None:
            return _blamed(look, rows, difference)
    if len(failed) == len(compared):
        raise failed[-1]
    return None


def _blamed(look: LossEvaluator, rows: np.ndarray, found: Difference) -> Difference:
    """Return the difference with its cause: the loss, or a model whose outputs depend on the batch."""
    try:
        look.hold(rows)
        value = look.held(slice(0, len(rows)))[found.name]
        other = _compared(look, found.name, value, _held_parts(look, found.name, found.sizes), found.sizes)
    except Exception:  # noqa: BLE001 - the outputs cannot be cut, so the loss has to be what differs
        return found
    if other is not None or not _near(value.result, found.whole, look.rounding):
        return found
    return Difference(found.name, "outputs", found.whole, found.together, found.sizes, found.value)


def _held_parts(look: LossEvaluator, name: str, sizes: Sequence[int]) -> list[Value]:
    return [values[name] for values in _parts(look.held, sizes)]


def _parts(values_of: PartValues, sizes: Sequence[int]) -> list[Mapping[str, Value]]:
    """Return the values of consecutive parts of some samples."""
    ends = np.cumsum(sizes).tolist()
    return [values_of(slice(end - size, end), 0) for end, size in zip(ends, sizes, strict=True)]


def _unsteady(look: LossEvaluator, rows: np.ndarray, names: Sequence[str]) -> list[Difference]:
    """Compare values that change from call to call, by one forward pass' outputs and the same state for each part."""
    if not names:
        return []
    inexact: list[Difference] = []
    try:
        look.hold(rows)
        values, again = look.held(slice(0, len(rows))), look.held(slice(0, len(rows)), seed=1)
    except Exception:  # noqa: BLE001 - the outputs cannot be cut
        return [_without_noise(look, rows, name) for name in names]
    for name in names:
        if not _same(values[name], again[name], look) or not math.isfinite(values[name].result):
            inexact.append(Difference(name, "unsteady"))
            continue
        found = (_cut_differences(look, look.held, {name: values[name]}, sizes) for sizes in cuts(len(rows)))
        inexact += next(filter(None, found), [])
    return inexact


def _cut_differences(
    look: LossEvaluator, values_of: PartValues, whole: Mapping[str, Value], sizes: Sequence[int]
) -> list[Difference]:
    """Return those of some values that do not follow from the values of parts of these sizes."""
    values = _parts(values_of, sizes)
    compared = (_compared(look, name, each, [part[name] for part in values], sizes) for name, each in whole.items())
    return [difference for difference in compared if difference is not None]


def _random_differences(look: LossEvaluator, rows: np.ndarray, known: Sequence[str]) -> list[Difference]:
    """Return the differences of metrics, but for those in `known`, of random outputs of these samples.

    Those that random outputs have no number for, those that raise, and those after BUDGET_S tell nothing.
    """
    began, inexact, told = time.perf_counter(), [], set(known)
    try:
        look.hold(rows)
    except Exception:  # noqa: BLE001 - the outputs cannot be cut
        return []
    for seed in SEEDS:
        with contextlib.suppress(Exception):
            look.draw(seed)
            values, again = (look.held(slice(0, len(rows)), seed=each) for each in (0, 1))
            steady = {name: value for name, value in values.items() if _same(value, again[name], look)}
            steady = {name: value for name, value in steady.items() if math.isfinite(value.result)}
            for sizes in cuts(len(rows)):
                wanted = {name: value for name, value in steady.items() if name not in told}
                if not wanted or time.perf_counter() - began > BUDGET_S:
                    break
                found = _cut_differences(look, look.held, wanted, sizes)
                found = [replace(each, outputs="random") for each in found if math.isfinite(each.together)]
                inexact += found
                told |= {each.name for each in found}
    return inexact


def _without_noise(look: LossEvaluator, rows: np.ndarray, name: str) -> Difference:
    """Return the difference that is left with constants in place of random numbers, as of samples that are compared
    with each other; "unsteady" if there is none, or anything else is drawn."""

    def values(chosen: np.ndarray) -> Value:
        """Return the value of these samples. Raises ValueError if there is none without random numbers."""
        loss_and_metrics = look.values_without_noise(chosen)
        if loss_and_metrics is None or not math.isfinite(loss_and_metrics[name].result):
            raise ValueError("other random numbers, or no finite value")
        return loss_and_metrics[name]

    with contextlib.suppress(Exception):  # nothing can be compared
        value = values(rows)
        for sizes in cuts(len(rows)):
            parts_of_it = [values(part) for part in np.split(rows, np.cumsum(sizes)[:-1])]
            difference = _compared(look, name, value, parts_of_it, sizes)
            if difference is not None and _same(value, values(rows), look):
                return difference
    return Difference(name, "unsteady")


def _compared(
    look: LossEvaluator, name: str, whole: Value, values: Sequence[Value], sizes: Sequence[int]
) -> Difference | None:
    """Return the difference between the parts' value and the whole's; None where they agree."""
    if whole.kind == "scalar":
        pairs = [(size * value.total, float(size)) for value, size in zip(values, sizes, strict=True)]
    else:
        pairs = [(value.total, value.weight) for value in values]
    weight = sum(weight for _, weight in pairs) or 1.0
    together, scale = sum(total for total, _ in pairs) / weight, sum(abs(total) for total, _ in pairs) / weight
    alike = all(value.kind == whole.kind for value in values)
    if alike and abs(together - whole.result) <= look.rounding * max(scale, abs(whole.result)):
        return None
    return Difference(name, "parts", whole.result, together, tuple(sizes), whole)


def _same(one: Value, other: Value, look: LossEvaluator) -> bool:
    return (math.isnan(one.result) and math.isnan(other.result)) or _near(one.result, other.result, look.rounding / 10)


def _near(one: float, other: float, tolerance: float) -> bool:
    return abs(one - other) <= tolerance * max(abs(one), abs(other))


def _number(value: Any) -> float:
    return float(value.detach() if hasattr(value, "detach") else value)
