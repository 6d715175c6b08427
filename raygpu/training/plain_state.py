"""State that a model keeps outside its parameters and buffers: plain attributes, generators, hooks on parameters.

An array runs one member's Python code for all members, so such state is shared by all of them, and by all tiles.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Callable, Iterable, Mapping
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

TORCH_S_OWN = frozenset(vars(nn.Module()))
"""Attributes that torch keeps of every module: parameters, buffers, submodules, hooks, the training flag."""
FUNCTIONS = (FunctionType, BuiltinFunctionType, MethodType, property, staticmethod, classmethod)
CONSTANT = (*FUNCTIONS, ModuleType, type, nn.Module)
DEPTH = 4
"""Levels of containers and objects that are looked into."""
ADDRESS = re.compile(r"0x[0-9a-f]+")
METHODS = ("forward", "loss", "metrics", "augment")


def plain_state(model: nn.Module, experiment: object) -> dict[str, str]:
    """A text for each plain attribute, by its path: two such dictionaries differ where the attribute has changed.

    Attributes of the modules, of the experiment, and of their classes, and the global and enclosing variables that
    their methods read. Parameters, buffers and tensors that carry a gradient are left out.
    """
    found = dict(_of_object(experiment, type(experiment).__name__))
    for path, module in model.named_modules():
        found |= _of_object(module, f"{type(module).__name__}{'.' if path else ''}{path}")
    return found


def changed_attribute(before: Mapping[str, str], after: Mapping[str, str]) -> str | None:
    """The path of the first attribute that differs; None where all are equal."""
    return next((path for path in {**before, **after} if before.get(path) != after.get(path)), None)


def hooked(model: nn.Module) -> str | None:
    """Names the first parameter or module that has a hook on its gradient; None where there is none."""
    for name, parameter in model.named_parameters():
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            return f"the parameter {name} has a hook"
    for name, module in model.named_modules():
        if module._backward_hooks or module._backward_pre_hooks:
            return f"the module {name or type(module).__name__} has a backward hook"
    return None


def _of_object(owner: object, path: str) -> Iterable[tuple[str, str]]:
    for name, value in vars(owner).items() if hasattr(owner, "__dict__") else ():
        if name not in TORCH_S_OWN or not isinstance(owner, nn.Module):
            yield f"{path}.{name}", _text(value)
    for kind in type(owner).__mro__:
        if _is_users(kind.__module__):
            for name, value in vars(kind).items():
                if not name.startswith("__"):
                    yield f"the class attribute {kind.__name__}.{name}", _text(value)
            for method in METHODS:
                if isinstance(function := vars(kind).get(method), FunctionType):
                    yield from _variables(function)


def _variables(function: FunctionType) -> Iterable[tuple[str, str]]:
    """The global and enclosing variables that a function reads."""
    for name in function.__code__.co_names:
        if name in function.__globals__:
            yield f"the global {name}", _text(function.__globals__[name])
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f"the variable {name}", _text(cell.cell_contents)
        except ValueError:  # not assigned yet
            continue


def _is_users(module: str) -> bool:
    return module.partition(".")[0] not in ("torch", "raygpu", "builtins", "abc", "typing")


def _text(value: Any, depth: int = DEPTH) -> str:
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return repr(value)
    if isinstance(value, torch.Tensor):
        return _tensor_text(value)
    if isinstance(value, np.ndarray):
        return _digest(value.tobytes())
    if (state := _generator_state(value)) is not None:
        return _digest(repr(state).encode())
    if isinstance(value, CONSTANT) or depth == 0:
        return type(value).__name__
    if isinstance(value, Mapping):
        return "; ".join(f"{key!r}: {_text(each, depth - 1)}" for key, each in value.items())
    if isinstance(value, list | tuple | set | frozenset) or type(value).__name__ == "deque":
        return ", ".join(_text(each, depth - 1) for each in value)
    if hasattr(value, "__dict__") and vars(value):
        return _text(vars(value), depth - 1)
    return ADDRESS.sub("", repr(value))  # counters of itertools, ranges, slices


def _tensor_text(tensor: torch.Tensor) -> str:
    if tensor.requires_grad or isinstance(tensor, nn.Parameter):
        return "tensor"
    try:
        values = tensor.detach().cpu().resolve_conj()
        return _digest(torch.view_as_real(values).numpy().tobytes() if values.is_complex() else _bytes(values))
    except (RuntimeError, TypeError):  # a sparse one, or one that belongs to a transform that has ended
        return "tensor"


def _bytes(values: torch.Tensor) -> bytes:
    return values.contiguous().view(torch.uint8).numpy().tobytes() if values.dim() else repr(values.item()).encode()


def _digest(content: bytes) -> str:
    return hashlib.sha1(content, usedforsecurity=False).hexdigest()


def _generator_state(value: Any) -> Any:
    """The state of a random number generator; None of anything else."""
    readers: list[tuple[type, Callable[[Any], Any]]] = [
        (np.random.Generator, lambda generator: generator.bit_generator.state),
        (np.random.RandomState, lambda generator: generator.get_state(legacy=False)),
        (random.Random, lambda generator: generator.getstate()),
        (torch.Generator, lambda generator: generator.get_state().tolist()),
    ]
    return next((read(value) for kind, read in readers if isinstance(value, kind)), None)
