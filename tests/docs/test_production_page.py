"""The way of docs/production.md from a search to a prediction, command by command."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_from_a_search_to_a_prediction(tmp_path: Path) -> None:
    for name in ("conf", "experiments"):
        (tmp_path / name).symlink_to(ROOT / name)
    page = (ROOT / "docs" / "production.md").read_text()
    commands = re.search(r"```bash\n(.*?)```", page, re.DOTALL)
    program = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert commands is not None
    assert program is not None
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    lines = commands[1].strip().splitlines()
    assert len(lines) == 2
    for line in lines:
        first, *arguments = shlex.split(line)
        assert first == "python"
        done = subprocess.run(
            [sys.executable, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert "registered: models:/digits/1" in done.stdout
    done = subprocess.run([sys.executable, "-c", program[1]], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip().splitlines()[-1] == "[0 1 2 3 4]"
