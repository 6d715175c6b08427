"""Hand a command line over to the service's waiting process, which has imported everything already.

The terminal's own process stays: it passes signals on, and ends with the command's exit code.
"""

from __future__ import annotations

import array
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from raygpu.engines.cluster.service.connection import Connection
from raygpu.engines.cluster.service.fingerprint import Fingerprint, may_take_over
from raygpu.engines.cluster.service.folder import ServiceFolder
from raygpu.records.clock import command_age_s
from raygpu.records.output import open_closed_streams
from raygpu.storage import is_job

SWITCH = "RAYGPU_SERVICE"
"""Variable that keeps a command off the service, if it is "off"."""
PASSED_ON = ("SIGINT", "SIGTERM", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGWINCH", "SIGCONT")
ANSWER_S = 2.0
LOST = 137
"""Exit code where the command's process was killed."""


def served(words: Sequence[str], run: Callable[[], int]) -> int:
    """Run a command line in the service's waiting process, or by `run` in this one; return its exit code.

    words: the command's name and its arguments. A call for help, a submitted job, and a terminal that has turned the
    service off, stay here.
    """
    open_closed_streams()
    if not {"-h", "--help"} & set(words) and os.environ.get(SWITCH) != "off" and not is_job():
        code = handed_over(words)
        if code is not None:
            return code
    return run()


def handed_over(words: Sequence[str]) -> int | None:
    """Run a command line in the service's waiting process, and return its exit code; None if there is none that fits.

    words: the command's name and its arguments.
    """
    try:
        folder = ServiceFolder.existing()
        address = folder.address() if folder is not None else None
        if (
            folder is None
            or address is None
            or not may_take_over(address.get("fingerprint", {}), Fingerprint.here([], apart=True))
        ):
            return None
        service = Connection.to(folder.socket)
    except OSError:
        return None
    try:
        service.send({"ask": "standby"})
        answer = service.receive(ANSWER_S)
        if answer is None or not answer.get("pid"):
            return None
        connection = Connection.to(folder.path / str(answer["socket"]))
        _give(connection, words)
    except (OSError, ValueError):
        return None
    finally:
        service.close()
    return _exit_code(connection)


def _give(connection: Connection, words: Sequence[str]) -> None:
    """Send the waiting process this command: its words, streams, environment and folder."""
    umask = os.umask(0o077)
    os.umask(umask)
    streams = array.array("i", [0, 1, 2])
    connection.socket.sendmsg([b"\0"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)])
    connection.send(
        {
            "words": list(words),
            "argv": sys.argv,
            "path": sys.path,
            "environment": dict(os.environ),
            "folder": str(Path.cwd()),
            "umask": umask,
            "encoding": sys.stdout.encoding,
            "errors": sys.stdout.errors,
            "age_s": command_age_s(),
            "ignores_interrupts": signal.getsignal(signal.SIGINT) is signal.SIG_IGN,
        }
    )


def _exit_code(connection: Connection) -> int:
    """Pass signals on until the command has ended, and return its exit code."""
    with _passed_on(connection.pid) as passed:
        try:
            while (message := connection.receive()) is not None:
                if "exit" in message:
                    return int(message["exit"])
        except (OSError, ValueError):
            pass
    if passed:
        return 128 + passed[-1]
    print(
        "raygpu: the command's process was lost: it was killed, as by raygpu down --now, or ended by itself; what it"
        " has kept goes on by --resume runs/NAME",
        file=sys.stderr,
    )
    return LOST


@contextmanager
def _passed_on(pid: int) -> Iterator[list[int]]:
    """Pass the signals of a terminal on to a process meanwhile, which also stops and goes on with this one. Both go on
    where the terminal is closed, which sends SIGHUP: the process may not ignore it yet.

    Yields the list of the signals that may have ended it.
    """
    passed: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        """Pass a signal on."""
        if number not in (signal.SIGWINCH, signal.SIGCONT):
            passed.append(number)
        with suppress(ProcessLookupError):
            os.kill(pid, number)

    def stop(number: int, frame: FrameType | None) -> None:
        """Stop both processes, as Ctrl-Z does."""
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)

    handlers: dict[int, Any] = {getattr(signal, name): handle for name in PASSED_ON} | {signal.SIGTSTP: stop}
    if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:
        handlers[signal.SIGHUP] = signal.SIG_IGN
    ignored = [number for number in handlers if signal.getsignal(number) is signal.SIG_IGN]
    before = {number: signal.signal(number, handlers[number]) for number in handlers if number not in ignored}
    try:
        yield passed
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
