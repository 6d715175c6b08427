"""The terminal's process passes its signals on to the process that runs its command."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from raygpu.engines.cluster.service import handover


@pytest.mark.parametrize(("number", "ends"), [(signal.SIGTERM, True), (signal.SIGHUP, False)])
def test_a_lost_terminal_is_no_reason_for_the_commands_end(number: signal.Signals, ends: bool) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        with handover._passed_on(process.pid) as passed:
            os.kill(os.getpid(), number)
            assert process.wait(10) == -number
        assert passed == ([number] if ends else [])
