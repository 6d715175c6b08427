"""The report of a balance: each device's speed by its batch, the shares, and both trainings by turns."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from raygpu.cli.formatting import interval
from raygpu.cli.report.content import SERIES, Figure, Page, Section, Table, configuration, figure
from raygpu.planning.batch_balancing import ThroughputCurve
from raygpu.planning.confidence import Interval
from raygpu.records.run_data import RunData


def balance_page(run: RunData) -> Page:
    """Return the report of a balance."""
    summary = run.summary
    together = together_figure([run])
    sections = [
        Section("verdict", "Verdict", summary["lines"], [_split(run)]),
        Section("devices", "Each device alone", [], [_ranks(summary)], [_speed_figure(summary)]),
        Section("together", "All devices together", figures=[together]),
        configuration(run.config),
    ]
    facts = [("verdict", f"{summary['verdict']} shares"), ("shares", shares(summary))]
    facts += [("global batch", f"{summary['global_batch']:,}")]
    over = summary["balanced_over_equal"]
    facts += [("balanced over equal", f"{over[0]:.3g}x")] if over else []
    names = ", ".join(dict.fromkeys(rank["name"] for rank in summary["ranks"]))
    subtitle = f"The batch of {run.config.get('experiment', '')} over {len(summary['ranks'])} devices: {names}"
    return Page(run.name, subtitle, facts, [section for section in sections if section])


def shares(summary: Mapping[str, Any]) -> str:
    """Return the verdict's shares as text."""
    return " + ".join(str(rank["share"]) for rank in summary["ranks"])


def _label(place: int, rank: Mapping[str, Any]) -> str:
    return f"rank {place}: {rank['name']}"


def _split(run: RunData) -> Table:
    summary, throughputs = run.summary, speeds(run.summary)
    rows = [
        ("global batch, as configured", summary["configured_global_batch"]),
        ("global batch of the verdict", summary["global_batch"]),
        ("samples/s predicted, without the exchange between devices", summary["predicted_samples_per_s"]),
        ("samples/s with unequal shares", throughputs["balanced"]),
        ("samples/s with equal shares", throughputs["equal"]),
    ]
    over = summary["balanced_over_equal"]
    if over:
        ends = ("lower end", "upper end")
        rows += [("balanced over equal shares", over[0])]
        rows += [(f"{end}, with 95 % confidence", value) for end, value in zip(ends, over[1:], strict=True)]
    return Table(("", "value"), rows, "the split of a batch")


def _ranks(summary: Mapping[str, Any]) -> Table:
    columns = list(dict.fromkeys(name for rank in summary["ranks"] for name in rank["readings"]))
    rows = []
    for place, rank in enumerate(summary["ranks"]):
        middle, low, high = rank["relative_speed"] or (None, None, None)
        speed = None if middle is None else interval(Interval(middle, low or 0.0, high or math.inf))
        readings = [rank["readings"].get(name) for name in columns]
        best = rank["rates"].get(str(rank["best_batch"]))
        rows.append(
            (place, f"GPU {rank['device']}", rank["name"], rank["best_batch"], best, speed, rank["tried_share"],
             rank["share"], rank["samples_per_s"], *readings)
        )  # fmt: skip
    header = ("rank", "device", "name", "best batch", "samples/s with it", "speed over the mean")
    header += ("tried share", "share", "samples/s in the training", *columns)
    return Table(header, rows, "ranks; intervals of 95 % confidence")


