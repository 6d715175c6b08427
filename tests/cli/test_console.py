"""What a command prints with -q, without a flag and with -v; and to what: a terminal, a file, a dumb terminal."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from raygpu.cli.bars import ASCII_LEVELS, LEVELS, bar, curve
from raygpu.cli.command import Command, Outcome
from raygpu.cli.console import Detail, LiveConsole, shown_detail
from raygpu.cli.flags import Arguments
from raygpu.cli.sweep_view import SweepConsole
from raygpu.config import PackConfig
from raygpu.records.snapshot import Snapshot

STATE = Snapshot(
    elapsed_s=65, num_trials=8000, running=2000, finished=300, stopped=100, failed=100, diverged=100, best=None,
    samples_per_s={}, time_left_s=None,
)  # fmt: skip


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def printed(detail: Detail, stream: io.StringIO | None = None) -> str:
    """What one line of each kind, and a table, leave."""
    stream = stream if stream is not None else io.StringIO()
    token = shown_detail.set(detail)
    try:
        console = SweepConsole(stream=stream)
    finally:
        shown_detail.reset(token)
    console.line("progress")
    console.detail("detail")
    console.warn("warning")
    console.start([], lambda: STATE)
    console.stop(STATE)
    console.result("result")
    return stream.getvalue()


def test_quiet_prints_warnings_and_results_alone() -> None:
    assert printed("quiet") == "warning\nresult\n"
    assert printed("quiet", Terminal()) == "warning\nresult\n"


def test_without_a_flag_there_are_no_details() -> None:
    lines = printed("normal").splitlines()
    assert [line for line in lines if "trials" not in line] == ["progress", "warning", "result"]


def test_verbose_prints_details_with_the_time_and_results_without() -> None:
    lines = printed("verbose").splitlines()
    assert [re.sub(r"^\[ *\d+\.\d s\] ", "T ", line).partition(" | ")[0] for line in lines] == [
        "T progress", "T detail", "T warning", "T 600/8000 trials", "result",
    ]  # fmt: skip


@pytest.mark.parametrize("variable", ["FORCE_COLOR", "TTY_COMPATIBLE"])
def test_a_file_gets_no_escape_codes(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "1")
    assert not re.search(r"[\x1b\r]", printed("normal"))


def test_a_dumb_terminal_gets_lines_at_its_width_that_keep_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    shown = printed("normal", Terminal())
    assert not re.search(r"[\x1b\r]", shown)
    (line,) = (line for line in shown.splitlines() if "trials" in line)
    assert len(line) == 80, "as wide as rich takes one to be"
    assert "\N{HORIZONTAL ELLIPSIS} | " in line
    assert line.endswith("| 1 min 5 s, time left not known yet")


def test_a_terminal_gets_a_table_that_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    assert "\x1b[" in printed("normal", Terminal())


def test_no_color_leaves_bars_that_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    console = Console(file=(stream := Terminal()), force_terminal=True)
    console.print(bar(0.5, 8))
    assert stream.getvalue() == "━━━━────\n"
    assert bar(0.5, 8, blocks=False).plain == "####----"
    assert bar(1.7, 4).plain == "━━━━", "more than the whole, for a moment"


def test_curves() -> None:
    assert curve([0, 1, 2, 3, 4, 5, 6, 7]) == LEVELS
    assert curve([7, 0], blocks=False) == ASCII_LEVELS[-1] + ASCII_LEVELS[0]
    assert curve([]) == ""
    assert curve([2.0, 2.0]) == "▅▅"
    assert len(curve(list(range(1000)))) == 12
    assert curve(list(range(1000)))[0] == "▁"


def command(run: Callable[[Arguments], Outcome]) -> Command:
    return Command("pack", "", PackConfig, Path("none.toml"), {"json": ""}, run)


@pytest.mark.parametrize(
    ("words", "detail"), [([], "normal"), (["-q"], "quiet"), (["--quiet"], "quiet"), (["-v"], "verbose")]
)
def test_a_command_s_flags_reach_its_console(words: list[str], detail: Detail) -> None:
    seen: list[tuple[str, bool]] = []

    def run(arguments: Arguments) -> Outcome:
        seen.append((shown_detail.get(), LiveConsole(stream=io.StringIO()).is_verbose))
        return Outcome(0)

    assert command(run).main(words) == 0
    assert seen == [(detail, detail == "verbose")]
    assert shown_detail.get() == "normal", "a call from Python afterwards is as ever"


def test_both_are_refused_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert command(lambda arguments: Outcome(0)).main(["-q", "-v"]) == 2
    assert capsys.readouterr().err == "raygpu: -q, -v: one prints less, the other more; give one of them\n"
