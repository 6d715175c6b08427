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
"""Limits of the uploads under way in all threads, and the usual one; empty while nothing is uploaded."""


@contextmanager
def time_for(num_bytes: int, *, served: bool) -> Iterator[None]:
    """Let requests inside last as long as the upload of a file of that size may take. A longer limit stays.

    served: whether the store is an MLflow server; no other store has such requests. The variable is there before and
    after: another thread may copy the environment meanwhile.
    """
    if not served:
        yield
        return
    from mlflow.environment_variables import MLFLOW_HTTP_REQUEST_TIMEOUT as VARIABLE

    limit_s = SHORTEST_S + int(num_bytes / BYTES_PER_S)
    with _lock:
        if not _limits_s:
            _limits_s.append(VARIABLE.get())
        _limits_s.append(limit_s)
        os.environ[VARIABLE.name] = str(max(_limits_s))
    try:
        yield
    finally:
        with _lock:
            _limits_s.remove(limit_s)
            os.environ[VARIABLE.name] = str(max(_limits_s))
            if len(_limits_s) == 1:
                _limits_s.clear()


def largest(path: Path) -> int:
    """Return the size of a file, or of the largest one in a folder, in bytes: each file is a request."""
    files = [each for each in path.rglob("*") if each.is_file()] if path.is_dir() else [path]
    return max((each.stat().st_size for each in files), default=0)
