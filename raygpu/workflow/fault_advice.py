"""Advice on the commonest faults of a first training step, by the words of torch and Keras, and on failed trials."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from raygpu.training.out_of_memory import is_out_of_memory

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
    (
        r"expected target dtype to be Long|\"nll_loss\w*\" not implemented for '(Float|Double)'",
        "labels of classes are whole numbers: convert them to int64 in data()",
    ),
    (
        r"expected scalar type Long but found (Float|Double)",
        "labels of classes are whole numbers: convert them to int64 in data(); or a layer is given whole numbers:"
        " convert these to float32",
    ),
    (r"argument #1 'indices'", "an embedding takes whole numbers: convert the inputs to int64 in data()"),
    (r"type numpy\.(str_|object_|bytes_)|Invalid dtype: (str|object)", "convert text to numbers in data()"),
    (
        r"multi-target not supported",
        "cross_entropy takes one label for each sample, or probabilities of as many classes as there are outputs",
    ),
    (
        r"Expected all tensors to be on the same device|indices should be either on cpu or on the same device",
        "a tensor is made on the CPU while the model is on the GPU: give it device=inputs.device, or make it a buffer"
        " of the model (register_buffer)",
    ),
    (
        r"can't convert cuda:\d+ device type tensor to numpy",
        "NumPy reads no tensor on a GPU: use torch's functions, or .cpu() in metrics()",
    ),
    (
        r"element 0 of tensors does not require grad",
        "an evaluation records no gradient: a model or a metric that takes one computes it under torch.enable_grad();"
        " of a training's loss, a parameter has to require one",
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
    for pattern, template in ADVICE:
        if (match := re.search(pattern, text)) is not None:
            return template.format(**match.groupdict())
    return None


def failure_advice(failures: Sequence[str], kind: str) -> str | None:
    """Return what to do about failed trials; None if there are none, or that is not known.

    failures: error of each failed trial in a line. kind: of the source, as "torch".
    """
    if kind != "torch":
        return None
    if any(map(is_out_of_memory, failures)):
        return (
            "out of memory: with a micro_batch_size in [space], the model takes its batch in parts of that many samples"
        )
    hints = Counter(hint for line in failures if (hint := advice(line)) is not None)
    return next((f"{count} of {len(failures)} failed trials: {line}" for line, count in hints.most_common(1)), None)
