"""The fields of a sample, or of a batch: inputs and targets as arrays by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from raygpu.errors import one_line

Fields = dict[str, np.ndarray]
"""Arrays by name; a single one has the empty name."""
Batch = tuple[Fields, Fields]
"""Inputs and targets."""


LARGEST = {"b": 1, "i": 8, "u": 8, "f": 8, "c": 16}
"""Bytes of the largest number that torch has of each kind."""


class SampleError(ValueError):
    """A sample that cannot be read, or has another form than the others."""


def parts_of(sample: Any, targets: Sequence[str], where: str) -> Batch:
    """Return inputs and targets of what a data set, or a function that collates samples, has returned.

    sample: a pair of inputs and targets, or a mapping. targets: the names of a mapping's targets; the rest are inputs.
    where: the sample's name in messages. Raises SampleError.
    """
    if isinstance(sample, Mapping):
        missing = [name for name in targets if name not in sample]
        rest = {name: value for name, value in sample.items() if name not in targets}
        if not targets or missing or not rest:
            named = f"targets={list(targets)!r}" if targets else "no targets"
            raise SampleError(
                f"{where} has the fields {', '.join(map(str, sample))}, and dataset_splits {named}: name those of its"
                " fields that are the targets, and leave one for the inputs"
            )
        target_fields = {name: sample[name] for name in targets}
        return _single(fields_of(rest, where)), _single(fields_of(target_fields, where))
    if targets:
        raise SampleError(
            f"{where} is a {type(sample).__name__}, and targets={list(targets)!r} names fields of a mapping"
        )
    if not isinstance(sample, tuple | list) or len(sample) != 2:
        size = f" of {len(sample)}" if isinstance(sample, tuple | list) else ""
        raise SampleError(f"{where} is a {type(sample).__name__}{size}; wanted: (inputs, targets), or a mapping")
    return fields_of(sample[0], where), fields_of(sample[1], where)


def unnamed(fields: Mapping[str, Any]) -> Any:
    """Return a single field that has the empty name by itself; the named ones as they are."""
    return fields[""] if list(fields) == [""] else fields


def fields_of(value: Any, where: str) -> Fields:
    """Return a value, or a mapping of values, as arrays by name. Raises SampleError for what is no array of numbers."""
    if isinstance(value, Mapping):
        if not value:
            raise SampleError(f"{where} has an empty mapping in the place of inputs or targets")
        return {str(name): _array(each, f"field {name} of {where}") for name, each in value.items()}
    return {"": _array(value, where)}


def _single(fields: Fields) -> Fields:
    """Return a single field without its name."""
    return {"": next(iter(fields.values()))} if len(fields) == 1 else fields


def _array(value: Any, where: str) -> np.ndarray:
    """Return an array of a tensor, an image, an array, numbers or a number; Python's floats become float32."""
    try:
        array = np.asarray(value.detach().cpu().numpy() if hasattr(value, "detach") else value)
    except Exception as error:  # rows of different lengths, a dtype that NumPy does not have
        raise SampleError(f"{where} makes no array: {one_line(error)}") from error
    if array.dtype.kind not in "biufc" or array.dtype.itemsize > LARGEST[array.dtype.kind]:
        raise SampleError(
            f"{where} is a {type(value).__name__} of {array.dtype}, which torch does not have: convert it"
        )
    is_python = isinstance(value, float | list | tuple)
    if is_python and array.dtype == np.float64:
        return array.astype(np.float32)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def equal(one: Batch, other: Batch) -> bool:
    """Return whether two batches have the same values."""
    return all(
        list(a) == list(b) and all(np.array_equal(a[name], b[name], equal_nan=a[name].dtype.kind in "fc") for name in a)
        for a, b in zip(one, other, strict=True)
    )
