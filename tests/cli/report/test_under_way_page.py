"""The report of a sweep that has not ended."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raygpu.cli.report.under_way_page import under_way_page
from tests.report_cases import sweep


@pytest.mark.parametrize(
    ("own", "planned", "best"),
    [
        ({}, "20 of 20", "best accuracy so far"),
        ({"repeats": 5}, "20 of 100", "best accuracy of a single training so far"),
        ({"repeats": 2, "folds": 5}, "20 of 200", "best accuracy of a single training so far"),
        ({"trials": None}, "20 of ?", "best accuracy so far"),
    ],
)
def test_trainings_that_ended_are_counted_among_those_of_all_sets(
    own: dict[str, Any], planned: str, best: str, tmp_path: Path
) -> None:
    run = sweep(tmp_path / "run", 20)
    config = {name: value for name, value in {**run.config, **own}.items() if value is not None}
    facts = under_way_page(replace(run, config=config)).facts
    assert facts[:2] == [("trials ended", planned), (best, "0.815")]
