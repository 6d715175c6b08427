"""Digests of the user's data, for what is compared: scores of models, and a run that goes on with its beginning."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from raygpu.experiment import Arrays, Splits, is_read_later, named, num_samples
from raygpu.records.run_directory import KINDS, RunDirectory

FEW = 4
"""Number of samples in a digest of data that are read later: at equal distances, of a stream the first ones."""
NUM_BYTES = 2**22
"""Bytes of an array in memory that a run is compared by, at least: samples at equal distances."""
MOST_BYTES = 2**26
"""The same of validation targets, whose number of bytes is most often below: all of them count then."""
NOTED = "data"
"""Key of the digests of the data with which a run began."""
OTHER_DATA = (
    "the {parts} data are not those with which this {kind} began: what it has reached so far does not compare with what"
    " is to come; a new {kind} compares all"
)


def validation_digest(splits: Splits) -> str:
    """Return number and digest of the validation samples: scores on other data are not compared.

    The digest is of all targets, as far as a data set lists them, and of some inputs.
    """
    inputs, targets = splits.validation_inputs, splits.validation_targets
    compared = _some(targets, may_read=True, num_bytes=MOST_BYTES)
    return f"{num_samples(targets)} {_digest(_some(inputs, may_read=True), compared)}"


def compared_data(folder: RunDirectory, splits: Splits | None, test: Splits | None) -> list[str]:
    """Note digests of the data of a run that begins; return a line if one that goes on has other data.

    splits: None of a function, whose data nobody knows. test: with the test data as its validation data; None without
    any.
    """
    if splits is None:
        return []
    found = dict(_parts(splits, test))
    noted = folder.read_run().setdefault(NOTED, found)
    folder.write_run({NOTED: noted})
    others = [name for name in noted | found if noted.get(name) != found.get(name)]
    if not others:
        return []
    parts = " and ".join(filter(None, [", ".join(others[:-1]), others[-1]]))
    return [OTHER_DATA.format(parts=parts, kind=KINDS[folder.kind])]


def _parts(splits: Splits, test: Splits | None) -> Iterator[tuple[str, str]]:
    """Yield name and digest of each part of the data. Of training samples that are read later, these are their number
    and the targets that a data set lists: random transforms change what is read."""
    for name, inputs, targets, may_read in (
        ("training", splits.train_inputs, splits.train_targets, False),
        ("validation", splits.validation_inputs, splits.validation_targets, True),
        *([("test", test.validation_inputs, test.validation_targets, True)] if test is not None else []),
    ):
        yield name, f"{num_samples(targets)} {_digest(_some(inputs, may_read), _some(targets, may_read))}"


def _some(arrays: Arrays, may_read: bool, num_bytes: int = NUM_BYTES) -> dict[str, np.ndarray]:
    """Return samples of each array, those of num_bytes in memory; of a data set what it lists, or a few that are
    read."""
    some = {}
    for name, array in named(arrays).items():
        column: Any = array
        if not is_read_later(array):
            some[name] = array[:: 1 + array.nbytes // num_bytes]
        elif column.listed is not None:
            some[name] = column.listed
        elif may_read:
            spread = np.unique(np.linspace(0, len(array) - 1, FEW).astype(int))
            some[name] = array[:FEW] if column.in_order else array[spread]  # a stream reads all up to a sample
    return some


def _digest(*parts: Arrays) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        for name, array in sorted(named(part).items()):
            values: Any = np.ascontiguousarray(array)
            digest.update(f"{name} {values.dtype} {values.shape}".encode())
            digest.update(repr(values.tolist()).encode() if values.dtype.hasobject else values.tobytes())
    return digest.hexdigest()
