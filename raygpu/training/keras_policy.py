"""The type that Keras gives to new layers in this thread, where one has been set.

Keras' own `keras.config.dtype_policy()` sets one if there is none, so that `set_floatx` no longer has an effect on
later layers. This is private API of Keras 3, apart from the rest (`keras/keras_private_api.py`) because it is also for
processes that have not imported TensorFlow.
"""

from __future__ import annotations

import sys
from typing import Any

NAME = "dtype_policy"


def stored_policy() -> Any:
    """Return the policy that has been set; None without one. Keras has to be imported."""
    return _global_state().get_global_attribute(NAME)


def store_policy(policy: Any) -> None:
    """Set the policy; None leaves the type to `floatx`."""
    _global_state().set_global_attribute(NAME, policy)


def _global_state() -> Any:
    return sys.modules["keras"].src.backend.common.global_state
