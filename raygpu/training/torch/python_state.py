"""State that a model keeps outside its parameters and buffers: plain attributes, global variables, random generators.

An array runs one member's Python code for all members, so such state is shared by all of them, and by all tiles.
"""

from __future__ import annotations

import gc
import logging
import pickle
import random
import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

from raygpu.config.imported_files import module_variables
from raygpu.search.hyperparameters import Hyperparameters
from raygpu.training.torch.models import GIVEN
from raygpu.training.torch.training_mode import STAYING, STAYS, SWITCHED
from raygpu.training.torch.value_texts import array_text, digest, generator_state, tensor_text
from raygpu.training.users_files import in_users_file

NO_STATE = frozenset(vars(nn.Module())) | {GIVEN, STAYING, STAYS, SWITCHED}
"""Attributes of modules that are torch's own (parameters, submodules, hooks, the training flag ...), or raygpu's."""
FUNCTIONS = (FunctionType, BuiltinFunctionType, MethodType, property, staticmethod, classmethod)
CONSTANT = (*FUNCTIONS, ModuleType, type, logging.Logger)
"""Kinds of objects that are no state."""
GENERATORS = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)
OF_GLOBALS = "the global "
"""Beginning of the path of a global variable."""
DEPTH = 4
"""Number of levels of containers and objects that are examined."""
ADDRESS = re.compile(r" at 0x[0-9a-f]+")
"""An object's place in memory, in its text."""
METHODS = ("forward", "loss", "metrics", "augment")
"""Methods of a library's classes whose variables are examined; of a user's own classes all are."""
MOST_FUNCTIONS = 1000
"""Largest number of functions that are followed from one to the next."""


def plain_state(model: nn.Module, experiment: object) -> dict[str, str]:
    """Return a text for each plain attribute, by its path: two such dictionaries differ where an attribute has changed.

    It covers attributes of the modules, of the experiment, and of their classes, and the global and enclosing variables
    that their methods read; of a module among these that is no part of the model, parameters and buffers too. The
    model's own parameters and buffers are left out, and tensors that autograd has computed.
    """
    return _read(_Reading(model), model, experiment)


def learned_outside(model: nn.Module, experiment: object) -> list[tuple[str, torch.Tensor]]:
    """Return the tensors that require a gradient and are no part of the model, with their paths: where `plain_state`
    looks, as in a loss that is a global variable."""
    reading = _Reading(model)
    _read(reading, model, experiment)
    return reading.learned


def _read(reading: _Reading, model: nn.Module, experiment: object) -> dict[str, str]:
    attribute_texts = dict(reading.of_object(experiment, type(experiment).__name__))
    for path, module in model.named_modules():
        attribute_texts |= reading.of_object(module, f"{type(module).__name__}{'.' if path else ''}{path}")
    while reading.kept_modules or reading.kept_functions:
        attribute_texts |= reading.of_kept_functions()
        for _ in range(len(reading.kept_modules)):
            attribute_texts |= reading.of_kept_module(*reading.kept_modules.pop())
    return attribute_texts


def changed_attribute(before: Mapping[str, str], after: Mapping[str, str]) -> str | None:
    """Return the path of the first attribute that differs; None if all are equal."""
    return next((path for path in {**before, **after} if before.get(path) != after.get(path)), None)


def differing_attributes(one: nn.Module, other: nn.Module) -> list[str]:
    """Return the paths of the plain attributes in which two models of the same modules differ.

    It covers attributes of the modules, of classes that `model(hp)` defines, and the enclosing variables of functions
    that these are. Left out are objects that both have, random generators, and what holds an `hp`.
    """
    texts: tuple[dict[str, str], dict[str, str]] = {}, {}
    for own, model, twin in zip(texts, (one, other), (other, one), strict=True):
        reading = _Reading(model)
        for (path, module), (_, other_module) in zip(model.named_modules(), twin.named_modules(), strict=True):
            own |= reading.of_one_alone(module, other_module, f"{type(module).__name__}{'.' if path else ''}{path}")
        while reading.kept_functions:
            own |= reading.of_kept_functions()
    return [
        path
        for path in {**texts[0], **texts[1]}
        if not path.startswith(OF_GLOBALS)
        and ADDRESS.sub("", texts[0].get(path, "")) != ADDRESS.sub("", texts[1].get(path, ""))
        and Hyperparameters.__name__ not in texts[0].get(path, "")
    ]


