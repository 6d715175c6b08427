"""Where the time of a test run went, said at its end: hooks of pytest for `conftest`."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

MOST = 20
"""Number of files that are named."""
SHOWN_S = 10.0
"""Seconds from which a file is named."""
STARTED = pytest.StashKey[Counter[str]]()
"""What all processes of the tests have started."""
KEY = "started by tests"

_started: Counter[str] = Counter()


def _noted(event: str, arguments: tuple[Any, ...]) -> None:
    """Count a program that this process starts."""
    if event == "subprocess.Popen":
        command = arguments[1] if isinstance(arguments[1], list | tuple) else [arguments[1]]
        _started[kind(str(command[0]))] += 1


def kind(program: str) -> str:
    """Return how a program is counted: a Ray by its head."""
    name = Path(program).name
    return "Rays" if name == "gcs_server" else "Python processes" if name.startswith("python") else "other programs"


def slowest(seconds: Counter[str]) -> list[str]:
    """Return a line for each of the slowest files, with what the others take together."""
    shown = [(file, spent) for file, spent in seconds.most_common(MOST) if spent >= SHOWN_S]
    rest = seconds.total() - sum(spent for _, spent in shown)
    return [
        *(f"{spent:6.0f} s  {file}" for file, spent in shown),
        f"{rest:6.0f} s  other files ({len(seconds) - len(shown)})",
    ]


def pytest_configure(config: pytest.Config) -> None:
    """Count from now on."""
    config.stash[STARTED] = Counter()
    sys.addaudithook(_noted)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Report to the process that shows the results what this one has started."""
    sent = getattr(session.config, "workeroutput", None)
    if sent is None:
        session.config.stash[STARTED] += _started
    else:
        sent[KEY] = dict(_started)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Add what one of several processes has started."""
    node.config.stash[STARTED] += Counter(getattr(node, "workeroutput", {}).get(KEY, {}))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say where the time went: the seconds of each file that took long, summed over its tests and fixtures."""
    seconds: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if hasattr(report, "duration"):
                seconds[report.nodeid.partition("::")[0]] += report.duration
    terminalreporter.section("seconds by file")
    for line in slowest(seconds):
        terminalreporter.write_line(line)
    started = terminalreporter.config.stash[STARTED]
    told = ", ".join(f"{number} {name}" for name, number in started.most_common())
    terminalreporter.write_line(f"started by the tests themselves: {told or 'nothing'}")
