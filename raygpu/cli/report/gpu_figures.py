"""Figures of a run's GPUs: what ran on each and when, throughput and readings over time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from raygpu.cli.report.content import COLOURS, SERIES, Figure, Table, figure, text
from raygpu.cli.report.time_scale import time_scale
from raygpu.records.run_data import RunData
from raygpu.records.timeline import Occupancy

MOST_NAMED = 200
"""Largest number of bars that have their names in them; a browser takes a millisecond for each."""
MOST_SAMPLES = 1_000
"""Largest number of points of one reading; beyond it neighbours are averaged."""
READINGS = {
    "samples_per_s": "training throughput (samples/s)",
    "sm_util_pct": "SM activity (%)",
    "util_pct": "time with any kernel (%)",
    "dram_bandwidth_pct": "DRAM bandwidth (%)",
    "memory_gib": "memory in use (GiB)",
    "power_w": "power (W)",
    "temperature_c": "temperature (°C)",
}
"""Readings that are drawn, by name, each with its title."""


@dataclass(frozen=True, slots=True)
class Lane:
    """A row of the timeline: stays on one GPU that do not overlap."""

    gpu: int | None
    number: int
    stays: list[Occupancy]

    @property
    def label(self) -> str:
        """Label of the row."""
        return f"{gpu_name(self.gpu)}, slot {self.number + 1}"


def gpu_name(gpu: int | None) -> str:
    """Return a GPU's name in the figures."""
    return "no GPU yet" if gpu is None else f"GPU {gpu}"


def lanes(occupancies: Sequence[Occupancy]) -> list[Lane]:
    """Put each stay into the first lane of its GPU that is free; GPUs in order, then lanes."""
    lanes_by_gpu: dict[int | None, list[Lane]] = {}
    for stay in sorted(occupancies, key=lambda each: each.began_s):
        of_gpu = lanes_by_gpu.setdefault(stay.gpu, [])
        free = next((lane for lane in of_gpu if lane.stays[-1].ended_s <= stay.began_s), None)
        if free is None:
            free = Lane(stay.gpu, len(of_gpu), [])
            of_gpu.append(free)
        free.stays.append(stay)
    order = sorted(lanes_by_gpu, key=lambda gpu: (gpu is None, gpu or 0))
    return [lane for gpu in order for lane in lanes_by_gpu[gpu]]


def timeline(run: RunData) -> Figure | None:
    """Return the timeline of the GPUs; None without one."""
    rows = lanes(run.timeline.occupancies)
    if not rows:
        return None
    outcome = {row.trial_id: row.status for row in run.trials}
    scale = time_scale(run)
    named = {"mode": "hide", "minsize": 9}  # a name that does not fit its bar is left out
    plot = figure(xaxis_title=scale.title, barmode="overlay", bargap=0.15, uniformtext=named)
    by_outcome: dict[str, list[tuple[Lane, Occupancy]]] = {name: [] for name in COLOURS}
    for lane in rows:
        for stay in lane.stays:
            by_outcome[ended(stay, outcome)].append((lane, stay))
    for name, stays in by_outcome.items():
        if not stays:
            continue
        plot.add_bar(
            orientation="h",
            base=[scale.at(stay.began_s) for _, stay in stays],
            x=[scale.bar(stay.began_s, stay.ended_s)[1] for _, stay in stays],
            y=[lane.label for lane, _ in stays],
            name=f"{name} ({len(stays)})",
            marker={"color": COLOURS[name], "line": {"width": 0.5, "color": "rgba(128,128,128,0.6)"}},
            text=[_label(stay) for _, stay in stays] if len(run.timeline.occupancies) <= MOST_NAMED else None,
            textposition="inside",
            insidetextanchor="middle",
            textangle=0,
            hovertext=[_details(stay, outcome) for _, stay in stays],
            hoverinfo="text",
        )
    order = [lane.label for lane in reversed(rows)]
    plot.update_yaxes(automargin=True, categoryorder="array", categoryarray=order)
    plot.update_xaxes(range=scale.whole(run))
    table = occupancy(run)
    busiest = "; ".join(f"{row[0]}: {row[2]:.0f} % of the time with at least one trial" for row in table.rows)
    return Figure("gpus", "Timeline of the GPUs", plot, f"{busiest}.", table, 140 + 26 * min(len(rows), 60))


