"""A file system whose machine loses its power: what is not on the disk is gone, though its name may be there."""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

SHUTDOWN = 0x8004587D
"""EXT4_IOC_SHUTDOWN: take no more writes."""
NAMES_ALONE = 1
"""Write the log to the disk before, and thus all names, but no content."""
MOUNT = ["mount", "-o", "loop,noauto_da_alloc"]


class Disk:
    """A file system of 16 MiB, which writes new names before the content, as XFS does."""

    def __init__(self, folder: Path) -> None:
        self.image, self.path = folder / "image", folder / "disk"
        self.path.mkdir()
        with self.image.open("wb") as file:
            file.truncate(2**24)
        if os.geteuid() != 0 or (program := shutil.which("mkfs.ext4", path="/usr/sbin:/sbin")) is None:
            pytest.skip("no file system can be made here")
        subprocess.run([program, "-q", "-F", self.image], check=True)
        if subprocess.run([*MOUNT, self.image, self.path], capture_output=True, check=False).returncode:
            pytest.skip("no file system can be mounted here")

    def lose_power(self) -> None:
        """Lose the power, and start again."""
        descriptor = os.open(self.path, os.O_RDONLY)
        fcntl.ioctl(descriptor, SHUTDOWN, struct.pack("I", NAMES_ALONE))
        os.close(descriptor)
        subprocess.run(["umount", self.path], check=True)
        subprocess.run([*MOUNT, self.image, self.path], check=True)

    def close(self) -> None:
        subprocess.run(["umount", "--lazy", self.path], check=False)
