"""Reasons why trials cannot be fused, in one line that names the operator and the place in the user's code."""

from __future__ import annotations

import contextlib
import inspect
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn

import raygpu
from raygpu.errors import one_line

THROUGH = (f"{Path(str(torch.__file__)).parent}/", contextlib.__file__)
"""Folders of code between the user's code and the torch functions that it calls."""
LIBRARIES = (*THROUGH, f"{Path(str(raygpu.__file__)).parent}/")
OPERATOR = re.compile(r"(aten::\w+|\w+::\w+)")
ADVICE = re.compile(
    r" Please |; please |\. For more| See https| We |, so please|\bplease\b|If this is necessary|file an issue"
)
LONGEST = 170
WATCHED = {
    inspect.unwrap(function).__code__: reason
    for function, reason in {
        torch.Tensor.register_hook: "a hook on a tensor does not run in an array",
        torch.random.manual_seed: "the model seeds torch's generator, but members have generators of their own",
        torch.random.set_rng_state: "the model sets torch's random state, but members have generators of their own",
    }.items()
}
"""Functions of torch that a model's own code may not call in an array."""
BY_A_TENSOR = "data-dependent control flow: a Tensor decides a Python `if`, or is turned into a number"
IS_SPARSE = "a tensor is sparse, as an adjacency matrix or the gradient of an embedding with sparse=True"
KNOWN = {
    "inplace arithmetic": "an operator in place writes a value of each member into a tensor that all members share",
    "has more elements than `self`": "an operator in place writes a value of each member into a tensor that all share",
    "inplace randomness": "random numbers are drawn in place into a tensor that all members share",
    "boolean mask": "boolean-mask indexing: the shape of its result depends on values, which differ between members",
    "dynamic shape": "the shape of a result depends on values (nonzero, unique), which differ between members",
    "accessing `data`": "`.data` of a tensor is used, which has no meaning for all members at once",
    "data pointer": "a tensor is turned into a NumPy array or a pointer",
    "Sparse": IS_SPARSE,
    "sparse tensors": IS_SPARSE,
    "Cannot access storage": "a tensor is turned into a NumPy array or a pointer",
    "doesn't have storage": "a tensor is turned into a NumPy array or a pointer",
    "does not require grad and does not": "a gradient is taken by torch.autograd.grad: in an array by torch.func.grad",
    "requires_grad_()": "requires_grad_() in a step: in an array gradients are taken by torch.func.grad",
    "may have escaped from inside": "a tensor is used after its step: outputs are an object of a class"
    " (torch.distributions), or a step keeps it or computes again what it has computed (torch.utils.checkpoint)",
    "_NoopSaveInputs": "a step computes again what it has computed (torch.utils.checkpoint)",
    "extra state of a module": "a module has extra state (get_extra_state), which cannot be stacked",
}
"""Parts of torch's messages, each with its meaning for an array."""
OF_VMAP = ("vmap", "Cannot access data pointer of Tensor that doesn't have storage")
"""Parts of the messages of errors that code has in an array, and not alone; the second is that of `numpy()`."""


def refusal(error: BaseException) -> str:
    """Return the reason in an error under vmap, without advice for vmap's developers."""
    place = _place_of(error)
    return _reason(error) + (f", in {place}" if place else "")


@contextmanager
def slow_loops() -> Iterator[list[str]]:
    """Collect a line for each operator that runs as a slow loop meanwhile, by vmap's warnings; others are issued again
    at the end."""
    slow_operators: list[str] = []
    issued: dict[Any, Any] = {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield slow_operators
    for warning in caught:
        if "batching rule" in str(warning.message):
            operator = OPERATOR.search(str(warning.message))
            slow_operators.append(f"{operator.group(0) if operator else 'an operator'} runs as a slow loop under vmap")
        else:
            place = warning.filename, warning.lineno
            warnings.warn_explicit(warning.message, warning.category, *place, registry=issued)


def _reason(error: BaseException) -> str:
    text = one_line(error)
    match = OPERATOR.search(text)
    operator = match.group(0) if match else "an operator"
    if "data-dependent control flow" in text or ".item() on a Tensor" in text:
        return BY_A_TENSOR
    if "Batching rule not implemented for" in text or "do not yet support" in text:
        return f"{operator} has no rule for vmap"
    for words, reason in KNOWN.items():
        if words in text:
            return reason
    text = text.removeprefix("RuntimeError: ").removeprefix("vmap: ")
    return ADVICE.split(text)[0].strip().rstrip(".,;")[:LONGEST]


def _place_of(error: BaseException) -> str:
    """Return the innermost place of the user's code in an error's traceback, else the innermost module; empty if
    neither."""
    place, module, step = "", "", error.__traceback__
    while step is not None:
        place = _place(step.tb_frame.f_code, step.tb_lineno) or place
        owner = step.tb_frame.f_locals.get("self")
        module = type(owner).__name__ if isinstance(owner, nn.Module) else module
        step = step.tb_next
    return place or module


def _place(code: CodeType, line: int) -> str:
    if code.co_filename.startswith((*LIBRARIES, "<")):
        return ""
    return f"{code.co_qualname.rpartition('<locals>.')[2]} ({Path(code.co_filename).name}:{line})"


OWN_OPTIMIZER = "optimizer() is the experiment's own, which steps one model"
"""Reason for which no trial of an experiment with its own optimizer shares an array."""
IN_PARTS = "micro_batch_size cuts batches, and an array takes whole ones: it trains fewer members at once instead"
"""Reason for which no trial whose batches are cut shares an array."""


class CodeWatch:
    """Watches the user's code while an array trains, for errors of vmap that it catches, and hooks and seeds that it
    sets.

    Tracing slows Python code down, so this is for a dry run.
    """

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def __enter__(self) -> CodeWatch:
        self._before = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _trace(self, frame: FrameType, event: str, value: Any) -> Any:
        frame.f_trace_lines = False
        if event == "exception" and torch.is_grad_enabled() and any(words in str(value[1]) for words in OF_VMAP):
            self._note(_reason(value[1]), frame, ", which goes on after the error")
        elif event == "call" and frame.f_code in WATCHED:
            caller = frame.f_back
            while caller is not None and caller.f_code.co_filename.startswith(THROUGH):
                caller = caller.f_back
            if caller is not None:
                self._note(WATCHED[frame.f_code], caller)
        return self._trace

    def _note(self, reason: str, frame: FrameType, more: str = "") -> None:
        if place := _place(frame.f_code, frame.f_lineno):
            self.reasons.append(f"{reason}, in {place}{more}")
