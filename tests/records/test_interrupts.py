"""How a command hears that it is to end."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from raygpu.records.interrupts import noted_interrupts, terminable


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
