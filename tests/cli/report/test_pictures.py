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
from raygpu.cli.report.content import Figure, figure
from raygpu.cli.report.pack_figures import device_figures, errors, throughput_figure
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
    write_pictures(PAGES[run.kind](run), run, pytest.fail)
    found = sorted(run.folder.path.glob("*.png"))
    assert [path.name for path in found] == names
    assert all(path.stat().st_size > 5000 for path in found)


def test_nothing_measured_is_no_picture(tmp_path: Path) -> None:
    run = data(pack_folder(tmp_path / "run"))
    run = replace(run, profile=replace(PROFILE, points=()))
    write_pictures(pack_page(run), run, pytest.fail)
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
    write_pictures(sweep_page(run), run, pytest.fail)
    assert sorted(path.name for path in run.folder.plots.iterdir()) == ["gpus.png", "score.png"]


def test_any_command_and_any_names_are_drawn(tmp_path: Path) -> None:
    """A dollar sign begins no formula, an underscore hides no curve, and a long name leaves room for the curves."""
    curves, bars = figure(yaxis_title="seconds"), figure()
    names = [f"_run {number} " + "of a long name " * (8 * (number % 2)) for number in range(16)]
    for name in names:
        curves.add_scatter(x=[1, 2], y=[1.0, 2.0], name=name, mode="lines", line={"color": "red"})
    bars.add_bar(x=names, y=[1.0] * len(names), name="_bars", marker={"color": "blue"})
    path = tmp_path / "any.png"
    title = "python train.py a $50% b $x_1_2 --out $OUT " * 6
    draw(f"{title}\n{title}", [Figure(name, name, each, name) for name, each in (("a", curves), ("b", bars))], path)
    assert path.stat().st_size > 5000


def test_no_bar_of_an_error_is_less_than_nothing() -> None:
    """By rounding, an end of an interval without width may lie on the other side of its middle."""
    ends = errors([(1000.0, 1000.0000000001, 999.9999999999), (5.0, 4.0, math.inf), (5.0, 0.0, 7.0)])
    assert (ends["array"], ends["arrayminus"]) == ([0.0, 0.0, 2.0], [0.0, 1.0, 0.0])


def test_a_picture_that_cannot_be_drawn_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError("no such colour")

    monkeypatch.setattr(pictures, "draw", fail)
    run, told = data(pack_folder(tmp_path / "run")), list[str]()
    write_pictures(pack_page(run), run, told.append)
    assert told == ["no picture curve.png: ValueError: no such colour"]
