"""The pictures show what the report's figures show."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.figure import Figure as Picture

from raygpu.cli.report import pictures
from raygpu.cli.report.balance_page import balance_page
from raygpu.cli.report.pack_figures import device_figures, throughput_figure
from raygpu.cli.report.pack_page import pack_page
from raygpu.cli.report.pictures import draw, write_pictures
from raygpu.cli.report.place_page import place_page
from raygpu.planning.profiles import Profile
from raygpu.records.run_directory import RunDirectory
from tests.measured_cases import POINTS, SUBJECT, balance_folder, data, pack_folder, place_folder
from tests.report_cases import sweep

PROFILE = Profile(SUBJECT, 1000, POINTS)
PAGES = {"pack": pack_page, "place": place_page, "balance": balance_page}


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (pack_folder, ["curve.png"]),
        (lambda path: pack_folder(path, advised=True), ["advice.png", "curve.png"]),
        (place_folder, ["placements.png"]),
        (balance_folder, ["balance.png"]),
        (lambda path: balance_folder(path, unequal=False), ["balance.png"]),
    ],
)
def test_a_measurement_has_its_pictures(make: Callable[[Path], RunDirectory], names: list[str], tmp_path: Path) -> None:
    run = data(make(tmp_path / "run"))
    write_pictures(PAGES[run.kind](run), run)
    found = sorted(run.folder.path.glob("*.png"))
    assert [path.name for path in found] == names
    assert all(path.stat().st_size > 5000 for path in found)


def test_nothing_measured_is_no_picture(tmp_path: Path) -> None:
    run = data(pack_folder(tmp_path / "run"))
    run = replace(run, profile=replace(PROFILE, points=()))
    write_pictures(pack_page(run), run)
    assert not list(run.folder.path.glob("*.png"))


def test_a_picture_has_the_marks_intervals_names_and_axes_of_its_figure() -> None:
    axes = Picture().subplots()
    figure = throughput_figure([("run", PROFILE)])
    assert figure is not None
    pictures._draw(axes, figure.plot.to_plotly_json())
    drawn = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    assert list(drawn) == [
        "packed processes", "process, out of memory", "fused trainings", "fused, compiled", "fused, in doubt"
    ]  # fmt: skip
    assert drawn["packed processes"].get_ydata().tolist() == [1000.0, 1800.0]
    assert drawn["process, out of memory"].get_xydata().tolist() == [[4.0, 1800.0]]
    assert drawn["fused, compiled"].get_marker() == "*"
    assert [text.get_text() for text in axes.get_xticklabels()] == ["1", "2", "4", "8", "16"]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log"), "the rates are far apart"
    assert axes.get_ylabel() == "samples/s, all trainings together"
    (bars,) = [bars for bars in axes.collections if len(bars.get_segments()) == 2]
    assert bars.get_segments()[1].tolist() == [[2.0, 1600.0], [2.0, 2000.0]]


def test_bars_are_stacked_and_rows_go_down() -> None:
    axes = Picture().subplots()
    plot = {
        "data": [
            {
                "type": "bar",
                "orientation": "h",
                "x": [1.0, 2.0],
                "y": ["a", "b"],
                "name": "x",
                "marker": {"color": "r"},
            },
            {
                "type": "bar",
                "orientation": "h",
                "x": [3.0, None],
                "y": ["a", "b"],
                "name": "y",
                "marker": {"color": "b"},
            },
        ],
        "layout": {"barmode": "stack", "yaxis": {"autorange": "reversed"}},
    }
    pictures._draw(axes, plot)
    first, second = ([path.get_extents().bounds for path in bars.get_paths()] for bars in axes.collections)
    assert [bound[2] for bound in first] == [1.0, 2.0]
    assert second == [(1.0, -0.4, 3.0, 0.8)], "begins at the end of the other one; a gap is not drawn"
    assert [text.get_text() for text in axes.get_yticklabels()] == ["a", "b"]
    assert axes.yaxis.get_inverted()


def test_names_beyond_the_rows_of_a_picture_are_left_out() -> None:
    names = [str(number) for number in range(100)]
    assert pictures._names([], "y", {"categoryarray": names}) == names[-pictures.MOST_ROWS :]
    assert math.isnan(pictures._place("0", names[-pictures.MOST_ROWS :]))


def test_devices_are_compared_per_hour_and_per_unit(tmp_path: Path) -> None:
    found = device_figures([PROFILE, replace(PROFILE, subject=replace(SUBJECT, device="T4"))], [4.0, None])
    assert [figure.title for figure in found] == ["epochs of one training per hour, all together",
                                                  "epochs of one training per hour and RGU"]  # fmt: skip
    whole, per_unit = ({trace.name: trace for trace in figure.plot.data if trace.x} for figure in found)
    assert list(whole["packed processes, T4"].y) == pytest.approx([3600.0, 6480.0])
    assert list(per_unit) == ["packed processes, A100", "fused trainings, A100"]
    assert list(per_unit["packed processes, A100"].y) == pytest.approx([900.0, 1620.0])
    draw("my.code:Net", found, tmp_path / "devices.png")
    assert (tmp_path / "devices.png").stat().st_size > 5000


def test_a_sweep_of_many_trials_is_drawn(tmp_path: Path) -> None:
    from raygpu.cli.report.sweep_page import sweep_page

    run = sweep(tmp_path / "run", 300)
    write_pictures(sweep_page(run), run)
    assert sorted(path.name for path in run.folder.plots.iterdir()) == ["gpus.png", "score.png"]
