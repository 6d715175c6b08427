"""Messages between a command and the service: lines of JSON on a socket of this user's, whose other end is checked."""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PROTOCOL = 2
"""Version of the messages; a command of another one does not use the service."""
CONNECT_S = 2.0
LONGEST = 1_000_000
"""Bytes of the longest message."""


class Connection:
    """One end of a connection. Raises PermissionError if the other end is another user's process."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._unread = b""
        if (uid := peer(connection)[1]) != os.getuid():
            connection.close()
            raise PermissionError(f"the process at the other end is user {uid}'s")

    @classmethod
    def to(cls, path: Path) -> Connection:
        """Connect to the service. Raises OSError."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(CONNECT_S)
            connection.connect(str(path))
            connection.settimeout(None)
            return cls(connection)
        except OSError:
            connection.close()
            raise

    @property
    def pid(self) -> int:
        """Return the pid of the process at the other end."""
        return peer(self.socket)[0]

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message. Raises OSError if the other end is gone."""
        self.socket.sendall(json.dumps(dict(message)).encode() + b"\n")

    def receive(self, timeout_s: float | None = None) -> dict[str, Any] | None:
        """Return the next message; None if the other end has closed. Raises OSError, TimeoutError, ValueError."""
        self.socket.settimeout(timeout_s)
        while b"\n" not in self._unread:
            if len(self._unread) > LONGEST:
                raise ValueError("the message is too long")
            part = self.socket.recv(65536)
            if not part:
                return None
            self._unread += part
        line, _, self._unread = self._unread.partition(b"\n")
        message = json.loads(line)
        if not isinstance(message, dict):
            raise ValueError("the message is no object")
        return message

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()


def peer(connection: socket.socket) -> tuple[int, int]:
    """Return pid and user id of the process at the other end, as the kernel tells them."""
    size = struct.calcsize("3i")
    pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return pid, uid