class _Reading:
    """One reading of a model's and an experiment's attributes as texts.

    model: its modules and parameters are known by their names alone, wherever they are found.
    """

    def __init__(self, model: nn.Module) -> None:
        self._paths = {id(module): name for name, module in model.named_modules()}
        self._parameters = {id(parameter) for parameter in model.parameters()}
        self._followed: set[int] = set()
        self.kept_modules: list[tuple[nn.Module, str]] = []
        """Modules that were found, are no part of the model and have not been read, with their paths."""
        self.learned: list[tuple[str, torch.Tensor]] = []
        """Tensors that require a gradient and are no part of the model, with their paths."""
        self.kept_functions: list[tuple[FunctionType, str]] = []
        """The user's functions that were found in attributes and variables, and have not been read."""

    def of_object(self, owner: object, path: str) -> Iterator[tuple[str, str]]:
        """Yield the attributes of an object and its classes, and the variables of its methods and forward hooks."""
        for name, value in _attributes(owner):
            if name not in NO_STATE or not isinstance(owner, nn.Module):
                yield f"{path}.{name}", self._text(value, f"{path}.{name}")
        functions: list[FunctionType] = []
        for kind in type(owner).__mro__:
            if _is_users(kind.__module__):
                for name, value in vars(kind).items():
                    if not name.startswith("__"):
                        of_class = f"the class attribute {kind.__name__}.{name}"
                        yield of_class, self._text(value, of_class)
                methods = {name: value for name, value in vars(kind).items() if isinstance(value, FunctionType)}
                functions += [each for name, each in methods.items() if name in METHODS or _is_own_code(each)]
        if isinstance(owner, nn.Module):
            hooks = [*owner._forward_hooks.values(), *owner._forward_pre_hooks.values()]
            functions += [hook for hook in hooks if isinstance(hook, FunctionType)]
        yield from self._variables(functions)

    def of_one_alone(self, module: nn.Module, other: nn.Module, path: str) -> Iterator[tuple[str, str]]:
        """Yield the attributes of a module that are no object of the other one's, and those of a class of its own."""
        shared = dict(_attributes(other))
        for name, value in _attributes(module):
            if name not in NO_STATE and value is not shared.get(name, self) and not isinstance(value, GENERATORS):
                yield f"{path}.{name}", self._text(value, f"{path}.{name}")
        if type(module) is not type(other):
            yield from ((name, text) for name, text in self.of_object(module, path) if not name.startswith(f"{path}."))

    def of_kept_module(self, module: nn.Module, path: str) -> Iterator[tuple[str, str]]:
        """Yield the same of a module that is no part of the model, and its parameters, buffers and submodules."""
        yield from self.of_object(module, path)
        for parts in (module._parameters, module._buffers, module._modules):
            for name, part in parts.items():
                yield f"{path}.{name}", self._text(part, f"{path}.{name}")

    def of_kept_functions(self) -> Iterator[tuple[str, str]]:
        """Yield the variables of the functions that were found, by the paths of these: several may be of one code."""
        functions, self.kept_functions = self.kept_functions, []
        for function, path in functions:
            if id(function) not in self._followed and len(self._followed) < MOST_FUNCTIONS:
                self._followed.add(id(function))
                for variable, value in _variables_of(function):
                    name = variable if variable.startswith(OF_GLOBALS) else f"{variable} of {path}"
                    yield name, self._text(value, name)

    def _variables(self, functions: list[FunctionType]) -> Iterator[tuple[str, str]]:
        """Yield the global and enclosing variables and defaults of functions, and of the user's functions that they
        name."""
        seen: set[int] = set()
        while functions and len(seen) < MOST_FUNCTIONS:
            function = functions.pop()
            if id(function) in seen:
                continue
            seen.add(id(function))
            self._followed.add(id(function))
            values = dict(_variables_of(function))
            functions += [each for each in values.values() if isinstance(each, FunctionType) and _is_own_code(each)]
            yield from ((path, self._text(value, path)) for path, value in values.items())

    def _text(self, value: Any, path: str, depth: int = DEPTH) -> str:
        if value is None or isinstance(value, bool | int | float | complex | str | bytes | PurePath | Hyperparameters):
            return repr(value)  # of `hp` it counts as no reading
        if isinstance(value, torch.Tensor):
            if id(value) in self._parameters:
                return "tensor"
            if value.requires_grad and value.is_leaf:
                self.learned.append((path, value))
            return tensor_text(value)
        if isinstance(value, np.ndarray) and not value.dtype.hasobject:
            return array_text(value)
        if (state := generator_state(value)) is not None:
            return digest(repr(state).encode())
        if isinstance(value, nn.Module):
            return self._module_text(value, path)
        if isinstance(value, FunctionType) and _is_own_code(value):
            self.kept_functions.append((value, path))
        if isinstance(value, CONSTANT):
            return _constant_text(value)
        if depth == 0:
            return self._pickled(value, path, depth)
        if isinstance(value, Mapping):
            texts = (f"{key!r}: {self._text(each, f'{path}[{key!r}]', depth - 1)}" for key, each in value.items())
            return "; ".join(texts)
        if isinstance(value, set | frozenset):  # in an order that each process has for itself
            return ", ".join(sorted(self._text(each, path, depth - 1) for each in value))
        if isinstance(value, list | tuple) or type(value).__name__ == "deque":
            return ", ".join(self._text(each, f"{path}[{i}]", depth - 1) for i, each in enumerate(value))
        if (attributes := dict(_attributes(value))) and not type(value).__module__.startswith(("pandas", "numpy")):
            texts = (f"{name!r}: {self._text(each, f'{path}.{name}', depth - 1)}" for name, each in attributes.items())
            return "; ".join(texts)
        return self._pickled(value, path, depth)

    def _module_text(self, module: nn.Module, path: str) -> str:
        """Return a module's name, or the path at which it was found first: what it holds is read by itself.

        A metric of torchmetrics is not read: it adds up batches beside the value of one, and a metric that depends on
        earlier batches is refused by the first step (`training/torch/first_step.py`).
        """
        if id(module) not in self._paths:
            self._paths[id(module)] = path
            if not any(kind.__module__.partition(".")[0] == "torchmetrics" for kind in type(module).__mro__):
                self.kept_modules.append((module, path))
        return f"{type(module).__name__} {self._paths[id(module)]}"

    def _pickled(self, value: Any, path: str, depth: int) -> str:
        """Return a text for iterators, tables and any other object by its pickle; for an iterator that has none by the
        objects that it refers to: of a Python generator its variables, and the iterators of its loops."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return digest(pickle.dumps(value))
        except Exception:  # noqa: BLE001 - what cannot be pickled may raise anything
            text = ADDRESS.sub("", repr(value))
        if isinstance(value, Iterator) and depth:
            frame = getattr(value, "gi_frame", None)  # none of a generator that has ended
            parts = [self._text(each, f"{path}[{i}]", depth - 1) for i, each in enumerate(gc.get_referents(value))]
            text = f"{text} {frame and frame.f_lasti}: {', '.join(parts)}"
        return text


def _constant_text(value: Any) -> str:
    """Return the name of a function, a class or a module; of a function also what its code computes, as lambdas have
    one name."""
    if isinstance(value, ModuleType):
        return f"{type(value).__name__} {module_variables(value).get('__name__')}"
    name = getattr(value, "__qualname__", getattr(value, "__name__", ""))
    code = getattr(value, "__code__", None)
    if not isinstance(code, CodeType):
        return f"{type(value).__name__} {name}"
    return f"{type(value).__name__} {name} {digest(_code_text(code).encode())}"


def _code_text(code: CodeType) -> str:
    """Return the instructions, names and constants of a function, and of those within it, in an order that all
    processes have."""
    return repr((code.co_code, code.co_names, [_text_in_code(each) for each in code.co_consts]))


def _text_in_code(constant: Any) -> str:
    if isinstance(constant, CodeType):
        return _code_text(constant)
    return repr(sorted(constant, key=repr) if isinstance(constant, frozenset) else constant)


def _attributes(owner: object) -> Iterator[tuple[str, Any]]:
    yield from vars(owner).items() if hasattr(owner, "__dict__") else ()
    for kind in type(owner).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(owner, name):
                yield name, getattr(owner, name)


def _variables_of(function: FunctionType) -> Iterator[tuple[str, Any]]:
    for name in sorted(_names(function.__code__)):  # in the same order in every process
        if name in function.__globals__:
            yield f"{OF_GLOBALS}{name}", function.__globals__[name]
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f"the variable {name}", cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    defaults: dict[int | str, Any] = dict(enumerate(function.__defaults__ or ()))
    for place, value in (defaults | (function.__kwdefaults__ or {}) | vars(function)).items():
        yield f"the default {place} of {function.__qualname__}", value


def _names(code: CodeType) -> set[str]:
    """Return the names that a function's code and its inner functions read."""
    inner = [_names(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*inner)


def _is_own_code(function: FunctionType) -> bool:
    return in_users_file(function.__code__.co_filename) and _is_users(function.__module__ or "")


def _is_users(module: str) -> bool:
    return module.partition(".")[0] not in ("torch", "raygpu", "builtins", "abc", "typing")
