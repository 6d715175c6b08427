"""Modes of torch, Keras and the environment that hold for a whole process, which one trial's code may set and the next
one's must not find."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

DEVICES = ("cpu", "cuda")
Mode = tuple[Callable[[], Any], Callable[[Any], None]]
"""Function that reads a mode, and one that sets it."""


def torch_modes() -> Callable[[], None]:
    """Return a function that sets torch's modes as they are now in this thread, in another one too; one that does
    nothing if torch is not imported yet."""
    values = _values(_torch_modes())
    return lambda: _set(_torch_modes(), values)


@contextmanager
def torch_modes_kept() -> Iterator[None]:
    """Restore torch's modes at the end."""
    restore = torch_modes()
    try:
        yield
    finally:
        restore()


class WorkerModes(MetaPathFinder):
    """The modes with which each trial of a worker begins: those that `note` finds, with changes by later imports.

    A trial may import a module that sets modes, or torch itself. It is imported once, so that what it sets has to hold
    for later trials too; what the trial sets otherwise does not. So this is also a finder of modules, which looks at
    the modes before and after an import.
    """

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._environment: dict[str, str] | None = None
        self._thread = threading.local()

    def note(self) -> None:
        """Take the present modes for those with which trials begin."""
        self._values, self._environment = _values(_modes()), dict(os.environ)
        sys.meta_path.insert(sys.meta_path.index(PathFinder), self)

    def close(self) -> None:
        """Look at imports no longer."""
        sys.meta_path.remove(self)

    def restore(self) -> None:
        """Set the modes with which a trial begins; no effect before `note`."""
        _set(_modes(), self._values)
        wanted = self._environment
        if wanted is not None and dict(os.environ) != wanted:
            for name in os.environ.keys() - wanted.keys():
                del os.environ[name]
            os.environ.update(wanted)

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Find a module that no other module imports, and note the modes that its import changes."""
        spec = None if getattr(self._thread, "imports", False) else PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        execute, values, environment = spec.loader.exec_module, _values(_modes()), dict(os.environ)

        def noting(module: ModuleType) -> None:
            """Execute the module's code, and note what it changes."""
            self._thread.imports = True
            try:
                execute(module)
            finally:
                self._thread.imports = False
            self._values |= _changes(values, _values(_modes(module)))
            if self._environment is not None:
                self._environment |= _changes(environment, os.environ)

        spec.loader.exec_module = noting  # type: ignore[method-assign]
        return spec


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that are new or differ."""
    return {name: value for name, value in after.items() if name not in before or before[name] != value}


def _values(modes: Mapping[str, Mode]) -> dict[str, Any]:
    return {name: read() for name, (read, _) in modes.items()}


def _set(modes: Mapping[str, Mode], values: Mapping[str, Any]) -> None:
    """Set modes to values; those without a value stay."""
    for name, (_, write) in modes.items():
        if name in values:
            write(values[name])


def _imported(name: str, executed: ModuleType | None) -> Any:
    """Return a module that is imported; None for one that is not, or that is being imported and is not `executed`."""
    module = sys.modules.get(name)
    is_begun = getattr(getattr(module, "__spec__", None), "_initializing", False)
    return None if is_begun and module is not executed else module


def _modes(executed: ModuleType | None = None) -> dict[str, Mode]:
    """Return all modes of what is imported, by name. executed: module whose import has just executed its code."""
    torch = _imported("torch", executed)
    threads = {} if torch is None else {"threads": (torch.get_num_threads, torch.set_num_threads)}
    return _torch_modes(executed) | threads | _keras_modes(executed)


def _torch_modes(executed: ModuleType | None = None) -> dict[str, Mode]:
    """Return torch's modes by name, without the number of threads, which each training sets; none if torch is not
    imported yet."""
    torch = _imported("torch", executed)
    if torch is None:
        return {}
    cudnn, attention = torch.backends.cudnn, torch.backends.mha

    def set_device(device: Any) -> None:
        """Set the default device, if it is another: none is faster than the CPU by name."""
        if torch.get_default_device() != device:
            torch.set_default_device(None if device.type == "cpu" else device)

    modes: dict[str, Mode] = {
        "dtype": (torch.get_default_dtype, torch.set_default_dtype),
        "device": (torch.get_default_device, set_device),
        "gradients": (torch.is_grad_enabled, torch.set_grad_enabled),
        "anomaly": (
            lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
            lambda value: torch.autograd.set_detect_anomaly(*value),
        ),
        "deterministic": (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
        "attention": (attention.get_fastpath_enabled, attention.set_fastpath_enabled),
        "precision": _precision(torch),
    }
    for name in ("benchmark", "deterministic"):
        modes[f"cudnn.{name}"] = _attribute(cudnn, name)
    return modes | {f"autocast {kind}": _autocast(torch, kind) for kind in DEVICES}


def _attribute(module: Any, name: str) -> Mode:
    return (lambda: getattr(module, name)), (lambda value: setattr(module, name, value))


def _autocast(torch: Any, kind: str) -> Mode:
    """Return whether mixed precision is on for a kind of device, and its type, as a mode."""

    def write(value: tuple[bool, Any]) -> None:
        """Set both."""
        torch.set_autocast_enabled(kind, value[0])
        torch.set_autocast_dtype(kind, value[1])

    return lambda: (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)), write


def _precision(torch: Any) -> Mode:
    """Return the precision of float32 in products and convolutions as a mode, by both of torch's interfaces."""
    cudnn = torch.backends.cudnn
    newer = (torch.backends, torch.backends.cuda.matmul, torch.backends.mkldnn.matmul, cudnn.conv)
    older = (
        (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
        _attribute(cudnn, "allow_tf32"),
    )

    def named(read: Callable[[], Any]) -> Any:
        """Return a value of the older interface; None if the newer one has set what has no name there."""
        try:
            return read()
        except RuntimeError:
            return None

    def write(values: tuple[list[Any], list[str]]) -> None:
        """Set the values of the older interface, which changes the newer one's, and then those."""
        for (_, set_older), value in zip(older, values[0], strict=True):
            if value is not None:
                set_older(value)
        for operators, precision in zip(newer, values[1], strict=True):
            operators.fp32_precision = precision

    return lambda: ([named(read) for read, _ in older], [each.fp32_precision for each in newer]), write


def _keras_modes(executed: ModuleType | None) -> dict[str, Mode]:
    """Return Keras' modes by name; none if Keras is not imported yet."""
    config = getattr(_imported("keras", executed), "config", None)
    if config is None:
        return {}
    names = ("floatx", "epsilon", "image_data_format", "dtype_policy")
    return {f"keras.{name}": (getattr(config, name), getattr(config, f"set_{name}")) for name in names}
