"""Present a run on MLflow's pages: its description, and for a sweep a table of its trials, the best first.

The description is Markdown on the run's page, above what a person has written there. The table is a view: MLflow's
pages keep one that somebody shares as a tag of the experiment, and open it by the tag's name in the URL. That tag holds
the state of the pages, which is no public API (MLflow 3.17): a page that does not know a part of it shows its default.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raygpu.tracking.values import MAX_TAG, SET_ERROR, SET_SCORE, SET_TAG, allowed_name, text

DESCRIPTION = "mlflow.note.content"
"""Tag that holds a run's description."""
LAST_LINE = "*Written by raygpu; text below this line stays.*"
VIEW = "mlflow.sharedViewState."
"""First part of the name of a view's tag; the rest is the key in the URL."""
OWN = "raygpu-"
"""First part of the keys of raygpu's views."""
MOST = 200
"""Largest number of raygpu's views in one experiment, whose pages load all of them; the oldest are deleted."""
WIDTHS = {"attributes.`Run Name`": 320, "metrics": 130, "params": 110}
"""Widths in pixels of the column of names, and of those of metrics and parameters."""


@dataclass(frozen=True, slots=True)
class TrialsView:
    """The table of a sweep's trials."""

    score: str
    """Name of the metric in the trials' runs that ranks them."""
    maximize: bool
    hyperparameters: Sequence[str]
    """Names of the hyper-parameters that vary, in the order of their columns and of the trials' names."""
    in_sets: bool = False
    """Whether trials are the repeats of sets: the table then groups them, and is sorted by the sets' mean scores."""

    def state(self, run_id: str, now_ms: int) -> str:
        """Return the tag's value. run_id: the sweep's run. now_ms: moment that tells which views are the oldest."""
        score_column = f"metrics.`{allowed_name(self.score)}`"
        of_set = [f"metrics.`{name}`" for name in (SET_SCORE, SET_ERROR)] if self.in_sets else []
        score = of_set[0] if of_set else score_column
        parameters = [f"params.`{allowed_name(name)}`" for name in self.hyperparameters]
        columns = [*of_set, score_column, *parameters, "tags.`raygpu.status`", "metrics.`samples_per_s`"]
        widths = {name: WIDTHS[kind] for name in columns if (kind := name.partition(".")[0]) in WIDTHS}
        state: dict[str, Any] = {
            "selectedColumns": columns,
            "columnOrder": ["attributes.`Run Name`", *columns],
            "columnWidths": {"attributes.`Run Name`": WIDTHS["attributes.`Run Name`"], **widths},
            "orderByKey": score,
            "orderByAsc": not self.maximize,
            "searchFilter": f"tags.`mlflow.parentRunId` = '{run_id}'",
            "raygpu": now_ms,
        }
        if self.in_sets:
            by = {"mode": "tag", "groupByData": SET_TAG}
            state["groupBy"] = {"aggregateFunction": "average", "groupByKeys": [by]}
        return json.dumps(state)


@dataclass(frozen=True, slots=True)
class Presentation:
    """Presentation of a run on MLflow's pages."""

    description: str = ""
    """Markdown; empty to leave the description as it is."""
    trials: TrialsView | None = None
    """Table of a sweep's trials; None without one."""


def tag(run_id: str) -> str:
    """Return the name of the tag that holds a sweep's view."""
    return f"{VIEW}{OWN}{run_id}"


def outdated(tags: Mapping[str, str]) -> list[str]:
    """Return the names of the tags of raygpu's oldest views beyond the largest number. tags: the experiment's."""
    view_tags = [name for name in tags if name.startswith(VIEW + OWN)]
    return sorted(view_tags, key=lambda name: _shared_ms(tags[name]))[: max(0, len(view_tags) - MOST)]


def _shared_ms(state: str) -> int:
    try:
        return int(json.loads(state)["raygpu"])
    except (ValueError, KeyError, TypeError):
        return 0


def merged(written: str, description: str) -> str:
    """Return a run's new description. written: the present one, of which a person's part stays.

    Where both are longer than a tag, lines of raygpu's are left out.
    """
    before, found, after = written.partition(LAST_LINE)
    person = (after if found else before).strip()
    end = "\n\n".join(["", LAST_LINE, *([person] if person else [])])
    if len(end) > MAX_TAG:
        return written
    lines, length = [], len(end)
    for line in text(description).splitlines(keepends=True):
        length += len(line)
        if length > MAX_TAG:
            break
        lines.append(line)
    return ("".join(lines).rstrip() + end).strip()
