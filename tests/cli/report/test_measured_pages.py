"""The pages of packs, placements and balances: what their figures show, and what older folders lack."""

from __future__ import annotations

from pathlib import Path

import pytest

from raygpu.cli.report import balance_page, pack_page, place_page
from raygpu.cli.report.comparison_page import comparison_page
from raygpu.cli.report.content import Page, Section
from raygpu.errors import BadInput
from tests.measured_cases import balance_folder, data, pack_folder, place_folder
from tests.report_cases import sweep_folder


def section(page: Page, name: str) -> Section:
    (found,) = [each for each in page.sections if each.name == name]
    return found


def test_a_pack_has_a_curve_with_intervals_for_each_way(tmp_path: Path) -> None:
    page = pack_page.pack_page(data(pack_folder(tmp_path / "pack")))
    (figure,) = section(page, "throughput").figures
    traces = {trace.name: trace for trace in figure.plot.data}
    assert list(traces) == [
        "packed processes", "process, out of memory", "fused trainings", "fused, compiled", "fused, in doubt"
    ]  # fmt: skip
    curve = traces["packed processes"]
    assert (list(curve.x), list(curve.y)) == ([1, 2], [1000.0, 1800.0])
    assert list(curve.error_y.array) == pytest.approx([0.0, 200.0])
    assert list(curve.error_y.arrayminus) == pytest.approx([0.0, 200.0])
    assert list(traces["fused trainings"].x) == [8], "without the compiled point, and the one in doubt"
    assert "9.0x (8.8 to 9.2) the throughput of one" in section(page, "verdict").notes[0]
    assert "threads: dropped" in section(page, "verdict").notes
    assert ("way", "fused, compiled") in page.facts
    memory = {trace.name: list(trace.y) for trace in section(page, "memory").figures[0].plot.data}
    assert memory["packed processes, GPU"] == [1.5, 3.0], "of all trainings together"
    (table,) = section(page, "points").tables
    assert "out of memory" in [row[-1] for row in table.rows]
    assert "power (W)" not in table.header, "a column without a value is left out"


def test_an_advice_is_part_of_the_page(tmp_path: Path) -> None:
    page = pack_page.pack_page(data(pack_folder(tmp_path / "pack", advised=True)))
    advice = section(page, "advice")
    assert "one training fills" not in advice.notes[0]
    assert "several GPUs for one training: 2 before the efficiency falls below 0.8" in advice.notes[0]
    assert "measured now" in advice.notes[1]
    (figure,) = advice.figures
    assert list(figure.plot.data[0].y) == [1.0, 1.9, 2.4]


def test_placements_have_bars_with_their_turns(tmp_path: Path) -> None:
    page = place_page.place_page(data(place_folder(tmp_path / "place")))
    (figure,) = section(page, "epochs").figures
    bars, dots = figure.plot.data
    assert list(bars.y) == ["one_device", "towers"]
    assert list(bars.x) == pytest.approx([2.1, 1.05])
    assert len(dots.x) == 6
    assert section(page, "epochs").notes == ["alternating: CUDA out of memory"]
    table = section(page, "verdict").tables[0]
    assert table.rows[1][2].startswith("2.00x")
    assert table.rows[2][1:3] == (None, None)
    copies = section(page, "copies").figures[0].plot.data[1]
    assert list(copies.x) == pytest.approx([5.0, 5.0])
    assert section(page, "memory").figures[0].table is not None


def test_a_balance_has_its_split_and_each_turn(tmp_path: Path) -> None:
    page = balance_page.balance_page(data(balance_folder(tmp_path / "balance")))
    assert ("shares", "40 + 24") in page.facts
    bars, dots = section(page, "together").figures[0].plot.data
    assert list(bars.x) == ["predicted", "balanced", "equal"]
    assert list(bars.y) == [1500.0, 1415.0, 1010.0]
    assert list(dots.y) == [1400.0, 1460.0, 1415.0, 1000.0, 1020.0, 1010.0]
    speeds = section(page, "devices").figures[0].plot.data
    diamonds = [trace for trace in speeds if trace.marker.symbol == "diamond"]
    assert [trace.x[0] for trace in diamonds] == [40, 24]


def test_equal_shares_alone_are_called_equal(tmp_path: Path) -> None:
    page = balance_page.balance_page(data(balance_folder(tmp_path / "balance", unequal=False)))
    bars, _ = section(page, "together").figures[0].plot.data
    assert list(bars.y) == [1500.0, None, 1415.0]


def test_runs_of_one_kind_stand_side_by_side(tmp_path: Path) -> None:
    packs = comparison_page([data(pack_folder(tmp_path / "a")), data(pack_folder(tmp_path / "b", advised=True))])
    assert [trace.name for trace in section(packs, "throughput").figures[0].plot.data][-1] == "b: packed processes"
    assert [row[4] for row in section(packs, "outcome").tables[0].rows] == [8, 1]
    places = comparison_page([data(place_folder(tmp_path / "c")), data(place_folder(tmp_path / "d"))])
    bars = [trace for trace in section(places, "epochs").figures[0].plot.data if trace.type == "bar"]
    assert [trace.name for trace in bars] == ["c", "d"]
    balances = comparison_page([data(balance_folder(tmp_path / "e")), data(balance_folder(tmp_path / "f"))])
    assert [fact for _, fact in balances.facts] == ["40 + 24", "40 + 24"]


def test_unlike_runs_are_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="swept is a sweep, packed is a measurement of packing; runs of one kind"):
        comparison_page([data(sweep_folder(tmp_path / "swept")), data(pack_folder(tmp_path / "packed"))])
