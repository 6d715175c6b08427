"""What a profile says in words and rows."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raygpu.cli import profile_view
from raygpu.config.sections import Way
from raygpu.planning.profiles import Point, Profile, Subject

SUBJECT = Subject("mine:Net", {"batch_size": "100"}, "", "float32", "NVIDIA A100-SXM4-40GB", 40.0, 8, {})
ON_CPU = replace(SUBJECT, device="Xeon", device_gib=None)


def points(way: Way, gains: dict[int, float], off: float = 0.01, **values: Any) -> list[Point]:
    """off: by how much a gain may be too high or too low."""
    return [
        Point(
            way,
            n,
            samples_per_s=1000 * gain,
            gain=gain,
            gain_low=gain * (1 - off),
            gain_high=gain * (1 + off),
            **values,
        )
        for n, gain in gains.items()
    ]


def profile(*parts: list[Point], **values: Any) -> Profile:
    return Profile(values.pop("subject", SUBJECT), 1000, tuple(p for part in parts for p in part), **values)


PROCESS = points("process", {1: 1.0, 2: 1.5, 3: 1.8, 5: 1.7})
FUSED = points("fused", {1: 0.9, 2: 1.8, 13: 9.4, 21: 9.5})
OUT_OF_MEMORY = Point("process", 2, fault="out of memory")


@pytest.mark.parametrize(
    ("measured", "first", "last"),
    [
        (profile(PROCESS, FUSED),
         "13 fused trainings per GPU: 9.4x (9.3 to 9.5) the throughput of one; packed processes peak at 3: 1.8x (1.8 to"
         " 1.8)",
         "several trainings on one GPU, up to 13; with more trainings than that, several GPUs"),
        (profile(PROCESS), "3 packed processes per GPU: 1.8x (1.8 to 1.8) the throughput of one",
         "several trainings on one GPU, up to 3; with more trainings than that, several GPUs"),
        (profile(PROCESS, subject=ON_CPU, synthetic=True),
         "3 packed processes on this simulated GPU: 1.8x (1.8 to 1.8) the throughput of one (synthetic data)",
         "several trainings on one GPU, up to 3; with more trainings than that, several GPUs"),
        (profile(PROCESS, points("fused", {1: 0.3, 2: 0.5})),
         "3 packed processes per GPU: 1.8x (1.8 to 1.8) the throughput of one; fused trainings peak at 2: 0.5x (0.5 to"
         " 0.5)",
         "several trainings on one GPU, up to 3; with more trainings than that, several GPUs"),
        (profile(PROCESS[:1], FUSED), "13 fused trainings per GPU: 9.4x (9.3 to 9.5) the throughput of one",
         "several trainings on one GPU, up to 13; with more trainings than that, several GPUs"),
        (profile(PROCESS[:1], points("fused", {5: 4.0}, compiled=True)),
         "5 fused trainings per GPU, their step compiled: 4.0x (4.0 to 4.0) the throughput of one",
         "several trainings on one GPU, up to 5; with more trainings than that, several GPUs"),
        (profile(points("process", {1: 1.0, 2: 0.98, 3: 1.04})),
         "one training fills this device: 3 at once reach 1.04x (1.03 to 1.05) the throughput of one",
         "several GPUs: a second training on this one gains nothing"),
        (profile(points("process", {1: 1.0, 2: 0.5, 3: 0.4})),
         "one training fills this device: 2 at once reach 0.50x (0.49 to 0.51) the throughput of one",
         "several GPUs: a second training on this one gains nothing"),
        (profile(PROCESS[:1]), "one training on this device: no more than one at once was measured", "not known"),
        (profile(PROCESS[:1], [OUT_OF_MEMORY]), "one training on this device: memory ends with the second",
         "several GPUs: a second training has no room on this one"),
        (profile(PROCESS[:1], points("fused", {1: 1.4}, compiled=True), points("threads", {2: 1.0})),
         "one training on this device, fused, compiled: 1.4x (1.4 to 1.4) the throughput of one alone",
         "several GPUs: a second training on this one gains nothing"),
    ],
)  # fmt: skip
def test_the_verdict(measured: Profile, first: str, last: str) -> None:
    assert profile_view.verdict(measured) == [first, f"one GPU, several trainings on it, or several GPUs? {last}"]


def test_nothing_could_be_measured() -> None:
    failed = profile(
        [Point("process", 1, fault="ValueError: no")], notes=("process: 1 at once failed: ValueError: no",)
    )
    assert profile_view.verdict(failed) == [
        "nothing could be measured: process: 1 at once failed: ValueError: no",
        "one GPU, several trainings on it, or several GPUs? not known",
    ]
    out = profile([Point("process", 1, fault="out of memory")])
    assert profile_view.verdict(out)[0] == "nothing could be measured: process, 1 at once: out of memory"


def test_the_table_shows_what_there_is() -> None:
    head, first, second, third = profile_view.table(profile(PROCESS[:1], [OUT_OF_MEMORY], FUSED[:1]), 20)
    assert head.split()[0] == "way"
    assert "GPU memory" not in head
    assert "power" not in head
    assert first.split() == ["process", "1", "20", "s", "1,000", "1.00x"]
    assert second.split() == ["process", "2", "out", "of", "memory"]
    assert third.split() == ["fused", "1", "22.2", "s", "900", "0.90x", "0.89", "to", "0.91"]
    told = points("process", {1: 1.0}, host_gib=0.01, device_gib=1.25, used_gib=3.0, sm_util_pct=12.4, power_w=99.6)
    head, row = profile_view.table(profile(told), 1)
    assert head.endswith("host memory each  GPU memory each   in use    SM  power")
    assert row.endswith("10.2 MiB         1.25 GiB  3.0 GiB  12 %  100 W")


def test_the_fitted_curves() -> None:
    linear = profile(points("process", {1: 1.0, 2: 2.0, 3: 3.0}))
    assert profile_view.laws(linear) == ["process: contention not measurable, coherency not measurable (USL), no peak"]
    falling = [
        Point("mps", n, samples_per_s=1000 * n / (1 + 0.03 * (n - 1) + 0.04 * n * (n - 1)), gain=1.0)
        for n in (2, 3, 5, 8)
    ]
    assert profile_view.laws(profile(falling)) == ["mps: 3 % contention, 4 % coherency (USL), peak at 5"]
    array = [Point("fused", n, samples_per_s=100 * n / (0.9e-3 + 0.05e-3 * n), gain=1.0) for n in (1, 2, 5)]
    assert profile_view.laws(profile(array)) == ["fused: a step takes 900 µs, and 50 µs a member"]
    proportional = profile(points("fused", {1: 1.0, 2: 1.0}))
    assert profile_view.laws(proportional) == [
        "fused: a step takes 100 ms a member; a cost of its own is not measurable"
    ]
    noise = profile(points("process", {2: 2.0, 3: 0.5, 5: 0.2}))
    assert profile_view.laws(noise)[0].startswith("process: contention not measurable"), (
        "noise that falls steeply has a law too"
    )
    flat = profile([Point("fused", n, samples_per_s=n / 2e-3, gain=float(n)) for n in (1, 2, 5)])
    assert profile_view.laws(flat) == [
        "fused: a step takes 200 ms at 5 members; the cost of a member is not measurable"
    ]
    unknown = replace(SUBJECT, hyperparameters={})
    assert profile_view.laws(profile(array, subject=unknown)) == [
        "fused: a sample of each takes 9 µs, and 500 ns a member"
    ]
    assert profile_view.laws(profile(PROCESS[:2], FUSED[:1])) == []


def test_a_row_for_each_point(tmp_path: Path) -> None:
    profile_view.write_csv(
        profile(points("process", {1: 1.0}, rounds=(1.5, 2.0)), [OUT_OF_MEMORY]), tmp_path / "points.csv"
    )
    with (tmp_path / "points.csv").open() as file:
        first, second = csv.DictReader(file)
    assert (first["way"], first["n"], first["rounds"], first["fault"]) == ("process", "1", "1.5 2", "")
    assert (second["samples_per_s"], second["fault"]) == ("", "out of memory")


def test_names_tell_devices_apart() -> None:
    def on(**values: Any) -> Profile:
        return profile(PROCESS, subject=replace(SUBJECT, **values))

    assert profile_view.device_names([on(), on(device="H100")]) == ["NVIDIA A100-SXM4-40GB", "H100"]
    same = [
        on(device="A"),
        on(device="A", device_gib=80.0),
        on(device="A", device_gib=80.0, num_cpus=4),
        on(device="B"),
    ]
    assert profile_view.device_names(same) == ["A, 40 GiB", "A, 80 GiB, 8 CPUs", "A, 80 GiB, 4 CPUs", "B"]


def test_a_line_for_each_device() -> None:
    lines = profile_view.comparison(
        [profile(PROCESS, FUSED), profile(PROCESS, subject=ON_CPU, synthetic=True)], [4.0, None]
    )
    assert lines == [
        "NVIDIA A100-SXM4-40GB: 13 fused trainings: 9.4x (9.3 to 9.5) one, 33,840 epochs an hour, 8,460 per RGU (4 of"
        " them)",
        "Xeon: 3 packed processes: 1.8x (1.8 to 1.8) one, 6,480 epochs an hour, RGU not known, synthetic data",
    ]


def test_a_gain_within_noise_is_not_claimed() -> None:
    noisy = profile(PROCESS[:1], points("process", {2: 1.5, 3: 1.7}, off=0.2), points("process", {5: 0.7}, off=0.1))
    first, last = profile_view.verdict(noisy)
    assert first == (
        "2 packed processes per GPU: 1.5x (1.2 to 1.8) the throughput of one; 3 packed processes measured 1.7x (1.4 to"
        " 2.0), within noise of it"
    )
    assert "several trainings on one GPU, up to 2;" in last
    nothing = profile(PROCESS[:1], points("process", {2: 1.3, 3: 1.2}, off=0.4))
    first, last = profile_view.verdict(nothing)
    assert first == (
        "within noise: 2 at once are not shown to do more than 1; 2 packed processes measured 1.3x (0.8 to 1.8), within"
        " noise of it"
    )
    assert last.endswith(
        "not known: the spread is larger than the gain; measure on an idle machine, or with more --rounds"
    )


def test_a_point_in_doubt_is_shown_and_not_used(tmp_path: Path) -> None:
    wrong = points("fused", {13: 16.9}, doubt="its own windows measured 124,000 to 177,000")
    measured = profile(PROCESS[:1], points("fused", {8: 2.4, 21: 4.3}), wrong)
    assert profile_view.verdict(measured)[0].startswith("21 fused trainings per GPU: 4.3x (4.3 to 4.3)")
    assert profile_view.doubts(measured) == ["not used: fused, 13 at once: its own windows measured 124,000 to 177,000"]
    assert any(row.split()[:2] == ["fused", "13"] and row.split()[-1] == "?" for row in profile_view.table(measured, 1))
    assert "not measurable" not in profile_view.laws(measured)[0]
    profile_view.write_csv(measured, tmp_path / "points.csv")
    assert "its own windows" in (tmp_path / "points.csv").read_text()
    only = profile(PROCESS[:1], wrong)
    assert (
        profile_view.verdict(only)[0]
        == "one training on this device: what was measured at more than one at once is in doubt"
    )


def test_one_round_has_no_spread() -> None:
    once = profile(PROCESS[:1], [Point("process", 2, samples_per_s=1500.0, gain=1.5, rounds=(1500.0,))])
    assert profile_view.verdict(once)[0] == "2 packed processes per GPU: 1.5x (spread not known) the throughput of one"
