"""A command's interpreter ends without collecting the garbage of its libraries."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import atexit, gc
atexit.register(lambda: print("left to collect:", len(gc.get_objects()), "spared:", gc.get_freeze_count() > 10_000))
from raygpu.cli.command import framed
for _ in range(2):
    framed(lambda: 0, "interrupted")
print("spared before:", gc.get_freeze_count())
"""


def test_the_exit_of_a_command_leaves_nothing_to_collect() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    before, after = done.stdout.splitlines()
    assert before == "spared before: 0"
    left = int(after.split()[3])
    assert left < 50, "objects that the interpreter's last collections go through"
    assert after.endswith("spared: True")
