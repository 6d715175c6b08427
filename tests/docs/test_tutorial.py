"""docs/tutorial.md, run from its top to its end by an installed wheel in an empty folder."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"(?:^`(?P<file>[\w.]+)`:\n\n)?^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
EXPECTED = re.compile(r"print\(.*\)  # (.*)$", re.MULTILINE)
NOT_RUN = ("sh", "text")
"""Languages of blocks for the reader's shell alone: an installation, a server."""


def steps(page: Path) -> Iterator[tuple[str | None, str, str]]:
    """Yield the file that a block is saved as, its language and its text."""
    for block in BLOCK.finditer(page.read_text()):
        yield block["file"], block["language"], block["text"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_block_works_in_order(installed: Path, tmp_path: Path) -> None:
    environment = os.environ | {"PATH": f"{installed}{os.pathsep}{os.environ['PATH']}"}
    for name in ("MLFLOW_TRACKING_URI", "PYTHONPATH"):
        environment.pop(name, None)
    folder = tmp_path / "empty"
    folder.mkdir()

    def run(*arguments: str) -> str:
        done = subprocess.run(list(arguments), cwd=folder, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{shlex.join(arguments)}\n{done.stdout}{done.stderr}"
        return done.stdout

    counts = dict.fromkeys(("bash", "python", "toml"), 0)
    for file, language, text in steps(ROOT / "docs" / "tutorial.md"):
        if language in NOT_RUN:
            continue
        counts[language] += 1
        if file is not None:
            (folder / file).write_text(text)
        elif language == "python":
            output = run(str(installed / "python"), "-c", text)
            for expected in EXPECTED.findall(text):
                assert expected in output, f"{text}\n{output}"
        else:
            for line in text.strip().splitlines():
                first, *arguments = shlex.split(line)
                assert first == "raygpu"
                run(str(installed / "raygpu"), *arguments)
    assert counts == {"bash": 6, "python": 4, "toml": 1}
    assert {path.name for path in (folder / "runs").iterdir()} >= {"search", "packed", "fused", "mine", "mlflow.db"}
