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

_num_modules = 0
_given_back = False
_unfreeze = gc.unfreeze


def leave_alone(generation: int = 2) -> None:
    """Collect garbage up to this generation, and let later collections visit only what is made from now on."""
    global _num_modules, _given_back
    gc.collect(generation)
    gc.freeze()
    _num_modules, _given_back = len(sys.modules), False


def give_back() -> None:
    """Do as `gc.unfreeze` does, which the end of a Ray calls (`cluster.shutdown`), and note it.

    Python can count the objects that are left alone, but that takes as long as to visit them.
    """
    global _given_back
    _given_back = True
    _unfreeze()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Import all test files, which makes no garbage to speak of."""
    gc.disable()
    try:
        return (yield)
    finally:
        leave_alone()
        gc.enable()
        gc.unfreeze = give_back


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, Any, Any]:
    """Run a test, which may be the first to import a library, or may end a Ray."""
    result = yield
    if len(sys.modules) > _num_modules + NEW_MODULES:
        leave_alone()
    elif _given_back:
        leave_alone(1)  # the end of a Ray has just collected all garbage
    return result
