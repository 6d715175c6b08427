"""Parts that the figures of measurements share: intervals, the axis of rates, and the axis of trainings at once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

FEWEST_APART = 1.25
"""Smallest ratio of two neighbours on a logarithmic axis that both have a label."""
FAR_APART = 10.0
"""Ratio of the highest to the lowest rate beyond which a linear axis hides the lower curves."""


def errors(intervals: Sequence[tuple[float, float, float]]) -> dict[str, Any]:
    """Return Plotly's error bars. intervals: middle, lower and upper end of each point; an end that is not known is 0
    or infinite, and has no bar."""
    up = [high - middle if math.isfinite(high) else 0.0 for middle, _, high in intervals]
    down = [middle - low if low > 0 else 0.0 for middle, low, _ in intervals]
    return {"type": "data", "symmetric": False, "array": up, "arrayminus": down, "thickness": 1.5, "width": 4}


def at_once_axis(plot: Any, numbers: Iterable[int]) -> None:
    """Give a figure the logarithmic axis of trainings at once, labelled with measured numbers."""
    shown: list[int] = []
    for number in sorted(numbers):
        if not shown or number >= FEWEST_APART * shown[-1]:
            shown.append(number)
    plot.update_xaxes(
        type="log", title="trainings at once on one device", tickvals=shown, ticktext=[str(n) for n in shown]
    )


def rate_axis(plot: Any) -> None:
    """Give a figure of rates an axis from zero, or a logarithmic one where they are far apart."""
    rates = [rate for trace in plot.data for rate in trace.y if rate]
    far = bool(rates) and max(rates) > FAR_APART * min(rates)
    plot.update_yaxes(**({"type": "log"} if far else {"rangemode": "tozero"}))
