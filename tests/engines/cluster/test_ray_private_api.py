"""The private API of Ray that raygpu uses does in this release what raygpu needs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ray._private import services
from ray.dashboard import dashboard

from raygpu.engines.cluster.ray_private_api import (
    own_process_groups,
)


def test_ray_s_processes_are_not_in_the_command_s_group(tmp_path: Path) -> None:
    with own_process_groups(None):
        started = services.start_ray_process(["sleep", "60"], "raylet", fate_share=True)
    try:
        assert os.getpgid(started.process.pid) == started.process.pid != os.getpgid(0)
    finally:
        started.process.kill()
        started.process.wait()
    assert services.ConsolePopen.__name__ == "ConsolePopen"


def test_ray_s_dashboard_has_its_temporary_files_elsewhere(tmp_path: Path) -> None:
    for program, expected in (("dashboard.py", str(tmp_path)), ("other.py", "")):
        path, said = tmp_path / program, tmp_path / "said"
        path.write_text("import os, sys\nopen(sys.argv[1], 'w').write(os.environ.get('TMPDIR', ''))\n")
        with own_process_groups(tmp_path):
            started = services.start_ray_process([sys.executable, str(path), str(said)], "dashboard", fate_share=True)
        started.process.wait()
        assert said.read_text() == expected
    assert Path(dashboard.__file__).name == "dashboard.py"
