"""Figures of a search: parallel coordinates, importance of hyper-parameters and slices by Optuna."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from raygpu.cli.report.content import Figure, Table, figure, restyle
from raygpu.records.run_data import RunData
from raygpu.records.trials_csv import TrialRow
from raygpu.search.trials import Trial

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution

FEWEST = 8
"""Fewest trials with a score from which the importance of hyper-parameters is estimated."""
BEST_PART = 0.1
"""Part of the trials that counts as the best ones, for the importance."""
FEWEST_BEST = 4
"""Fewest trials that count as the best ones."""
MOST_CATEGORIES = 24
"""Largest number of values of a hyper-parameter that is no number, or that not each trial has, in the figures."""
NUM_ROWS = 20
"""Number of trials in the table of the parallel coordinates."""
MOST_DRAWN = 30
"""Largest number of hyper-parameters in a figure; Optuna's slices take a time that grows with its square."""
LARGE_RATIO = 50.0
"""Ratio of the largest to the smallest value from which a listed hyper-parameter has a logarithmic axis."""


def search_figures(run: RunData) -> tuple[list[Figure], list[str]]:
    """Return the figures of a sweep's search, and notes on what is left out."""
    rows = run.searched()
    names, notes = _varied(rows)
    if len(rows) < 2 or not names:
        return [], [*notes, "The trials' scores say nothing on the hyper-parameters: fewer than two differ."]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna's own figures are marked as experimental now and then
        study, importances = _study(run, rows, names), dict[str, float]()
        if len(rows) >= FEWEST and len({row.score for row in rows}) > 1:
            importances = _importances(study)
        else:
            notes.append(f"Importance is estimated from {FEWEST} trials with a score on; there are {len(rows)}.")
        drawn = _drawn(names, importances)
        figures = [_parallel(run, study, rows, drawn), _slices(run, study, drawn)]
        if importances:
            figures.insert(1, _importance(study, importances))
    if len(drawn) < len(names):
        which = "the most important ones" if importances else "the first ones"
        notes.append(f"The figures show {len(drawn)} of {len(names):,} hyper-parameters, {which}.")
    return figures, notes


def _drawn(names: Sequence[str], importances: Mapping[str, float]) -> list[str]:
    """Return the hyper-parameters of the figures, in their order: the most important ones, where there are too many."""
    chosen = set(list(importances or names)[:MOST_DRAWN])
    return [name for name in names if name in chosen]


def _varied(rows: Sequence[TrialRow]) -> tuple[list[str], list[str]]:
    """Return the hyper-parameters with more than one value that can be drawn, and notes on the others."""
    every = list(dict.fromkeys(name for row in rows for name in row.hyperparameters))
    values = {name: [row.hyperparameters[name] for row in rows if name in row.hyperparameters] for name in every}
    varied = [name for name in every if len(set(map(repr, values[name]))) > 1]
    drawn, notes = [], []
    for name in varied:
        if len(values[name]) < len(rows):
            notes.append(f"{name} is left out of the figures: not every trial has it.")
        elif not _is_numeric(values[name]) and len(set(map(str, values[name]))) > MOST_CATEGORIES:
            notes.append(f"{name} is left out of the figures: it has more than {MOST_CATEGORIES} values.")
        else:
            drawn.append(name)
    return drawn, notes


def _is_numeric(values: Sequence[Any]) -> bool:
    return all(
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) for value in values
    )


