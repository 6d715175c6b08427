"""A command goes on to its end, whatever becomes of its output."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from raygpu.records import output

PROGRAM = """
import sys
import time
from pathlib import Path
from raygpu.cli.command import Command, Outcome
from raygpu.cli.console import LiveConsole
from raygpu.config import PackConfig

def run(arguments):
    console = LiveConsole()
    print("begun", flush=True)
    while Path("waits").exists():
        time.sleep(0.05)
    for number in range(3000):
        console.line("a line of the progress " * 3)
        print("a line of Ray's", number)
        print("a line of a log", number, file=sys.stderr)
    Path("done").touch()
    return Outcome(3)

raise SystemExit(Command("pack", "", PackConfig, Path("none.toml"), {"json": ""}, run).main([]))
"""


def started(folder: Path, **streams: Any) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    return subprocess.Popen([sys.executable, "-c", PROGRAM], cwd=folder, env=environment, **streams)


def test_it_goes_on_once_the_reader_has_left(tmp_path: Path) -> None:
    process = started(tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    process.stderr.close()
    assert process.wait(60) == 3
    assert (tmp_path / "done").is_file()


def test_it_goes_on_once_the_terminal_is_gone(tmp_path: Path) -> None:
    leader, follower = pty.openpty()
    process = started(tmp_path, stdout=follower, stderr=follower)
    os.close(follower)
    os.read(leader, 100)
    os.close(leader)
    assert process.wait(60) == 3
    assert (tmp_path / "done").is_file()


@pytest.mark.parametrize("how", ["closed", "told"])
def test_it_goes_on_once_its_controlling_terminal_is_gone(how: str, tmp_path: Path) -> None:
    """The system sends SIGHUP to who leads the terminal's session, and a shell passes it on."""
    (tmp_path / "waits").touch()
    leader, follower = pty.openpty()

    def take_terminal() -> None:
        """Lead a session of the terminal's."""
        os.setsid()
        fcntl.ioctl(follower, termios.TIOCSCTTY, 0)

    process = started(tmp_path, stdin=follower, stdout=follower, stderr=follower, preexec_fn=take_terminal)
    os.close(follower)
    while b"begun" not in os.read(leader, 100):
        pass
    if how == "told":
        process.send_signal(signal.SIGHUP)
    else:
        os.close(leader)
    (tmp_path / "waits").unlink()
    if how == "told":
        with suppress(OSError):  # the command has ended
            while os.read(leader, 1 << 16):
                pass
        os.close(leader)
    assert process.wait(60) == 3
    assert (tmp_path / "done").is_file()


def test_it_goes_on_with_a_full_disk_behind_its_output(tmp_path: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        process = started(tmp_path, stdout=full, stderr=full)
    assert process.wait(60) == 3
    assert (tmp_path / "done").is_file()


@pytest.mark.parametrize("closed", ["1>&-", "2>&-", "1>&- 2>&-", "0>&- 1>&- 2>&-"])
@pytest.mark.parametrize("module", ["raygpu", "raygpu.pack"])
def test_closed_streams_are_dev_null(closed: str, module: str, tmp_path: Path) -> None:
    words = [sys.executable, "-m", module, *(["pack"] if module == "raygpu" else []), "none.toml"]
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    command = f"exec {closed}; exec {' '.join(words)}"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, check=False)
    assert done.returncode == 2, done.stderr
    assert b"Traceback" not in done.stderr
    if "2>&-" not in closed:
        assert b"none.toml" in done.stderr


def test_a_stream_that_the_caller_has_closed_stays_closed() -> None:
    program = (
        "import sys; from raygpu.records.output import enduring_output\n"
        "sys.stdout.close()\n"
        "with enduring_output():\n"
        "    print('said', file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "said\n")


def test_a_slow_reader_of_a_pipe_that_does_not_block_gets_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe is non-blocking once any of the processes that share it has made it so."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    taken = b""
    wait = output._wait

    def read_and_wait(descriptor: int) -> None:
        """Read only once the pipe is full."""
        nonlocal taken
        taken += os.read(reader, 1 << 16)
        wait(descriptor)

    monkeypatch.setattr(output, "_wait", read_and_wait)
    printed = bytes(range(256)) * 2000
    with output._EnduringFile(writer, "w") as stream:
        assert stream.write(printed) == len(printed)
    while part := os.read(reader, 1 << 16):
        taken += part
    os.close(reader)
    assert taken == printed


@pytest.mark.parametrize(("flags", "printed"), [(["-u"], "at once"), ([], "")])
def test_unbuffered_streams_stay_so(flags: list[str], printed: str) -> None:
    program = (
        "import os, sys; from raygpu.records.output import enduring_output\n"
        "with enduring_output():\n"
        "    print('at once', end=''); os._exit(0)"
    )
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, *flags, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=variables)
    assert done.stdout == printed
