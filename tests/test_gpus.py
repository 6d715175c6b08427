"""The command as a person types it, on machines with GPUs that a test makes up, and on this one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pynvml
import pytest

from raygpu import gpus
from raygpu.records import activity
from raygpu.records.activity import Activity
from raygpu.workflow.gpu_status import machine_status, take, taken_by_picks
from tests.fakes.nvml import FakeNvml


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """An idle L40S, an A100 that this process trains on, and a Hopper that another process uses."""
    fake = FakeNvml(["NVIDIA L40S", "NVIDIA A100-SXM4-40GB", "NVIDIA H100 80GB HBM3"])
    fake.devices[1].processes = {os.getpid(): 2.5}
    fake.devices[2].processes = {2**22 + 1: None}  # no process has such a number
    fake.devices[2].clock_reasons = 0x4
    fake.devices[2].gpm = {pynvml.NVML_GPM_METRIC_SM_UTIL: 31.0, pynvml.NVML_GPM_METRIC_SM_OCCUPANCY: 12.0}
    return fake.install(monkeypatch)


def test_a_table_with_the_processes_of_each_gpu(fake: FakeNvml, capsys: pytest.CaptureFixture[str]) -> None:
    activity.note(Activity("digits-1", tuple(f"t{i:04}" for i in range(5)), 0.25, 12345.6))
    assert gpus.main(["--once"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].split()[:3] == ["GPU", "model", "GiB"]
    assert lines[2].split() == [
        "1",
        "A100-SXM4-40GB",
        "2.0",
        "of",
        "16.0",
        "41%",
        "-",
        "-",
        "-",
        "150",
        "61",
        "1410",
        "3.5",
    ]
    assert lines[3].split()[7:11] == ["42%", "31%", "12%", "-"]
    assert f"GPU 1: {os.getpid()} " in lines[4]
    assert "2.5 GiB  digits-1: t0000, t0001, t0002 ... (5 trials)" in lines[4]
    assert lines[5] == "GPU 2: its clock is lowered by power limit"
    assert lines[6] == f"GPU 2: {2**22 + 1} -  -"
    assert fake.open_samples == 0


def test_json(fake: FakeNvml, capsys: pytest.CaptureFixture[str]) -> None:
    activity.note(Activity("digits-1", ("t0001",), 0.25, 12345.6))
    assert gpus.main(["--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["gpu"]["index"] for each in found["gpus"]] == [0, 1, 2]
    (process,) = found["gpus"][1]["processes"]
    assert (process["pid"], process["activity"]["trials"]) == (os.getpid(), ["t0001"])
    assert found["elsewhere"] == []


def test_without_a_gpu_the_trainings_are_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    FakeNvml([], unsupported={"nvmlInit"}).install(monkeypatch)
    activity.note(Activity("digits-1", ("t0001",), 0.5, None))
    assert gpus.main([]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == "no NVIDIA GPU here"
    assert second.startswith(f"simulated GPU: {os.getpid()} ")
    assert second.endswith("digits-1: t0001, share 0.50")


def test_visible_devices_choose(fake: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f"{fake.uuids[2]},0")
    assert [gpu.index for gpu in gpus._visible()] == [2, 0]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert gpus._visible() == []


def picked(fake: FakeNvml, monkeypatch: pytest.MonkeyPatch, *flags: str) -> tuple[list[str], list[int]]:
    """The command that would have replaced this process, and the GPUs that it would see."""
    became = []

    def become(file: str, words: list[str], environment: dict[str, str]) -> None:
        became.append((words, environment))
        raise SystemExit  # execvpe does not return

    monkeypatch.setattr(os, "execvpe", become)
    with pytest.raises(SystemExit):
        gpus.main([*flags])
    ((words, environment),) = became
    return words, [fake.uuids.index(uuid) for uuid in environment["CUDA_VISIBLE_DEVICES"].split(",")]


def test_the_emptiest_gpu_is_picked(fake: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    words, seen = picked(fake, monkeypatch, "--pick", "1", "--", "echo", "--lr", "0.1")
    assert (words, seen) == (["echo", "--lr", "0.1"], [0])


def test_gpus_without_processes_come_first_then_the_least_used(fake: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.devices[0].processes = {1: 1.0, 2: 1.0}
    assert picked(fake, monkeypatch, "--pick", "2", "--", "echo")[1] == [2, 1]


def test_a_gpu_that_another_pick_has_taken_comes_last(fake: FakeNvml, tmp_path: Path) -> None:
    found = gpus._visible()
    program = (
        "import fcntl, os, sys; f = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT); fcntl.flock(f, fcntl.LOCK_EX);"
        " print('locked', flush=True); input()"
    )
    assert taken_by_picks(found) == []
    path = next(tmp_path.glob(f"raygpu-*/pick-{found[0].uuid}"))
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        assert taken_by_picks(found) == [found[0].uuid]
        chosen = gpus.emptiest(machine_status(found, 0.0), 3, taken_by_picks(found))
        assert [gpu.index for gpu in chosen] == [2, 1, 0]
        other.communicate("\n")
    assert taken_by_picks(found) == []


def test_what_is_taken_stays_taken_by_the_program_that_follows(fake: FakeNvml, tmp_path: Path) -> None:
    code = (
        "import os, sys, tempfile; tempfile.tempdir = sys.argv[1]\n"
        "from raygpu.devices.nvml import Gpu\nfrom raygpu.workflow.gpu_status import take\n"
        "take([Gpu(0, sys.argv[2], 'x', 1.0)]); os.execvp('cat', ['cat'])"
    )
    root = str(Path(__file__).parents[1])
    command = [sys.executable, "-c", code, str(tmp_path), fake.uuids[0]]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        program.stdin.write("here\n")
        program.stdin.flush()
        assert program.stdout.readline() == "here\n"  # it is `cat` now
        assert taken_by_picks(gpus._visible()) == [fake.uuids[0]]
        program.communicate()
    take(gpus._visible()[:1])


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["conf/sweep/digits.toml"], "read 'conf/sweep/digits.toml'; allowed: --once"),
        (["--watch", "0"], "--watch: read '0'; allowed: seconds, from 0.1 to 86400"),
        (["--watch", "nan"], "--watch: read 'nan'"),
        (["--watch", "5", "--once"], "--once, --watch: give one of them"),
        (["--pick", "0", "--", "echo"], "--pick: read '0'; allowed: a whole number from 1"),
        (["--pick", "9", "--", "echo"], "--pick: read 9; this machine shows 3 GPUs"),
        (["--pick", "1"], "--pick: no command; write it after two dashes"),
        (["--pick", "1", "--", "no-such-program"], "--pick: 'no-such-program' is no program that can be run"),
        (["--", "echo"], "--: a command is run with --pick only"),
    ],
)
def test_bad_input(fake: FakeNvml, argv: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpus.main(argv) == 2
    err = capsys.readouterr().err
    assert line in err
    assert len(err.splitlines()) == 1
