"""What of other libraries' errors is shown in a line."""

from __future__ import annotations

import traceback
from collections.abc import Callable

import pytest

from raygpu.errors import error_line, kind

KERAS = "the true reason\n\nArguments received:\n  • inputs=1\n  • mask=None"
OF_KERAS = "ValueError: the true reason Arguments received: • inputs=1 • mask=None"


def several_lines() -> None:
    raise ValueError(KERAS)


def while_another_is_handled() -> None:
    try:
        raise KeyError("lr")
    except KeyError:
        several_lines()


def deep(depth: int = 50) -> None:
    if depth:
        deep(depth - 1)
    raise KeyboardInterrupt


def two_at_once() -> None:
    raise ExceptionGroup("two", [ValueError("one"), TypeError("other")])


def of_tensorflow() -> None:
    raise ValueError('in user code:\n\n    File "m.py", line 3, in step  *\n        f(x)\n\n    TypeError: a reason\n')


def raised(function: Callable[[], None]) -> str:
    """Return the traceback of a function's error."""
    try:
        function()
    except BaseException:  # noqa: BLE001 - of every kind
        return traceback.format_exc()
    raise AssertionError


@pytest.mark.parametrize(
    ("function", "line"),
    [
        (several_lines, OF_KERAS),
        (while_another_is_handled, OF_KERAS),
        (deep, "KeyboardInterrupt"),
        (two_at_once, "ExceptionGroup: two (2 sub-exceptions) ValueError: one TypeError: other"),
        (of_tensorflow, "TypeError: a reason"),
    ],
)
def test_an_error_is_shown_with_its_text(function: Callable[[], None], line: str) -> None:
    assert error_line(raised(function)) == line
    assert kind(line) == line.split()[0].rstrip(":")


def test_an_error_of_a_ray_task_is_the_error_in_it() -> None:
    outer = 'Traceback (most recent call last):\n  File "m.py", line 1, in <module>\n'
    task = 'RayTaskError(ValueError): \x1b[36mray::f()\x1b[39m (pid=1)\n  File "f.py", line 2, in f\n'
    assert error_line(f"{outer}{task}ValueError: a reason\n") == "ValueError: a reason"


def test_a_text_without_a_traceback_is_shown_by_its_last_line() -> None:
    assert error_line("The actor died.\nIts node is gone: n1\n") == "Its node is gone: n1"
    assert error_line("") == error_line("\n") == ""
    assert len(error_line("x" * 1000)) == 300


@pytest.mark.parametrize(
    ("output", "line"),
    [
        ("Epoch 1\nerror: no such data set", "error: no such data set"),
        (raised(several_lines), OF_KERAS),
        ("\n".join(raised(several_lines).splitlines()[-7:]), OF_KERAS),
    ],
)
def test_a_script_is_shown_by_its_error_or_its_last_line(output: str, line: str) -> None:
    def ended() -> None:
        """Fail as a script's training does."""
        raise RuntimeError(f"the script ended with exit status 1: python train.py\n{output}")

    assert error_line(raised(ended)) == line
