"""Private API of Ray that raygpu uses. `tests/engines/cluster/test_private_api.py` tells when it changes."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager

from ray._private import services


@contextmanager
def own_process_groups() -> Iterator[None]:
    """Start Ray's processes, meanwhile, outside this process' group.

    `timeout` and other launchers send SIGTERM to the whole group of a command, which would end Ray before the command
    has taken its results from it. Ray has no public setting for it; its processes end with this one in any case.
    """
    kept = services.ConsolePopen
    services.ConsolePopen = functools.partial(kept, process_group=0)
    try:
        yield
    finally:
        services.ConsolePopen = kept
