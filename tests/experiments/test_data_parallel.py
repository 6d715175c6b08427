"""The study of data parallelism: its configuration, its table and verdict, and equal gradients in every way."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.benchmarks import record
from experiments.studies import data_parallel
from experiments.studies.data_parallel import Config, Row, left_out, load, reference, table, verdict
from raygpu.errors import BadInput
from tests.ranks import StayingGroup


def row(method: str, devices: int, *seconds: float, batch: int = 64) -> Row:
    return Row(method, devices, batch, seconds, 10, 0.0, None)


ONE, TWO = row("accumulate", 1, 2.0, 2.1, 2.0), row("ddp", 2, 1.25, 1.3, 1.25)
KERAS = [
    row("mirrored", 1, 1.0, 1.0, 1.1),
    row("mirrored", 2, 1.3, 0.9, 1.2),
    row("mirrored", 1, 9.0, 9.0, 9.0, batch=60),
]


def test_a_method_is_compared_with_one_device_of_its_framework_and_batch() -> None:
    rows = [ONE, TWO, *KERAS]
    assert reference(rows, TWO) is ONE
    assert reference(rows, KERAS[1]) is KERAS[0]
    assert TWO.samples_per_s == 64 * 10 / 1.25
    lines = table(rows)
    assert "1.60x" in lines[2]
    assert "80 %" in lines[2]
    assert len({len(line) for line in lines}) == 1


def test_the_verdict_is_the_fastest_that_is_clearly_faster() -> None:
    assert verdict([ONE, TWO, *KERAS], 64).startswith("verdict: ddp on 2 devices is 1.6")
    assert "80 % efficient" in verdict([ONE, TWO], 64)
    assert verdict(KERAS, 64) == "verdict: one device: nothing is shown to be faster at 64 samples a step"


def test_the_file_is_sound_and_its_mirrored_batch_is_divisible() -> None:
    config = load(data_parallel.DEFAULT, {})
    assert all(config.mirrored_batch % number == 0 for number in config.mirrored_devices)
    assert Config(global_batch=100, mirrored_devices=(1, 8), devices=(1, 2)).mirrored_batch == 96
    assert load(data_parallel.DEFAULT, {"devices": "1,2", "tracking.enabled": "false"}).devices == (1, 2)


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--global-batch", "100", "--devices", "1,3"], "global_batch: read 100; 3 devices do not divide it"),
        (["--devices", "2,4"], "devices: read (2, 4); 1 is wanted too"),
        (["--devices", "1,x"], "devices.1: read 'x'"),
        (["--rounds", "1"], "rounds: read '1'"),
        (["none.toml"], "none.toml: no such file"),
        (["torn.toml"], "torn.toml: not valid TOML"),
        (["other.toml"], "other.toml: lr: read 0.1"),
    ],
)
def test_faults_are_a_line(
    flags: list[str], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("torn.toml").write_text("devices = [1,")
    Path("other.toml").write_text("lr = 0.1")
    assert data_parallel.main(flags) == 2
    err = capsys.readouterr().err
    assert line in err
    assert err.count("\n") == 1


def test_more_devices_than_gpus_are_refused_and_what_means_nothing_is_told() -> None:
    with pytest.raises(BadInput, match="devices: read 4; this machine has 2 GPUs"):
        left_out(Config(), 2)
    assert left_out(Config(), 8) == []
    assert any("torch.nn.DataParallel needs two GPUs" in line for line in left_out(Config(), 0))


@pytest.mark.slow
def test_gradients_are_those_of_one_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tensorflow")
    monkeypatch.setattr(record, "EXPERIMENTS", tmp_path)
    (tmp_path / "studies").mkdir()
    flags = ["--devices", "1,2", "--mirrored-devices", "1,2", "--hidden", "16", "--global-batch", "32"]
    flags += ["--iterations", "2", "--rounds", "2", "--tracking.enabled", "false", "--runs-dir", str(tmp_path / "runs")]
    kept: list[list[Row]] = []
    measured = data_parallel.measure

    def measure(*arguments: object) -> list[Row]:
        kept.append(measured(*arguments))  # type: ignore[arg-type]
        return kept[0]

    monkeypatch.setattr(data_parallel, "measure", measure)
    monkeypatch.setattr(data_parallel, "Group", StayingGroup)
    assert data_parallel.main(flags) == 0
    assert "verdict: " in capsys.readouterr().out
    (rows,) = kept
    cases = [("accumulate", 1), ("ddp", 1), ("ddp", 2), ("fsdp", 1), ("fsdp", 2), ("mirrored", 1), ("mirrored", 2)]
    assert [(each.method, each.devices) for each in rows] == cases
    assert all(each.difference < 1e-5 for each in rows)
    (folder,) = (tmp_path / "runs").iterdir()
    assert {path.name for path in folder.iterdir()} == {"data_parallel.csv", "data_parallel.png", "summary.json"}
    assert len(list((tmp_path / "studies" / "records").glob("*-data_parallel.*"))) == 2
