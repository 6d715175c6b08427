"""The page: no text of a user ends an element of it, and it needs nothing from elsewhere."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest

from raygpu.cli.report.content import Page, Section, Table, text
from raygpu.cli.report.page import html
from raygpu.cli.report.sweep_page import sweep_page
from raygpu.records.device import SIMULATED
from tests.report_cases import record, sweep

EVIL = "</script><script>alert(1)</script><b>&"


def test_no_text_of_a_user_ends_an_element(tmp_path: Path) -> None:
    trials = [record(i, i / 20, lr=0.1 + i, kind=EVIL if i % 2 else "plain") for i in range(10)]
    page = html(sweep_page(sweep(tmp_path / "run", trials=trials)), "1.0")
    assert "alert(1)" in page
    assert EVIL not in page
    assert "<script>alert" not in page
    assert page.count("</script>") == 3


def test_a_simulated_gpu_is_called_one_at_the_top(tmp_path: Path) -> None:
    run = sweep(tmp_path / "run")
    assert ("GPUs", "2") in sweep_page(run).facts
    run.summary["gpus"] = [{**run.summary["gpus"][0], "name": SIMULATED}]
    assert ("GPUs", "1, simulated") in sweep_page(run).facts


def test_a_best_trial_that_was_stopped_is_told_above_the_best_trials(tmp_path: Path) -> None:
    run = sweep(tmp_path / "run")
    run.summary["best"]["ended"] = "stopped at epoch 3 of 27"
    section = next(section for section in sweep_page(run).sections if section.name == "best")
    assert section.notes[0].startswith(
        f"The best trial, {run.summary['best']['trial_id']}, was stopped at epoch 3 of 27"
    )


def test_the_figures_are_json_and_need_nothing_from_elsewhere(tmp_path: Path) -> None:
    page = html(sweep_page(sweep(tmp_path / "run")), "1.0")
    embedded = re.search(r'<script type="application/json" id="figures">(.*?)</script>', page, re.DOTALL)
    assert embedded is not None
    figures = json.loads(embedded[1])
    assert {"curve-0", "best-so-far", "parallel", "importance", "slices", "gpus", "stages"} <= set(figures)
    for name in figures:
        assert f'id="{name}"' in page
    own = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert not re.findall(r'(?:src|href)="(?!#|data:,)[^"]*"|@import|url\(', own)


def test_a_page_without_figures_has_no_program() -> None:
    page = html(Page("a", "b", [("c", "d")], [Section("e", "f", ["g"])]), "1.0")
    assert len(page) < 10_000
    assert "<script" not in page


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "\N{EN DASH}"),
        (math.nan, "\N{EN DASH}"),
        (-math.inf, "-inf"),
        (0.123456, "0.1235"),
        (12345.6, "12,346"),
        (1234, "1,234"),
        (True, "True"),
        ("t0001", "t0001"),
        ([64, 32], "[64, 32]"),
    ],
)
def test_cells_are_set_as_a_person_reads_them(value: object, expected: str) -> None:
    assert text(value) == expected


def test_numbers_stand_to_the_right_and_long_texts_wrap() -> None:
    (cells,) = Table(("a", "b", "c"), [(1.5, "short", "long " * 10)]).cells()
    assert [kind for _, kind in cells] == ["number", "text", "long"]
