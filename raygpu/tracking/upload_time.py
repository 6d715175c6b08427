"""The time that MLflow's client waits for an upload: a server answers only once it has passed the file on.

MLflow reads its limit for every request from the environment, which is the process' own. While a file is uploaded, the
requests of other threads have the longer limit, too: what hangs meanwhile is noticed later.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SHORTEST_S = 120
"""Limit for a small file, in seconds: MLflow's own default for all requests."""
BYTES_PER_S = 1e6
"""Slowest way to the artifact store that an upload still has the time for."""
_lock = threading.Lock()
_limits_s: list[int] = []
"""Limits of the uploads under way in all threads."""
_usual: list[str | None] = []
"""The variable's text before the first of them; empty while there is none."""


@contextmanager
def time_for(num_bytes: int) -> Iterator[None]:
    """Let requests inside last as long as the upload of a file of that size may take. A longer limit stays."""
    from mlflow.environment_variables import MLFLOW_HTTP_REQUEST_TIMEOUT as VARIABLE

    limit_s = SHORTEST_S + int(num_bytes / BYTES_PER_S)
    with _lock:
        if not _limits_s:
            limit_s = max(limit_s, VARIABLE.get())
            _usual.append(os.environ.get(VARIABLE.name))
        _limits_s.append(limit_s)
        os.environ[VARIABLE.name] = str(max(_limits_s))
    try:
        yield
    finally:
        with _lock:
            _limits_s.remove(limit_s)
            if _limits_s:
                os.environ[VARIABLE.name] = str(max(_limits_s))
            elif (usual := _usual.pop()) is not None:
                os.environ[VARIABLE.name] = usual
            else:
                del os.environ[VARIABLE.name]


def largest(path: Path) -> int:
    """Return the size of a file, or of the largest one in a folder, in bytes: each file is a request."""
    files = [each for each in path.rglob("*") if each.is_file()] if path.is_dir() else [path]
    return max((each.stat().st_size for each in files), default=0)
