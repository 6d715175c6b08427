"""A process that waits becomes the command that a terminal hands to it, and what it imports in advance is there."""

from __future__ import annotations

import importlib.util
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from raygpu.engines.cluster.service.pool import PRELOADED
from raygpu.engines.cluster.service.standby import IMPORTED

WAITS = """
import os, sys, tempfile, time
from types import SimpleNamespace
from raygpu.engines.cluster.service import standby

tempfile.gettempdir()

def run(words):
    print(os.getpid(), *words, os.getcwd(), oct(os.umask(0)), os.environ.get("SEEN"), os.environ.get("OF_THE_START"))
    print(tempfile.gettempdir(), time.tzname[0])
    print("a fault", file=sys.stderr)
    return 3

standby.IMPORTED = ()
sys.modules["raygpu.__main__"] = SimpleNamespace(run=run)
sys.exit(standby.main([sys.argv[1]]))
"""
TERMINAL = """
import os, sys
from pathlib import Path
from raygpu.engines.cluster.service import handover
from raygpu.engines.cluster.service.connection import Connection

os.umask(0o027)
connection = Connection.to(Path(sys.argv[1]))
handover._give(connection, ["two", "words"])
sys.exit(handover._exit_code(connection))
"""


@pytest.mark.parametrize("name", sorted({name for name in (*PRELOADED, *IMPORTED) if name.startswith("raygpu.")}))
def test_what_is_imported_in_advance_is_there(name: str) -> None:
    assert importlib.util.find_spec(name) is not None


@pytest.fixture
def standby(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits at tmp_path / "socket"."""
    monkeypatch.setenv("OF_THE_START", "yes")
    words = [sys.executable, "-c", WAITS, str(tmp_path / "socket")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        while not (tmp_path / "socket").exists():
            assert process.poll() is None
            time.sleep(0.01)
        monkeypatch.delenv("OF_THE_START")
        yield process
        process.kill()


def test_a_waiting_process_has_the_commands_words_folder_environment_streams_and_exit_code(
    standby: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEEN", "here")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("TZ", "HERE-3")
    words = [sys.executable, "-c", TERMINAL, str(tmp_path / "socket")]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (3, "a fault\n")
    words = [str(standby.pid), "two", "words", str(tmp_path), "0o27", "here", "None", str(tmp_path), "HERE"]
    assert done.stdout.split() == words
    said, _ = standby.communicate(timeout=120)
    assert (standby.returncode, said) == (3, b"")


def test_a_waiting_process_ends_with_its_service(standby: subprocess.Popen[bytes]) -> None:
    said, _ = standby.communicate(timeout=120)  # closes its standard input
    assert (standby.returncode, said) == (0, b"")


def test_a_connection_that_hands_nothing_over_is_no_command(standby: subprocess.Popen[bytes], tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as terminal:
        terminal.connect(str(tmp_path / "socket"))
    assert standby.wait(120) == 1
