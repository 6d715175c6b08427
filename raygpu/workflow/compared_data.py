"""Digests of the user's data, for what is compared: scores of models, and a run that goes on with its beginning."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from raygpu.experiment import Arrays, Splits, is_read_later, named, num_samples, reads_later, take
from raygpu.records.run_directory import KINDS, RunDirectory

FEW = 4
"""Number of samples, the first ones, in a digest of data that are read later."""
NUM_BYTES = 2**22
"""Bytes of an array in memory that a run is compared by, at least: samples at equal distances."""
NOTED = "data"
"""Key of the digests of the data with which a run began."""
OTHER_DATA = (
    "the {parts} data are not those with which this {kind} began: what it has reached so far does not compare with what"
    " is to come; a new {kind} compares all"
)


def validation_digest(splits: Splits) -> str:
    """Return a digest of the validation data: scores on other data are not compared.

    It is of all targets and of the first inputs; of the first targets where a data set does not list them.
    """
    inputs, targets = take(splits.validation_inputs, slice(0, FEW)), splits.validation_targets
    return _digest(inputs, take(targets, slice(0, FEW)) if reads_later(targets) else targets)


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
    """Yield name and digest of each part of the data. Training samples that are read later are counted alone: random
    transforms change them."""
    for name, inputs, targets, may_read in (
        ("training", splits.train_inputs, splits.train_targets, False),
        ("validation", splits.validation_inputs, splits.validation_targets, True),
        *([("test", test.validation_inputs, test.validation_targets, True)] if test is not None else []),
    ):
        yield name, f"{num_samples(targets)} {_digest(_some(inputs, may_read), _some(targets, may_read))}"


def _some(arrays: Arrays, may_read: bool) -> dict[str, np.ndarray]:
    """Return samples of each array, those of NUM_BYTES in memory, or the first ones of a data set."""
    some = {}
    for name, array in named(arrays).items():
        if not is_read_later(array):
            some[name] = array[:: 1 + array.nbytes // NUM_BYTES]
        elif may_read:
            some[name] = array[:FEW]
    return some


def _digest(*parts: Arrays) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        for name, array in sorted(named(part).items()):
            values: Any = np.ascontiguousarray(array)
            digest.update(f"{name} {values.dtype} {values.shape}".encode())
            digest.update(repr(values.tolist()).encode() if values.dtype.hasobject else values.tobytes())
    return digest.hexdigest()
