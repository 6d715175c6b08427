"""Modes of a worker that trains one trial after another: what a trial's code sets, the next trial does not find."""

from __future__ import annotations

import copy
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from raygpu.training.modes import all_modes, read_modes, set_modes

_thread = threading.local()


def trains_here() -> None:
    """Take this thread for one that runs a trial's code; the imports of other threads change no mode of a trial."""
    _thread.trains = True


class WorkerModes(MetaPathFinder):
    """The modes with which each trial of a worker begins: those that `note` finds, with changes by later imports.

    A trial may import a module that sets modes, or torch itself. It is imported once, so that what it sets has to hold
    for later trials too; what the trial sets otherwise does not. So this is also a finder of modules, which looks at
    the modes before and after an import.
    """

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._environment: dict[str, str] | None = None

    def note(self) -> None:
        """Take the present modes for those with which trials begin."""
        self._values, self._environment = read_modes(all_modes()), dict(os.environ)
        trains_here()
        sys.meta_path.insert(0, self)

    def close(self) -> None:
        """Look at imports no longer."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def restore(self) -> None:
        """Set the modes with which a trial begins; no effect before `note`."""
        set_modes(all_modes(), self._values)
        wanted = self._environment
        if wanted is not None and dict(os.environ) != wanted:
            for name in os.environ.keys() - wanted.keys():
                del os.environ[name]
            os.environ.update(wanted)

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Find a module that no other module imports, by the finders after this one, and note the modes that its import
        changes."""
        if getattr(_thread, "imports", False) or self not in sys.meta_path:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            find_spec = getattr(finder, "find_spec", None)
            if find_spec is not None and (spec := find_spec(name, path, target)) is not None:
                spec.loader = self._noting(spec.loader)
                return spec
        return None

    def _noting(self, loader: Any) -> Any:
        """Return a copy of a loader that notes what a module changes; modules of one archive share their loader."""
        attributes = getattr(loader, "__dict__", {})
        if isinstance(loader, type) or "exec_module" in attributes or not hasattr(loader, "exec_module"):
            return loader  # of a module that is part of Python, or noted already, or of a namespace package
        execute, loader = loader.exec_module, copy.copy(loader)

        def noting(module: ModuleType) -> None:
            """Execute the module's code, and note what it changes."""
            values, environment = read_modes(all_modes()), dict(os.environ)
            executed = None
            _thread.imports = True
            try:
                execute(module)
                executed = module
            finally:  # an import that fails may have imported others
                _thread.imports = False
                self._note_changes(values, environment, executed)

        loader.exec_module = noting
        return loader

    def _note_changes(self, values: dict[str, Any], environment: dict[str, str], executed: ModuleType | None) -> None:
        """Note the modes that differ from these values; of an import beside the trial, those that are new alone."""
        changes = _changes(values, read_modes(all_modes(executed)))
        if not getattr(_thread, "trains", False):
            self._values |= {name: value for name, value in changes.items() if name not in values}
            return
        self._values |= changes
        if self._environment is not None:
            self._environment |= _changes(environment, os.environ)


def _changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that are new or differ."""
    return {name: value for name, value in after.items() if name not in before or before[name] != value}
