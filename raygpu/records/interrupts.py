"""A command's orderly end when it is told to stop, and the destination of its output."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from types import FrameType
from typing import Any, TextIO

AGAIN_S = 0.1
"""Seconds after which a Ctrl-C that came during an import is looked at again."""
MOST_LOOKS = 50


@contextmanager
def terminable() -> Iterator[None]:
    """End a command on SIGTERM, as Kubernetes and batch systems send it, as cleanly as on Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _as_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def outlives_terminal() -> Iterator[None]:
    """Let a command, and what it starts, go on where its terminal is closed or the connection to it is lost, which
    sends SIGHUP; a handler of the caller's stays."""
    with handlers_kept(signal.SIGHUP):
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        yield


def _as_interrupt(number: int, frame: FrameType | None) -> None:
    signal.alarm(0)  # Ray's own handler, if it came first, aborts the process three seconds later
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as a shell starts what runs in its background
        os.kill(os.getpid(), signal.SIGINT)
    elif not _looked_at_later(number, frame):
        raise KeyboardInterrupt


_looks: list[int] = []
"""Signals that came while Python's import system ran."""


def _looked_at_later(number: int, frame: FrameType | None) -> bool:
    """Send a signal again a little later if Python's import system is what runs; return whether it is.

    An exception that a signal raises there may be lost, and keep a lock for ever that another thread waits for, which
    imports at the same time.
    """
    name = str(frame.f_globals.get("__name__")) if frame is not None else ""
    if not name.startswith("importlib._bootstrap") or len(_looks) >= MOST_LOOKS:
        _looks.clear()
        return False
    _looks.append(number)
    timer = threading.Timer(AGAIN_S, os.kill, (os.getpid(), number))
    timer.daemon = True
    timer.start()
    return True


def retake_signals() -> None:
    """Take SIGTERM back after Ray has started: Ray's handler prints three lines of addresses and ends the process."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is _as_interrupt:
        signal.signal(signal.SIGTERM, _as_interrupt)


class Interrupts:
    """Counter of Ctrl-C: the first raises nothing, since an exception could be lost in, or cut in two, whatever
    runs."""

    def __init__(self) -> None:
        self._handled = 0
        self._has_arrived = False
        self.arrivals: socket.socket | None = None
        """Socket with the numbers of the signals that have come, as bytes; None if none is set."""
        self.numbers: Collection[int] = ()
        """Signals that count."""

    @property
    def count(self) -> int:
        """Number of signals that have been handled, and at least 1 once `has_arrived` has found one."""
        return max(self._handled, int(self._has_arrived))

    def note(self, *_: Any) -> None:
        """Handle a signal: count it; raise KeyboardInterrupt from the second on."""
        signal.alarm(0)  # see _as_interrupt
        self._handled += 1
        if self._handled > 1:
            raise KeyboardInterrupt

    def has_arrived(self) -> bool:
        """Return whether a signal has come. Call it in one thread other than the main one.

        The main thread handles signals between two instructions of Python alone: in a call of C++ that waits for ever,
        it handles none.
        """
        if (arrivals := self.arrivals) is not None:
            with suppress(OSError):  # nothing has come; the socket has just been closed
                self._has_arrived |= any(number in self.numbers for number in arrivals.recv(4096))
        return self.count > 0


@contextmanager
def noted_interrupts() -> Iterator[Interrupts]:
    """Count the first Ctrl-C inside, or SIGTERM if that ends like one; later ones raise KeyboardInterrupt."""
    noted = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield noted
        return
    with handlers_kept(signal.SIGINT, signal.SIGTERM):
        numbers = []
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as a shell starts what runs in its background
            numbers.append(signal.SIGINT)
        if signal.getsignal(signal.SIGTERM) is _as_interrupt:
            numbers.append(signal.SIGTERM)
        for number in numbers:
            signal.signal(number, noted.note)
        noted.numbers = numbers
        with _arrivals() as noted.arrivals:
            try:
                yield noted
            finally:
                noted.arrivals = None


@contextmanager
def _arrivals() -> Iterator[socket.socket | None]:
    """Yield a socket from which the number of each signal can be read, as a byte, once it has come; None if an event
    loop of this thread, as a notebook's, reads them."""
    reading, writing = socket.socketpair()
    with reading, writing:
        reading.setblocking(False)
        writing.setblocking(False)
        before = signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
        if before != -1:
            signal.set_wakeup_fd(before)
        else:
            _forget_in_children()
        try:
            yield reading if before == -1 else None
        finally:
            if before == -1:
                signal.set_wakeup_fd(-1)


@cache
def _forget_in_children() -> None:
    """Let processes that this one forks write no signals of theirs to its sockets."""
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))


@contextmanager
def raised_outside_imports() -> Iterator[None]:
    """Raise a Ctrl-C inside at a moment when Python's import system is not what runs: see `_looked_at_later`."""
    at_once = threading.current_thread() is not threading.main_thread()
    if at_once or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        """Raise KeyboardInterrupt, or look again a little later."""
        if not _looked_at_later(number, frame):
            raise KeyboardInterrupt

    with handlers_kept(signal.SIGINT):
        signal.signal(signal.SIGINT, handle)
        yield


@contextmanager
def output_to_stderr(wanted: bool) -> Iterator[TextIO]:
    """Send everything that is printed inside to standard error; yield the real standard output."""
    if not wanted:
        yield sys.stdout
        return
    shown = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        yield shown


@contextmanager
def handlers_kept(*numbers: signal.Signals) -> Iterator[None]:
    """Restore the present handlers of these signals at the end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:  # one that is not Python's
                signal.signal(number, handler)
