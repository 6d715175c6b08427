"""Settings that Keras has for a thread in its global state, which `keras.utils.clear_session()` empties.

Keras' own `keras.config.dtype_policy()` sets a policy if there is none, so that `set_floatx` no longer has an effect on
later layers, and there is no public way to read whether unsafe deserialization is enabled. This is private API of
Keras 3, apart from the rest (`keras/keras_private_api.py`) because it is also for processes that have not imported
TensorFlow.
"""

from __future__ import annotations

import sys
from typing import Any

POLICY = "dtype_policy"
"""The type of new layers; None without one, which leaves it to `floatx`."""
SAFE_MODE = "safe_mode_saving"
"""Whether a model's file may hold Python code: False after `enable_unsafe_deserialization()`, else None."""
FLASH_ATTENTION = "flash_attention"
"""Whether attention layers may use it: False after `disable_flash_attention()`, else None."""


def stored(name: str) -> Any:
    """Return a setting; None for one that has not been set. Keras has to be imported."""
    return _global_state().get_global_attribute(name)


def store(name: str, value: Any) -> None:
    """Set a setting."""
    _global_state().set_global_attribute(name, value)


def _global_state() -> Any:
    return sys.modules["keras"].src.backend.common.global_state
