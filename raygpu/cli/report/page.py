"""Render a report as one file of HTML that needs nothing else: Plotly's program and the figures' numbers are in it."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from raygpu.cli.report.content import Page


def html(page: Page, version: str) -> str:
    """Return the page as HTML. version: of raygpu."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    template = environment.from_string(files("raygpu.cli.report").joinpath("page.html").read_text(encoding="utf-8"))
    figures = {figure.name: _spec(figure.plot) for section in page.sections for figure in section.figures}
    return template.render(
        page=page,
        plotly=Markup(get_plotlyjs()) if figures else "",
        figures=Markup(_embedded(figures)) if figures else "",
        footer=f"Written by raygpu {version}. The file needs no network; figures are drawn by Plotly.",
    )


def _spec(plot: Any) -> dict[str, Any]:
    """Return a figure's data and layout, without Plotly's own theme."""
    spec: dict[str, Any] = json.loads(plot.to_json())
    spec["layout"].pop("template", None)
    return spec


def _embedded(value: Any) -> str:
    """Return JSON that may stand in a script element: no text in it can end the element."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")
