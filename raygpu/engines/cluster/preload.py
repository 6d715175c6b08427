"""Import a training's modules in worker processes before they are asked for.

Ray starts before the user's code is imported, so the framework is not known yet. Each worker that Ray starts in advance
imports `preloaded`, which waits for the file that `announce` writes.

    with Preload(workers=1) as preload:
        with preload.variables():
            ray.init(...)
        preload.announce("torch", ["torch"], {})
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from raygpu.engines.cluster import ray_environment
from raygpu.engines.cluster.preloaded import IMPORTS, VARIABLE
from raygpu.records import scratch
from raygpu.records.whole_files import write_whole

RAY_VARIABLE = "RAY_preload_python_modules"
"""Variable that names the modules which each worker of a Ray imports at its start."""
WITHOUT: dict[str, Any] = {"env_vars": {VARIABLE: ""}}
"""Runtime environment of an actor that trains nothing: a process of its own, which imports nothing in advance."""


class Preload:
    """The imports of a Ray's workers at their start. workers: number of processes that start in advance."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._folder = tempfile.TemporaryDirectory(prefix="preload-", dir=scratch.home())

    @contextmanager
    def variables(self) -> Iterator[None]:
        """Set the variables, meanwhile, that tell Ray and its workers of the imports."""
        from raygpu.engines.cluster import preloaded

        with ExitStack() as stack:
            stack.enter_context(ray_environment.variable(RAY_VARIABLE, preloaded.__name__))
            stack.enter_context(ray_environment.variable(VARIABLE, self._folder.name))
            yield

    def announce(self, modules: Sequence[str], variables: Mapping[str, str]) -> None:
        """Tell the waiting workers what to import. variables: of their environment, set before the imports."""
        path = Path(self._folder.name) / IMPORTS
        content = json.dumps({"modules": list(modules), "variables": dict(variables)})
        write_whole(path, content, lasting=False)

    def close(self) -> None:
        """Delete the file: a worker that still waits, or starts later, imports nothing in advance."""
        self._folder.cleanup()
