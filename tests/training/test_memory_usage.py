from __future__ import annotations

import os
import subprocess
import sys

from raygpu.training import memory_usage

HOLDS = "import sys; held = bytearray(b'x' * (128 * 2**20)); print('held', flush=True); sys.stdin.read()"


def test_what_a_process_started_counts() -> None:
    before = memory_usage.host_gib()
    assert before is not None
    assert memory_usage.family()[0] == os.getpid()
    shell = ["sh", "-c", '"$0" -c "$1"; true', sys.executable, HOLDS]
    with subprocess.Popen(shell, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        family, held = memory_usage.family(), memory_usage.host_gib()
        process.stdin.close()
    assert process.pid in family
    assert len(family) >= 3, "the shell's child too"
    assert held is not None
    assert held - before > 0.12
    assert process.pid not in memory_usage.family()
