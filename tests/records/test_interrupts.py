"""How a command hears that it is to end."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from typing import Any

import pytest

from raygpu.records.interrupts import noted_interrupts, outlives_terminal, raised_outside_imports, terminable


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_is_noted_and_the_second_raises(number: signal.Signals) -> None:
    with terminable():
        before = signal.getsignal(number)
        with noted_interrupts() as interrupts:
            assert interrupts.count == 0
            os.kill(os.getpid(), number)
            assert interrupts.count == 1
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), number)
        assert signal.getsignal(number) is before
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)


def test_what_a_shell_ignores_stays_ignored() -> None:
    """A command in a shell's background does not hear Ctrl-C; it hears SIGTERM."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with terminable(), noted_interrupts() as interrupts:
            os.kill(os.getpid(), signal.SIGINT)
            assert interrupts.count == 0
            os.kill(os.getpid(), signal.SIGTERM)
            assert interrupts.count == 1
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_lost_terminal_ends_no_command_but_a_handler_of_the_caller_stays() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup starts these tests with it ignored
    try:
        with outlives_terminal():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL
        signal.signal(signal.SIGHUP, lambda number, _: heard.append(number))
        with outlives_terminal():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert heard == [signal.SIGHUP]


def test_one_that_comes_while_the_main_thread_waits_in_c_is_known_to_another_thread() -> None:
    """As in a call of Ray's, in which Python handles no signal."""
    libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    libc.pthread_mutex_lock(mutex)
    found: list[tuple[bool, int]] = []

    with terminable(), noted_interrupts() as interrupts:

        def look() -> None:
            """Send a signal, look whether it is known, and let the main thread go on."""
            try:
                found.append((interrupts.has_arrived(), interrupts.count))
                os.kill(os.getpid(), signal.SIGTERM)
                until = time.monotonic() + 30
                while not interrupts.has_arrived() and time.monotonic() < until:
                    time.sleep(0.01)
                found.append((interrupts.has_arrived(), interrupts.count))
            finally:
                libc.pthread_mutex_unlock(mutex)

        thread = threading.Thread(target=look)
        thread.start()
        libc.pthread_mutex_lock(mutex)
        thread.join()
        assert interrupts.count == 1, "the same signal is not counted twice"
    assert found == [(False, 0), (True, 1)]


def test_a_signal_of_a_forked_child_is_not_this_process_s() -> None:
    with terminable(), noted_interrupts() as interrupts:
        reading, writing = os.pipe()
        if (child := os.fork()) == 0:
            os.write(writing, b"x")
            time.sleep(60)  # the signal raises nothing the first time
            os._exit(0)
        os.read(reading, 1)
        os.kill(child, signal.SIGTERM)
        time.sleep(0.2)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert not interrupts.has_arrived()
        os.kill(os.getpid(), signal.SIGTERM)
        assert interrupts.has_arrived()
    assert interrupts.has_arrived(), "known after the end, too"


def test_in_another_thread_nothing_changes() -> None:
    found = []

    def look() -> None:
        before = signal.getsignal(signal.SIGINT)
        with noted_interrupts() as interrupts:
            found.append((interrupts.count, signal.getsignal(signal.SIGINT) is before))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [(0, True)]


def test_ctrl_c_is_raised_once_python_s_import_system_has_done() -> None:
    """In which it might be lost, and keep a lock."""
    names: dict[str, Any] = {"__name__": "importlib._bootstrap", "os": os, "signal": signal, "done": []}
    exec("def acquire():\n    os.kill(os.getpid(), signal.SIGINT)\n    done.append(True)", names)
    before = signal.getsignal(signal.SIGINT)

    def imports() -> None:
        with raised_outside_imports():
            names["acquire"]()
            time.sleep(30)

    def computes() -> None:
        with raised_outside_imports():
            os.kill(os.getpid(), signal.SIGINT)
            raise AssertionError("elsewhere it is raised at once")

    with pytest.raises(KeyboardInterrupt):
        imports()
    assert names["done"] == [True]
    with pytest.raises(KeyboardInterrupt):
        computes()
    assert signal.getsignal(signal.SIGINT) is before


def test_sigterm_of_a_background_command_is_not_raised_in_python_s_import_system_either() -> None:
    """Where a shell has it ignore Ctrl-C, SIGTERM raises by itself."""
    names: dict[str, Any] = {"__name__": "importlib._bootstrap", "os": os, "signal": signal, "done": []}
    exec("def acquire():\n    os.kill(os.getpid(), signal.SIGTERM)\n    done.append(True)", names)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)

    def imports() -> None:
        names["acquire"]()
        time.sleep(30)

    try:
        with terminable(), pytest.raises(KeyboardInterrupt):
            imports()
        with terminable(), pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGINT, before)
    assert names["done"] == [True]