def _speed_figure(summary: Mapping[str, Any]) -> Figure:
    """Return each device's samples/s by its batch: medians as a curve, rounds as dots, the share as a diamond."""
    plot = figure(yaxis_title="samples/s, alone")
    rows, sizes = [], set()
    for place, rank in enumerate(summary["ranks"]):
        colour, label = SERIES[place % len(SERIES)], _label(place, rank)
        rates = {int(batch): rate for batch, rate in rank["rates"].items()}
        plot.add_scatter(
            x=list(rates), y=list(rates.values()), name=label, mode="lines+markers", line={"color": colour}
        )
        rounds = [(int(batch), rate) for batch, round_rates in rank["rounds"].items() for rate in round_rates]
        plot.add_scatter(
            x=[batch for batch, _ in rounds],
            y=[rate for _, rate in rounds],
            mode="markers",
            marker={"color": colour, "opacity": 0.4, "size": 5},
            showlegend=False,
            hovertemplate=f"{label}, a round: %{{y}}<extra></extra>",
        )
        if rates:
            share = rank["tried_share"]
            plot.add_scatter(
                x=[share],
                y=[share / ThroughputCurve(rates).step_s(share)],
                name=f"rank {place}: its share, {share}",
                mode="markers",
                marker={"color": colour, "symbol": "diamond", "size": 13, "line": {"color": "white", "width": 1}},
            )
        sizes |= set(rates)
        rows += [(place, batch, rate, len(rank["rounds"].get(str(batch), ()))) for batch, rate in rates.items()]
    ticks = sorted(sizes)
    plot.update_xaxes(
        type="log", title="samples of a step on this device", tickvals=ticks, ticktext=[str(size) for size in ticks]
    )
    plot.update_yaxes(rangemode="tozero")
    says = "Medians as curves, rounds as dots; diamonds are the shares that were tried."
    numbers = Table(("rank", "batch", "samples/s", "rounds"), rows, "medians")
    return Figure("speeds", "Speed of each device by its batch", plot, says, numbers)


def _only_equal(summary: Mapping[str, Any]) -> bool:
    """Return whether the shares that were tried are equal ones, so that there was nothing to compare them with."""
    tried = [rank["tried_share"] for rank in summary["ranks"]]
    return summary["equal_samples_per_s"] is None and max(tried) - min(tried) <= 1


def speeds(summary: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the samples/s of the prediction and of both trainings; None of one that was not made."""
    throughputs = {kind: summary[f"{kind}_samples_per_s"] for kind in ("predicted", "balanced", "equal")}
    return throughputs | {"equal": throughputs["balanced"], "balanced": None} if _only_equal(summary) else throughputs


def _turns(summary: Mapping[str, Any]) -> dict[str, list[float]]:
    turns: dict[str, list[float]] = summary["turns"]
    return {"equal": turns["balanced"]} if _only_equal(summary) else turns


def together_figure(runs: Sequence[RunData]) -> Figure:
    """Return the throughput of the trainings with balanced and with equal shares, with each turn, beside the
    prediction."""
    plot = figure(yaxis_title="samples/s, all devices together", barmode="group")
    rows: list[tuple[Any, ...]] = []
    kinds = ("predicted", "balanced", "equal")
    for place, run in enumerate(runs):
        throughputs, turns = speeds(run.summary), _turns(run.summary)
        rates = [throughputs[kind] for kind in kinds]
        plot.add_bar(
            x=list(kinds), y=rates, name=run.name, marker_color=SERIES[place % len(SERIES)], offsetgroup=str(place)
        )
        for kind in kinds:
            for number, rate in enumerate(turns.get(kind) or [], 1):
                rows.append((run.name, kind, number, rate))
        dots = [(kind, rate) for name, kind, _, rate in rows if name == run.name]
        plot.add_scatter(
            x=[kind for kind, _ in dots],
            y=[rate for _, rate in dots],
            mode="markers",
            name=f"turns of {run.name}" if len(runs) > 1 else "turns",
            offsetgroup=str(place),
            marker={"color": "white", "size": 7, "line": {"color": "#555", "width": 1.5}},
            showlegend=bool(dots),
        )
        rows += [(run.name, kind, None, rate) for kind, rate in zip(kinds, rates, strict=True)]
    plot.update_layout(scattermode="group")
    plot.update_yaxes(rangemode="tozero")
    says = "Medians of the turns; the prediction leaves out the exchange between devices."
    numbers = Table(("run", "shares", "turn", "samples/s"), rows, "each turn, and the medians")
    return Figure("split-speed", "Throughput with balanced and equal shares", plot, says, numbers)
