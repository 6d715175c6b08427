"""A first training step, on the CPU, before anything is started: the data is converted if that makes it work."""

from __future__ import annotations

import contextlib
import re
import traceback
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from raygpu.config.source import Source
from raygpu.errors import one_line
from raygpu.experiment import Arrays, Experiment, Splits, class_labels, is_read_later, named, num_samples, take
from raygpu.search.hyperparameters import MissingHyperparameter
from raygpu.training.data.columns import reading_notes
from raygpu.training.hyperparameters import OptimizerSettings
from raygpu.training.modes import torch_modes_kept
from raygpu.workflow.fault_advice import advice

FEW = 8
"""Number of samples of the first attempt."""
BROADCAST = "Using a target size"
"""Beginning of torch's warning of a loss whose two arguments are broadcast against each other."""
INPUTS = ("float32",)
TARGETS = ("int64", "float32")
"""Number types to which whole numbers are converted, in this order."""
CHUNK_BYTES = 64_000_000
"""Bytes of data that are searched for NaN at once."""
DEVICE_WORDS = re.compile(r"cuda|gpu|nvidia|triton|\bcpu\b|'CPU'|_cpu", re.IGNORECASE)
"""Words of faults that a training on a GPU may not have."""


class StepFailed(Exception):
    """A first step that failed, by the fault of the experiment."""

    def __init__(self, cause: BaseException, splits: Splits, folder: str) -> None:
        self.text = _text(cause)
        parts = [f"{self.text}{place_of(cause, folder)}", _described(splits), advice(self.text)]
        super().__init__("; ".join(part for part in parts if part is not None))


@dataclass(frozen=True, slots=True)
class FirstStep:
    """A first step that succeeded."""

    metrics: Mapping[str, float]
    read: frozenset[str]
    """Names of the hyper-parameters that the experiment read."""
    splits: Splits
    """The whole data, converted if need be."""
    notes: tuple[str, ...] = ()
    """A line for each conversion, for each part of the data with numbers that are not finite, and for what a training
    ignores or a checkpoint does not hold."""
    lost_metrics: frozenset[str] = frozenset()
    """Names of the metrics that differ where a model is loaded from a checkpoint."""
    convolves: bool = False
    """Whether it is of a torch model with convolutions."""


def try_step(source: Source, code: Experiment, hp: Mapping[str, Any], splits: Splits) -> FirstStep:
    """Train one step and evaluate a few samples.

    If the data as it is does not work, the usual conversions of its number types are tried: float64 to float32, whole
    numbers to int64 or float32. Raises StepFailed, with the fault of the data in float32 or as it is; and
    MissingHyperparameter.
    """
    few, fault = _few(splits, FEW), None
    for inputs, targets in product(_forms(splits.train_inputs, INPUTS), _forms(splits.train_targets, TARGETS)):
        try:
            step = _step(source, code, hp, _converted(few, inputs, targets), splits)
        except StepFailed as error:
            if _are_floats(few, inputs, targets):  # other conversions bring faults of their own
                fault = error
            continue
        notes = [*_note("inputs", splits.train_inputs, inputs), *_note("targets", splits.train_targets, targets)]
        notes += [*_not_finite(splits), *reading_notes(splits), *step.notes]
        return replace(step, splits=_converted(splits, inputs, targets), notes=tuple(notes))
    with contextlib.suppress(StepFailed, ValueError):  # a model that is made for whole batches
        step = _step(source, code, hp, _few(splits, OptimizerSettings.of(hp).batch_size), splits)
        return replace(step, notes=(*reading_notes(splits), *step.notes))
    assert fault is not None  # the first forms leave the data as it is
    raise fault


def depends_on_device(error: StepFailed) -> bool:
    """Return whether the step may work on a GPU all the same."""
    return DEVICE_WORDS.search(error.text) is not None


