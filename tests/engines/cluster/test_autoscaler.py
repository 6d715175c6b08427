"""The autoscaler of a local Ray is killed, and no other process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ray._private import services

from raygpu.engines.cluster import autoscaler

PROGRAM = """
import subprocess, sys
from raygpu.engines.cluster import autoscaler
processes = [subprocess.Popen([sys.executable, "-u", path, "--logs-dir=x"]) for path in sys.argv[1:]]
try:
    killed = autoscaler.kill()
    processes[0].wait(60)
    print(killed == [processes[0].pid], [process.poll() for process in processes], autoscaler.kill())
finally:
    for process in processes:
        process.kill()
"""


def test_the_autoscaler_alone_is_killed(tmp_path: Path) -> None:
    """In a process of its own: the tests' own process may have a Ray."""
    paths = [tmp_path / "ray/autoscaler/v2/monitor.py", tmp_path / "autoscaler/monitor.py"]
    paths.append(tmp_path / "ray/autoscaler/other.py")
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("import time; time.sleep(600)")
    done = subprocess.run([sys.executable, "-c", PROGRAM, *map(str, paths)], capture_output=True, text=True, check=True)
    assert done.stdout == "True [-9, None, None] []\n"


def test_ray_still_starts_its_autoscaler_by_these_names() -> None:
    for folder in (services.AUTOSCALER_V2_DIR, services.AUTOSCALER_PRIVATE_DIR):
        program = Path(services.RAY_PATH, folder, "monitor.py")
        assert program.is_file()
        assert autoscaler._is_program(str(program))
