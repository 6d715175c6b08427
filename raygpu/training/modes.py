"""Modes of torch, Keras and scikit-learn that hold for a process or thread, by name: what reads and what sets each."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from operator import attrgetter
from typing import Any

from raygpu.training.keras_global_state import FLASH_ATTENTION, POLICY, SAFE_MODE, store, stored

DEVICES = ("cpu", "cuda")
PRECISIONS = (
    "backends",
    "backends.cudnn",
    "backends.mkldnn",
    "backends.cuda.matmul",
    "backends.cudnn.conv",
    "backends.cudnn.rnn",
    "backends.mkldnn.matmul",
    "backends.mkldnn.conv",
    "backends.mkldnn.rnn",
)
"""Parts of torch with a precision of float32; one without a value of its own has that of a part before it."""
KERAS_STORED = POLICY, SAFE_MODE, FLASH_ATTENTION
"""Modes of Keras that a process begins without."""
THREADS = "threads"
"""The mode that is always set: a thread reads its own value, and sets that of later threads too."""
Mode = tuple[Callable[[], Any], Callable[[Any], None]]
"""Function that reads a mode, and one that sets it."""


def thread_modes() -> Callable[[], None]:
    """Return a function that sets the modes of torch, Keras and scikit-learn as they are now in this thread, in another
    one too; of those that are imported already."""
    modes = _torch_modes() | _keras_modes() | _sklearn_modes()
    values = read_modes(modes)
    return lambda: set_modes(modes, values)


@contextmanager
def torch_modes_kept() -> Iterator[None]:
    """Restore torch's modes at the end."""
    values = read_modes(_torch_modes())
    try:
        yield
    finally:
        set_modes(_torch_modes(), values)


def read_modes(modes: Mapping[str, Mode]) -> dict[str, Any]:
    """Return the modes' values."""
    return {name: read() for name, (read, _) in modes.items()}


def set_modes(modes: Mapping[str, Mode], values: Mapping[str, Any]) -> None:
    """Set modes to values, if they have others; those without a value stay.

    A mode that is set no longer follows the one above it, so none is set without need; torch cannot undo this where a
    convolution's precision had been set. Twice, because torch's older names of a precision set the newer ones too.
    """
    for _ in range(2):
        for name, (read, write) in modes.items():
            if name in values and (name == THREADS or read() != values[name]):
                write(values[name])


def _imported(name: str) -> Any:
    """Return a module that is imported; None for one that is not, or that another thread is importing."""
    module = sys.modules.get(name)
    is_begun = getattr(getattr(module, "__spec__", None), "_initializing", False)
    return None if is_begun else module


def all_modes() -> dict[str, Mode]:
    """Return all modes of what is imported, by name."""
    torch = _imported("torch")
    threads = {} if torch is None else {THREADS: (torch.get_num_threads, torch.set_num_threads)}
    return _torch_modes() | threads | _keras_modes()


def defaults() -> dict[str, Any]:
    """Return the modes, by name, that torch and Keras have when they have been imported, as far as they have the same
    everywhere: Keras' types may come from a file of the user's."""
    modes: dict[str, Any] = {f"keras.{name}": None for name in KERAS_STORED}
    torch = _imported("torch")
    if torch is None:
        return modes
    return modes | {
        "dtype": torch.float32,
        "device": torch.device("cpu"),
        "gradients": True,
        "anomaly": (False, True),
        "deterministic": 0,
        "attention": True,
        "products": "highest",
        "cudnn.allow_tf32": True,
        "cudnn.benchmark": False,
        "cudnn.deterministic": False,
        "autocast cpu": (False, torch.bfloat16),
        "autocast cuda": (False, torch.float16),
    }


def _torch_modes() -> dict[str, Mode]:
    """Return torch's modes by name, without the number of threads, which each training sets; none if torch is not
    imported yet."""
    torch = _imported("torch")
    if torch is None:
        return {}
    cudnn, attention = torch.backends.cudnn, torch.backends.mha

    def set_device(device: Any) -> None:
        """Set the default device: none is faster than the CPU by name."""
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
        **_precisions(torch),
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


def _precisions(torch: Any) -> dict[str, Mode]:
    """Return the precision of float32 in products and convolutions as modes, by both of torch's interfaces."""
    modes = {}
    for path in PRECISIONS:
        with suppress(AttributeError):  # a release without it
            part = attrgetter(path)(torch)
            part.fp32_precision  # noqa: B018 - raises here and not when it is read as a mode
            modes[path] = _attribute(part, "fp32_precision")
    older = {
        "products": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
        "cudnn.allow_tf32": _attribute(torch.backends.cudnn, "allow_tf32"),
    }
    return modes | {name: _named(mode) for name, mode in older.items()}


def _named(mode: Mode) -> Mode:
    """Return a mode of the older interface with None for what the newer one has set and has no name there."""
    read, write = mode

    def read_named() -> Any:
        """Return the value, or None."""
        try:
            return read()
        except RuntimeError:
            return None

    return read_named, lambda value: None if value is None else write(value)


def _keras_modes() -> dict[str, Mode]:
    """Return Keras' modes by name; none if Keras is not imported yet."""
    config = getattr(_imported("keras"), "config", None)
    if config is None:
        return {}
    names = ("floatx", "epsilon", "image_data_format")
    modes = {f"keras.{name}": (getattr(config, name), getattr(config, f"set_{name}")) for name in names}
    return modes | {f"keras.{name}": (partial(stored, name), partial(store, name)) for name in KERAS_STORED}


def _sklearn_modes() -> dict[str, Mode]:
    """Return scikit-learn's configuration as a mode; none if it is not imported yet."""
    sklearn = _imported("sklearn")
    return {} if sklearn is None else {"sklearn": (sklearn.get_config, lambda value: sklearn.set_config(**value))}