def ended(stay: Occupancy, outcome: Mapping[str, str]) -> str:
    """Return the outcome that colours a stay: how it ended, else that of most of its trials."""
    if stay.end == "error":
        return "failed"
    if stay.end != "complete":
        return stay.end
    statuses = Counter(outcome.get(trial, "finished") for trial in stay.trial_ids)
    most = statuses.most_common(1)[0][0]
    return most if most in COLOURS else "interrupted"


def _label(stay: Occupancy) -> str:
    return stay.name if len(stay.trial_ids) == 1 else f"{stay.name}: {len(stay.trial_ids)} trials"


def _details(stay: Occupancy, outcome: Mapping[str, str]) -> str:
    statuses = Counter(outcome.get(trial, "unknown") for trial in stay.trial_ids)
    ended = ", ".join(f"{number} {status}" for status, number in statuses.items())
    seconds = stay.ended_s - stay.began_s
    return f"{_label(stay)}<br>{stay.share:.2g} of the GPU, {seconds:.1f} s<br>{ended} ({stay.end})"


def occupancy(run: RunData) -> Table:
    """Return a table of each GPU's trials, and of the time in which it had any."""
    rows, rows_of = [], lanes(run.timeline.occupancies)
    for gpu in sorted({stay.gpu for stay in run.timeline.occupancies if stay.gpu is not None}):
        stays = [stay for stay in run.timeline.occupancies if stay.gpu == gpu]
        first, last = min(stay.began_s for stay in stays), max(stay.ended_s for stay in stays)
        whole_s = max(last - first, 1e-9)
        share_s = sum(stay.share * (stay.ended_s - stay.began_s) for stay in stays)
        at_once = max(lane.number + 1 for lane in rows_of if lane.gpu == gpu)
        busy = 100 * _covered_s(stays) / whole_s
        rows.append((gpu_name(gpu), len(stays), busy, 100 * share_s / whole_s, at_once, whole_s / 60))
    header = ("GPU", "runs", "% of time in use", "mean share in use (%)", "most at once", "minutes")
    return Table(header, rows, "from the first trial's start to the last one's end")


def _covered_s(stays: Sequence[Occupancy]) -> float:
    """Return the seconds in which at least one stay goes on."""
    covered, until = 0.0, float("-inf")
    for stay in sorted(stays, key=lambda each: each.began_s):
        covered += max(0.0, stay.ended_s - max(stay.began_s, until))
        until = max(until, stay.ended_s)
    return covered


def reading_figures(run: RunData) -> list[Figure]:
    """Return a figure for each reading that the run has, with a line for each GPU."""
    figures, scale = [], time_scale(run)
    samples = sorted(run.timeline.readings.items())
    for name, title in READINGS.items():
        lines = [
            (place, gpu_name(gpu), points)
            for place, (gpu, read) in enumerate(samples)
            if (points := _averaged([(at, values[name]) for at, values in read if name in values]))
        ]
        if not lines:
            continue
        plot = figure(xaxis_title=scale.title, yaxis_title=title)
        plot.update_yaxes(rangemode="tozero")
        plot.update_xaxes(range=scale.whole(run))
        rows = []
        for place, gpu, points in lines:
            y = [value for _, value in points]
            plot.add_scatter(
                x=[scale.at(at) for at, _ in points],
                y=y,
                name=gpu,
                mode="lines" if len(points) > 1 else "markers",
                line={"color": SERIES[place % len(SERIES)]},
            )
            rows.append((gpu, sum(y) / len(y), min(y), max(y)))
        table = Table(("GPU", "mean", "lowest", "highest"), rows, title)
        says = "; ".join(f"{row[0]}: {text(row[1])} on average" for row in rows)
        figures.append(Figure(f"reading-{name.replace('_', '-')}", title, plot, f"{says}.", table, 300))
    return figures


def _averaged(samples: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return at most so many points; each is the mean of as many neighbours."""
    size = -(-len(samples) // MOST_SAMPLES) or 1
    parts = [samples[start : start + size] for start in range(0, len(samples), size)]
    return [(sum(at for at, _ in part) / len(part), sum(y for _, y in part) / len(part)) for part in parts]