def _study(run: RunData, rows: Sequence[TrialRow], names: Sequence[str]) -> Study:
    """Return Optuna's study of these trials, in memory."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    logarithmic = run.logarithmic()
    distributions = {
        name: _distribution([row.hyperparameters[name] for row in rows], log=logarithmic.get(name)) for name in names
    }
    study = optuna.create_study(direction="maximize" if run.maximize else "minimize")
    study.add_trials(
        [
            optuna.create_trial(
                params={name: _of(row.hyperparameters[name], distributions[name]) for name in names},
                distributions=distributions,
                value=row.score,
            )
            for row in sorted(rows, key=lambda row: Trial.order(row.trial_id))
        ]
    )
    return study


def _distribution(values: Sequence[Any], *, log: bool | None) -> BaseDistribution:
    """Return a distribution that holds these values: the range of numbers, the set of all else.

    log: whether it was drawn by its logarithm; None if it was listed.
    """
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    if not _is_numeric(values):
        return CategoricalDistribution(sorted(set(map(str, values))))
    low, high = float(min(values)), float(max(values))
    wide = high > LARGE_RATIO * low if log is None else log
    return FloatDistribution(low, high, log=low > 0 and wide)


def _of(value: Any, distribution: BaseDistribution) -> Any:
    from optuna.distributions import FloatDistribution

    return float(value) if isinstance(distribution, FloatDistribution) else str(value)


def _parallel(run: RunData, study: Study, rows: Sequence[TrialRow], names: Sequence[str]) -> Figure:
    """Return parallel coordinates, which a browser draws for thousands of trials; the score's axis is the last."""
    from plotly.graph_objects import Parcoords

    metric = str(run.summary["metric"])
    scores = [row.score or 0.0 for row in rows]
    distributions = study.trials[0].distributions
    axes = [_axis(name, [row.hyperparameters[name] for row in rows], distributions[name]) for name in names]
    axes.append({"label": metric, "values": scores})
    colours = {"color": scores, "colorscale": "Viridis", "reversescale": not run.maximize, "showscale": True}
    plot = figure()
    plot.add_trace(Parcoords(line=colours, dimensions=axes))
    plot.update_layout(margin={"l": 72, "r": 72, "t": 64, "b": 32})
    table = Table(
        ("trial", metric, *names),
        [(row.trial_id, row.score, *(row.hyperparameters[name] for name in names)) for row in rows[:NUM_ROWS]],
        "the best trials",
    )
    says = "A line for each trial, coloured by score: the better, the lighter. Drag along an axis to keep a range."
    return Figure("parallel", "Parallel coordinates", plot, says, table, min_width_px=110 * len(axes))


def _axis(name: str, values: Sequence[Any], distribution: BaseDistribution) -> dict[str, Any]:
    """Return an axis: numbers as they are or as logarithms, all else by the place in the order of its texts."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    if isinstance(distribution, CategoricalDistribution):
        options = list(distribution.choices)
        places = [options.index(str(value)) for value in values]
        return {"label": name, "values": places, "tickvals": list(range(len(options))), "ticktext": options}
    assert isinstance(distribution, FloatDistribution)
    if not distribution.log:
        return {"label": name, "values": values}
    low, high = math.log10(distribution.low), math.log10(distribution.high)
    ticks = [low, *range(math.ceil(low), math.floor(high) + 1), high]
    return {
        "label": f"{name} (log)",
        "values": [math.log10(value) for value in values],
        "tickvals": ticks,
        "ticktext": [f"{10**tick:.3g}" for tick in ticks],
    }


def _best_quantile(study: Study) -> float:
    return max(BEST_PART, FEWEST_BEST / len(study.trials))


def _importances(study: Study) -> dict[str, float]:
    """Return how much each hyper-parameter decides whether a trial is among the best, the most important one first:
    PED-ANOVA (Watanabe et al. 2023).

    Trials that were stopped early spoil it less than an analysis of the scores' variance, and it takes no second for
    thousands of trials.
    """
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    evaluator = PedAnovaImportanceEvaluator(target_quantile=_best_quantile(study))
    return dict(get_param_importances(study, evaluator=evaluator))


def _importance(study: Study, found: Mapping[str, float]) -> Figure:
    """Return the figure of the importances; its table has all of them."""
    plot = figure(xaxis_title="importance", showlegend=False)
    names = list(reversed(list(found)[:MOST_DRAWN]))
    shares = [found[name] for name in names]
    labels = [f"{100 * share:.0f} %" for share in shares]
    plot.add_bar(x=shares, y=names, orientation="h", marker_color="#0072B2", text=labels, textangle=0)
    plot.update_yaxes(automargin=True, type="category")
    first, share = next(iter(found.items()))
    best = f"the best {100 * _best_quantile(study):.0f} %"
    says = (
        f"{first} decides most, {100 * share:.0f} %, whether a trial is among {best} (PED-ANOVA, Watanabe et al. 2023)."
    )
    table = Table(("hyper-parameter", "importance"), list(found.items()))
    return Figure("importance", "Importance of the hyper-parameters", plot, says, table, 120 + 36 * len(names))


def _slices(run: RunData, study: Study, names: Sequence[str]) -> Figure:
    from optuna.visualization import plot_slice

    plot = plot_slice(study, params=list(names), target_name=str(run.summary["metric"]))
    restyle(plot, showlegend=False)
    plot.update_traces(marker={"colorscale": "Viridis", "reversescale": False, "line": {"width": 0}, "size": 6})
    num_parameters = len(study.trials[0].params)
    of = f"{len(names)} of {num_parameters:,}" if len(names) < num_parameters else f"each of {num_parameters}"
    says = f"The score by {of} hyper-parameters; later trials are lighter."
    return Figure("slices", "Slices", plot, says, min_width_px=180 * len(names))