def _step(source: Source, code: Experiment, hp: Mapping[str, Any], few: Splits, splits: Splits) -> FirstStep:
    try:
        with contextlib.chdir(source.folder), torch_modes_kept(), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            step = _tried(source, code, hp, few)
    except MissingHyperparameter:
        raise
    except (Exception, SystemExit) as error:  # the user's code: whatever it raises is the message
        raise StepFailed(error, few, source.folder) from error
    messages = [str(warning.message) for warning in caught]
    if (broadcast := next((text for text in messages if text.startswith(BROADCAST)), None)) is not None:
        raise StepFailed(ValueError(f"loss(): {broadcast.partition('. ')[0]}"), few, source.folder)
    return replace(step, splits=splits)


def _tried(source: Source, code: Experiment, hp: Mapping[str, Any], few: Splits) -> FirstStep:
    """Train and evaluate in the experiment's framework."""
    if source.kind == "keras":
        from raygpu.training.keras.first_step import first_result as first_keras_result

        result, read, notes, lost_metrics = first_keras_result(code, few, hp)
        return FirstStep(result.metrics, read, few, tuple(notes), lost_metrics)
    from raygpu.training.torch.checkpoint_check import check_checkpoint
    from raygpu.training.torch.first_step import first_result

    result, read, ignored, convolves = first_result(code, few, hp)
    checked = check_checkpoint(code, few, hp)
    lost = [line for line in (checked.scores, checked.going_on) if line is not None][:1]
    return FirstStep(result.metrics, read, few, (*ignored, *lost), checked.lost_metrics, convolves)


def _few(splits: Splits, count: int) -> Splits:
    """Return some samples, those with the smallest and the largest whole numbers among them."""
    return Splits(
        *(
            take(arrays, rows)
            for inputs, targets in (
                (splits.train_inputs, splits.train_targets),
                (splits.validation_inputs, splits.validation_targets),
            )
            for rows in [np.array(_rows(inputs, targets, count))]
            for arrays in (inputs, targets)
        )
    )


def _rows(inputs: Arrays, targets: Arrays, count: int) -> list[int]:
    """Return the places of `count` samples, fewer if there are no more."""
    total = num_samples(targets)
    if any(getattr(array, "in_order", False) for array in named(inputs).values()):  # of a stream the first ones
        return list(range(min(count, total)))
    extremes = [
        int(place) // max(1, array[0].size)
        for array in (class_labels(targets), *named(targets).values(), *named(inputs).values())
        if array is not None and not is_read_later(array)
        if (array.dtype.kind in "iu" and array.dtype.itemsize > 1) or _are_float_labels(array)
        for place in (array.argmin(), array.argmax())
    ]
    spaced = np.linspace(0, total - 1, min(total, 2 * count)).round().astype(int).tolist()
    return list(dict.fromkeys([*extremes[:count], *spaced[::2], *spaced[1::2], *range(min(count, total))]))[:count]


def _are_float_labels(array: np.ndarray) -> bool:
    """Return whether an array has one floating-point number for each sample, all of them whole numbers."""
    if array.dtype.kind != "f" or array.size != len(array):
        return False
    return bool((np.isfinite(array) & (array == np.rint(array))).all())


def _forms(arrays: Arrays, whole: tuple[str, ...]) -> list[str | None]:
    """Return the number types that arrays may be converted to, floating-point numbers alone where there are any; None
    leaves them as they are.

    whole: the types for whole numbers.
    """
    types = {array.dtype for array in _changed(arrays)}
    kinds = {each.kind for each in types}
    forms = ("float32",) if kinds == {"f"} else whole if kinds <= set("biu") else ()
    conversions = [None, *(form for form in forms if types != {np.dtype(form)})]
    # Most losses take class labels in any whole type alone, and in int64 in an array of models, too.
    is_labels = "int64" in conversions and class_labels(arrays) is not None and types == {np.dtype("uint8")}
    return [conversions[1], None, *conversions[2:]] if is_labels else conversions


