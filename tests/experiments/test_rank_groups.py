"""Groups of ranks that stay for the next test end with the process that began them."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

LEAVES = """
from experiments.benchmarks.ranks import Group
from tests.experiments.test_rank_groups import stubborn

if __name__ == "__main__":
    group = Group(1, stubborn)
    print(group._pipes[0].recv())
"""


def stubborn(pipe: Connection, rank: int, world: int) -> None:
    """Ignore SIGTERM, as TensorFlow's cluster does."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    pipe.send("ready")
    time.sleep(600)


def test_a_process_that_leaves_a_group_ends_all_the_same() -> None:
    command = [sys.executable, "-c", LEAVES]
    ended = subprocess.run(command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, timeout=120, check=True)
    assert ended.stdout == b"ready\n"
