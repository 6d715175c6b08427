"""Python's collector leaves alone what imports have made: hooks of pytest for `conftest`.

A test process holds half a million objects of imported libraries, which no test makes garbage. To visit them all in
each full collection took a tenth of the processor's time of all tests.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Generator
from typing import Any

import pytest

NEW_MODULES = 100
"""Number of modules that a test has imported above which their objects are left alone too."""
FEW = 100_000
"""Number of objects left alone below which a command of the test has given them back to the collector at its end."""

_num_modules = 0


def leave_alone(generation: int = 2) -> None:
    """Collect garbage up to this generation, and let later collections visit only what is made from now on."""
    global _num_modules
    gc.collect(generation)
    gc.freeze()
    _num_modules = len(sys.modules)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Import all test files, which makes no garbage to speak of."""
    gc.disable()
    try:
        return (yield)
    finally:
        leave_alone()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, Any, Any]:
    """Run a test, which may be the first to import a library, or may end a Ray (see `cluster.shutdown`)."""
    before = gc.get_freeze_count()
    result = yield
    if len(sys.modules) > _num_modules + NEW_MODULES:
        leave_alone()
    elif gc.get_freeze_count() < FEW < before:
        leave_alone(1)  # the end of a Ray has just collected all garbage
    return result
