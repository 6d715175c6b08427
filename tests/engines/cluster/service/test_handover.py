"""The terminal's process passes its signals on to the process that runs its command."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from raygpu.engines.cluster.service import handover


def test_a_signal_ends_the_command() -> None:
    with subprocess.Popen(["sleep", "60"]) as process, handover._passed_on(process.pid) as passed:
        os.kill(os.getpid(), signal.SIGTERM)
        assert process.wait(10) == -signal.SIGTERM
        assert passed == [signal.SIGTERM]


def test_a_lost_terminal_is_no_reason_for_the_commands_end() -> None:
    """Nor does a process end that has not begun the command yet, and would die of SIGHUP."""
    before = signal.getsignal(signal.SIGHUP)
    with subprocess.Popen(["sleep", "60"]) as process:
        with handover._passed_on(process.pid) as passed:
            os.kill(os.getpid(), signal.SIGHUP)
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.5)
        process.kill()
    assert passed == []
    assert signal.getsignal(signal.SIGHUP) == before
