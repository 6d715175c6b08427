"""Advice on the commonest faults of a first training step, by the words of torch and Keras, and on failed trials."""

from __future__ import annotations

import re
from collections.abc import Sequence

from raygpu.devices.out_of_memory import is_out_of_memory

ADVICE = (
    (
        r"Target -?\d+ is out of bounds|label value of .* outside the valid range",
        "labels run from 0 to one less than the number of outputs",
    ),
    (r"index out of range in self", "an embedding needs one row more than the largest index in the inputs"),
    (
        r"mat1 and mat2 shapes cannot be multiplied \(\d+x(?P<given>\d+) and (?P<wanted>\d+)x\d+\)",
        "a linear layer for {wanted} features is given {given}",
    ),
    (
        r"to have (?P<wanted>\d+) channels, but got (?P<given>\d+)",
        "a convolution takes (samples, channels, height, width), here with {wanted} channels",
    ),
    (
        r"Target size .* must be the same as input size",
        "reshape one of both in loss(), as targets.reshape(outputs.shape)",
    ),
    (r"expected target dtype to be Long", "labels of classes are whole numbers: convert them to int64 in data()"),
    (r"argument #1 'indices'", "an embedding takes whole numbers: convert the inputs to int64 in data()"),
    (r"type numpy\.(str_|object_|bytes_)|Invalid dtype: (str|object)", "convert text to numbers in data()"),
    (
        r"multi-target not supported",
        "cross_entropy takes one label for each sample, or probabilities of as many classes as there are outputs",
    ),
    (r"uninitialized parameter|UninitializedParameter", "call a model with lazy layers once in model(), on a sample"),
    (
        r"argument 'input' \(position 1\) must be Tensor, not tuple",
        "the model returns a tuple: unpack it in loss()",
    ),
)
"""Patterns of messages, each with what is to be done; {names} are groups of the pattern."""


def advice(text: str) -> str | None:
    """Return what to do about a fault, by its text; None where that is not known."""
    for pattern, told in ADVICE:
        if (found := re.search(pattern, text)) is not None:
            return told.format(**found.groupdict())
    return None


def memory_advice(failures: Sequence[str], kind: str) -> str | None:
    """Return what to do about trials that no GPU's memory holds; None if there are none, or nothing helps.

    failures: last line of each failed trial's traceback. kind: of the source, as "torch".
    """
    if kind != "torch" or not any(map(is_out_of_memory, failures)):
        return None
    return "out of memory: with a micro_batch_size in [space], the model takes its batch in parts of that many samples"
