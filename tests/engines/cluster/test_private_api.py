"""The private API of Ray that raygpu uses does in this release what raygpu needs."""

from __future__ import annotations

import os
from pathlib import Path

from ray._private import services

from raygpu.engines.cluster.private_api import own_process_groups


def test_ray_s_processes_are_not_in_the_command_s_group(tmp_path: Path) -> None:
    with own_process_groups():
        started = services.start_ray_process(["sleep", "60"], "raylet", fate_share=True)
    try:
        assert os.getpgid(started.process.pid) == started.process.pid != os.getpgid(0)
    finally:
        started.process.kill()
        started.process.wait()
    assert services.ConsolePopen.__name__ == "ConsolePopen"
