"""Write the report of a run into its folder, and its main plots as pictures."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from raygpu.cli.report.comparison_page import comparison_page
from raygpu.cli.report.content import Page
from raygpu.cli.report.page import html
from raygpu.cli.report.pictures import write_pictures
from raygpu.cli.report.sweep_page import sweep_page
from raygpu.cli.report.training_page import training_page
from raygpu.errors import BadInput
from raygpu.records.run_data import RunData

PAGES = {"sweep": sweep_page, "train": training_page}
"""Function that returns the page of a run, by the command that began it."""


def write_report(run: RunData, out: Path | None = None) -> Path:
    """Write `report.html` and the pictures in `plots/`; return the report's file.

    out: another file, without pictures. Raises BadInput for a kind of run without a report, OSError if the disk does
    not take it.
    """
    if run.kind not in PAGES:
        raise BadInput(f"{run.folder}: a {run.kind} has no report; allowed: {', '.join(PAGES)}")
    path = _write(out or run.folder.report, PAGES[run.kind](run))
    if out is None:
        write_pictures(run)
    return path


def write_comparison(runs: Sequence[RunData], out: Path) -> Path:
    """Write the page that has several runs side by side; return its file."""
    return _write(out, comparison_page(runs))


def _write(path: Path, page: Page) -> Path:
    """Write the page in one step: whoever looks at the file finds the old or the new one."""
    path = path.absolute()
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(html(page), encoding="utf-8")
    os.replace(temporary, path)
    return path
