"""Write the report of a run into its folder, and its main plots as pictures."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from raygpu import __version__
from raygpu.cli.report.balance_page import balance_page
from raygpu.cli.report.comparison_page import comparison_page
from raygpu.cli.report.content import Page
from raygpu.cli.report.pack_page import pack_page
from raygpu.cli.report.page import html
from raygpu.cli.report.pictures import write_pictures
from raygpu.cli.report.place_page import place_page
from raygpu.cli.report.sweep_page import sweep_page
from raygpu.cli.report.training_page import training_page
from raygpu.cli.report.under_way_page import earlier_ends, under_way_page
from raygpu.cli.under_use_view import under_use_lines, waiting_lines
from raygpu.config.command_names import typed
from raygpu.errors import BadInput, one_line
from raygpu.records.run_data import RunData
from raygpu.records.run_directory import RunDirectory
from raygpu.records.whole_files import write_whole

PAGES = {
    "sweep": sweep_page,
    "train": training_page,
    "pack": pack_page,
    "place": place_page,
    "balance": balance_page,
}
"""Function that returns the page of a run, by the command that began it."""


def write_report(run: RunData, warn: Callable[[str], None], out: Path | None = None) -> Path:
    """Write `report.html` and, of a run that has ended, the pictures of its main figures; return the report's file.

    warn: is told of pictures that could not be drawn. out: another file, without pictures. Raises BadInput for a
    summary that lacks what the page needs, OSError if the disk does not take it.
    """
    try:
        page = PAGES[run.kind](run) if run.ended else under_way_page(run)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise BadInput(
            f"{run.folder}: its files have not what the report needs ({error}); another raygpu wrote them"
        ) from error
    path = _write(out or run.folder.report, replace(page, sections=[*earlier_ends([run]), *page.sections]))
    if out is None and run.ended:
        write_pictures(page, run, warn)
    return path


def write_report_of(folder: RunDirectory, warn: Callable[[str], None]) -> list[str]:
    """Write the report of a run that has just ended; return lines on where it is, and on GPUs used too little.

    A report that cannot be written is told, and never ends the run.
    """
    lines: list[str] = []
    try:
        run = RunData.load(folder)
        lines += under_use_lines(run.under_used(), run.kind, run.config)
        lines += waiting_lines(run.summary.get("workers_s") or {})
        lines.append(f"the report, for a browser: {write_report(run, warn)}")
    except Exception as error:  # noqa: BLE001 - no result depends on it
        warn(f"no report: {one_line(error)}; again by: {typed('report')} {shlex.quote(str(folder))}")
    return lines


def report_of(folder: RunDirectory, say: Callable[[str], None], warn: Callable[[str], None]) -> list[Path]:
    """Write the report of a measurement that has just ended, and say where it is; return its file and those of its
    pictures, as far as they could be written."""
    for line in write_report_of(folder, warn):
        say(line)
    return sorted(path for path in folder.path.iterdir() if path == folder.report or path.suffix == ".png")


def write_comparison(runs: Sequence[RunData], out: Path) -> Path:
    """Write the page that has several runs side by side; return its file."""
    return _write(out, comparison_page(runs))


def _write(path: Path, page: Page) -> Path:
    path = path.absolute()
    write_whole(path, html(page, __version__))
    return path