def _changed(arrays: Arrays) -> list[Any]:
    """Return the arrays whose number type a conversion changes: of floating-point numbers, if there are any."""
    every = list(named(arrays).values())
    return [array for array in every if array.dtype.kind == "f"] or every


def _are_floats(splits: Splits, inputs: str | None, targets: str | None) -> bool:
    """Return whether a conversion changes floating-point numbers alone."""
    parts = ((splits.train_inputs, inputs), (splits.train_targets, targets))
    return all(array.dtype.kind == "f" for arrays, form in parts if form for array in _changed(arrays))


def _converted(splits: Splits, inputs: str | None, targets: str | None) -> Splits:
    """Return the splits with inputs and targets in these number types; None leaves them as they are."""
    forms = {f"{part}_{name}": form for part in ("train", "validation", "test")
             for name, form in (("inputs", inputs), ("targets", targets))}  # fmt: skip
    return replace(splits, **{name: _cast(getattr(splits, name), form) for name, form in forms.items()})


def _cast(arrays: Any, form: str | None) -> Any:
    if form is None or arrays is None:
        return arrays
    if not isinstance(arrays, Mapping):
        return arrays.astype(form, copy=False)
    changed = {id(array) for array in _changed(arrays)}
    return {name: array.astype(form, copy=False) if id(array) in changed else array for name, array in arrays.items()}


def _note(part: str, arrays: Arrays, form: str | None) -> list[str]:
    if form is None:
        return []
    types = ", ".join(dict.fromkeys(str(array.dtype) for array in _changed(arrays)))
    return [f"data: the {part} are {types}; converted to {form}, which the model takes"]


def _not_finite(splits: Splits) -> list[str]:
    """Return a line for each part of the data that has NaN or infinities, which make most losses NaN."""
    lines = []
    for part in ("train_inputs", "train_targets", "validation_inputs", "validation_targets"):
        every = named(getattr(splits, part)).values()
        arrays = [array for array in every if not is_read_later(array) and array.dtype.kind in "fc"]
        count = sum(
            int((~np.isfinite(rows.reshape(len(rows), -1))).any(axis=1).sum())
            for array in arrays
            for rows in np.array_split(array, max(1, array.nbytes // CHUNK_BYTES))
            if not np.isfinite(np.vdot(rows, rows))  # several times as fast, and nearly always enough
        )
        if count:
            samples = num_samples(splits.train_targets if part.startswith("train") else splits.validation_targets)
            lines.append(f"data: {count:,} of {samples:,} {part.replace('_', ' ')} have NaN or infinite values")
    return lines


def _described(splits: Splits) -> str:
    """Return number types and shapes of a batch: `inputs float32 (8, 64), targets int64 (8,) from 0 to 9`."""
    words: list[str] = []
    for part in ("inputs", "targets"):
        for name, array in named(getattr(splits, f"train_{part}")).items():
            bounds = f" from {array.min()} to {array.max()}" if array.dtype.kind in "iu" else ""
            words.append(f"{part}{f'[{name!r}]' if name else ''} {array.dtype} {array.shape}{bounds}")
    return "with " + ", ".join(words)


def _text(error: BaseException) -> str:
    """Return an exception in one line; of TensorFlow's, which hold a stack of calls, the line that names the fault."""
    lines = [line.strip() for line in str(error).splitlines()]
    if any(line.startswith('File "') for line in lines):
        last = next(line for line in reversed(lines) if line and not line.startswith(("[[", "File ")))
        return last.partition(" [Op:")[0][:300]
    return one_line(error)


def place_of(error: BaseException, folder: str) -> str:
    """Return the last line of the user's own code in a traceback, as ` (mine.py:12, in loss)`; empty without one."""
    home, raygpu = Path(folder).resolve(), Path(__file__).resolve().parents[1]
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if path.is_relative_to(home) and not path.is_relative_to(raygpu) and "site-packages" not in path.parts:
            return f" ({path.relative_to(home)}:{frame.lineno}, in {frame.name})"
    return ""
