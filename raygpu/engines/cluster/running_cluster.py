"""The address of a Ray cluster that runs already, found without importing Ray.

Ray writes the address of the last cluster that `ray start` has begun on a machine into a file; raygpu's own local Rays
have another folder, and are not found here.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

FILE = "ray/ray_current_cluster"
"""Ray's file with the address of the machine's cluster, below its folder for temporary files."""
ADDRESS = "RAY_ADDRESS"
"""Variable by which a person gives the address to every program of Ray's."""
CONNECT_S = 0.5


def given_address() -> str | None:
    """Return the address in RAY_ADDRESS; None if it is not set."""
    return os.environ.get(ADDRESS) or None


def found_address(*, of_any_user: bool = False) -> str | None:
    """Return the address of the cluster that was started on this machine; None if none answers.

    of_any_user: whether the file of another user counts too: who joins a cluster runs what it sends.
    """
    file = Path(os.environ.get("RAY_TMPDIR") or "/tmp") / FILE
    try:
        if not of_any_user and file.stat().st_uid not in (0, os.getuid()):
            return None
        address = file.read_text().strip()
        host, _, port = address.rpartition(":")
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
    except (OSError, ValueError, OverflowError):
        return None
    return address
