"""Content of a report: sections with tables and figures, each figure with its numbers as a table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import tomli_w

from raygpu.cli import formatting
from raygpu.records.score_on_test import TEST, ScoreOnTest

if TYPE_CHECKING:  # Plotly takes half a second to import
    from plotly.graph_objects import Figure as PlotlyFigure

COLOURS = {
    "finished": "#0072B2",
    "stopped": "#E69F00",
    "diverged": "#D55E00",
    "failed": "#CC79A7",
    "interrupted": "#8A8A8A",
    "lost": "#56B4E9",
    "under way": "#009E73",
}
"""Colour of each outcome of a trial, told apart by colour-blind readers, too (Okabe and Ito, 2008)."""
SERIES = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#8A8A8A")
"""Colours of curves that stand side by side, from the same source."""


STYLE: Mapping[str, Any] = {
    "margin": {"l": 64, "r": 24, "t": 40, "b": 48},
    "paper_bgcolor": "rgba(0,0,0,0)",
    "plot_bgcolor": "rgba(0,0,0,0)",
    "hovermode": "closest",
    "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": "#8A8A8A", "activecolor": "#0072B2"},
    "legend": {"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom"},
}
"""Layout of each figure."""
LONG = 40
"""Number of characters from which a cell's text may wrap."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table. A number is written to the right, None as a dash."""

    header: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    caption: str = ""

    def __post_init__(self) -> None:
        assert all(len(row) == len(self.header) for row in self.rows), f"{self.caption}: a cell for each name"

    def cells(self) -> list[list[tuple[str, str]]]:
        """Return each row's cells: the text, and how it is set: number, text, or long for what may wrap."""
        return [[_cell(value) for value in row] for row in self.rows]


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure, what it says in a sentence, and its numbers as a table."""

    name: str
    """Identifier in the page: letters and hyphens."""
    title: str
    plot: PlotlyFigure
    says: str
    """Sentence below the title: what is to be seen."""
    table: Table | None = None
    height_px: int = 420
    min_width_px: int = 0
    """Width below which the figure scrolls."""


def test_facts(summary: Mapping[str, Any], metric: str) -> list[tuple[str, str]]:
    """Return the best model's score on the test data for the head of a report; empty without one."""
    score = ScoreOnTest.read(summary.get(TEST))
    return [score.fact(metric)] if score is not None else []


@dataclass(frozen=True, slots=True)
class Section:
    """A section of the page."""

    name: str
    title: str
    notes: list[str] = field(default_factory=list)
    """Paragraphs."""
    tables: list[Table] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    folded: list[Table] = field(default_factory=list)
    """Long tables, opened by a click."""
    code: str = ""
    """Lines of commands or of a configuration."""

    def __bool__(self) -> bool:
        """Return whether there is anything to show."""
        return bool(self.notes or self.tables or self.figures or self.folded or self.code)


@dataclass(frozen=True, slots=True)
class Page:
    """A report."""

    title: str
    subtitle: str
    facts: list[tuple[str, str]]
    """The figures that matter most, each with its name."""
    sections: Sequence[Section]


def configuration(config: Mapping[str, Any]) -> Section:
    """Return the section of a run's configuration."""
    return Section("configuration", "Configuration", code=tomli_w.dumps(dict(config)))


def given(*figures: Figure | None) -> list[Figure]:
    """Return the figures that there are."""
    return [each for each in figures if each is not None]


def text(value: Any) -> str:
    """Return a cell's text."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "\N{EN DASH}"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e4 or math.isinf(value) else f"{value:,.0f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return formatting.value(value) if not isinstance(value, str) else value


def _cell(value: Any) -> tuple[str, str]:
    shown = text(value)
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return shown, "number"
    return shown, "long" if len(shown) > LONG else "text"


def figure(**layout: Any) -> PlotlyFigure:
    """Return an empty figure without colours of its own, so that the page's light or dark theme shows."""
    import plotly.graph_objects as go

    plot = go.Figure(layout={"template": "none", **STYLE, **layout})  # Plotly's own template takes milliseconds to copy
    plot.layout.template = None
    return plot


def restyle(plot: PlotlyFigure, **layout: Any) -> None:
    """Give a figure the report's margins, and leave its colours to the page."""
    plot.update_layout(template=None, width=None, height=None, title=None, **STYLE, **layout)
