"""The command as a person types it, on machines with GPUs that a test makes up, and on this one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pynvml
import pytest

from raygpu import gpus
from raygpu.devices import host
from raygpu.planning.scaling_laws import Affine
from raygpu.planning.training_need import Need
from raygpu.records import activity
from raygpu.records.activity import Activity
from raygpu.workflow import profile_lookup
from raygpu.workflow.gpu_rooms import WantedTraining
from raygpu.workflow.gpu_status import emptiest, machine_status, pick, take, taken_by_picks, visible_gpus
from tests.fakes.nvml import FakeInstance, FakeNvml


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """An idle L40S, an A100 that this process trains on, and a Hopper that another process uses."""
    fake = FakeNvml(["NVIDIA L40S", "NVIDIA A100-SXM4-40GB", "NVIDIA H100 80GB HBM3"])
    fake.devices[1].processes = {os.getpid(): 2.5}
    fake.devices[2].processes = {2**22 + 1: None}  # no process has such a number
    fake.devices[2].clock_reasons = 0x4
    fake.devices[2].gpm = {pynvml.NVML_GPM_METRIC_SM_UTIL: 31.0, pynvml.NVML_GPM_METRIC_SM_OCCUPANCY: 12.0}
    return fake.install(monkeypatch)


def test_a_table_with_the_processes_under_each_gpu(fake: FakeNvml, capsys: pytest.CaptureFixture[str]) -> None:
    activity.note(Activity("digits-1", tuple(f"t{i:04}" for i in range(5)), 0.25, 12345.6))
    assert gpus.main(["--once"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].split()[:3] == ["GPU", "model", "GiB"]
    a100 = ["1", "A100-SXM4-40GB", "2.0", "of", "16.0", "41%", "-", "-", "-", "150", "61", "1410", "3.5"]
    assert lines[2].split() == a100
    assert lines[3].startswith(f"     {os.getpid()} ")
    assert "2.5 GiB  digits-1: t0000, t0001, t0002 ... (5 trials)" in lines[3]
    assert lines[4] == "     room for - more of digits-1: its sweep has no profile of it"
    assert lines[5].split()[0] == "2"
    assert lines[5].split()[7:11] == ["42%", "31%", "12%", "-"]
    assert lines[6:8] == ["     its clock is lowered by power limit", f"     {2**22 + 1} -  -"]
    assert fake.open_samples == 0


def need_on(device: str, device_gib: float) -> Need:
    return Need("process", device, device_gib, 3, "throughput peaks at 3", None, Affine(0.0, 3.0))


def test_room_for_more_of_a_running_sweep(fake: FakeNvml, capsys: pytest.CaptureFixture[str]) -> None:
    fake.devices[1].name = fake.devices[0].name
    activity.note(Activity("digits-1", ("t0001",), 0.25, None, need_on("NVIDIA L40S", 16.0)))
    assert gpus.main(["--once"]) == 0
    rooms = [line.strip() for line in capsys.readouterr().out.splitlines() if "room" in line]
    assert rooms == [
        "room for 3 more of digits-1: 3 still gain, 4 fit by memory (throughput pea…",
        "room for 2 more of digits-1: 2 still gain, 4 fit by memory (throughput pea…",
    ], "the H100 is another device"
    fake.devices[1].used_gib = 10.0
    assert gpus.main(["--json"]) == 0
    (node,) = json.loads(capsys.readouterr().out)
    (room,) = node["gpus"][1]["rooms"]
    assert room == {
        "name": "digits-1",
        "room": {
            "more": 1,
            "by_memory": 1,
            "by_gain": 2,
            "bound": "memory",
            "reason": "3.00 GiB each, 5.8 GiB of device memory free",
        },
    }


def test_room_for_a_training_that_is_named(
    fake: FakeNvml, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = WantedTraining("mine.toml", (need_on("NVIDIA L40S", 16.0),), "raygpu pack mine.toml measures it there")
    monkeypatch.setattr(profile_lookup, "wanted_training", lambda path: wanted)
    assert gpus.main(["--once", "--for", "mine.toml"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].startswith("     room for 3 more of mine.toml: 3 still gain, 4 fit by memory")
    assert lines[5].startswith("     room for - more of mine.toml: not measured on this device")
    assert " ".join(" ".join(lines[-2:]).split()) == (
        "mine.toml was not measured on every device; raygpu pack mine.toml measures it there"
    ), "the whole of it, if need be in two lines"


def test_json(fake: FakeNvml, capsys: pytest.CaptureFixture[str]) -> None:
    activity.note(Activity("digits-1", ("t0001",), 0.25, 12345.6))
    assert gpus.main(["--json"]) == 0
    (node,) = json.loads(capsys.readouterr().out)
    assert (node["address"], node["fault"]) == (None, None)
    assert [each["gpu"]["index"] for each in node["gpus"]] == [0, 1, 2]
    (process,) = node["gpus"][1]["processes"]
    assert (process["pid"], process["activity"]["trials"]) == (os.getpid(), ["t0001"])
    assert node["elsewhere"] == []


def test_without_a_gpu_the_trainings_are_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    FakeNvml([], unsupported={"nvmlInit"}).install(monkeypatch)
    need = Need("process", host.cpu_name(), None, 3, "throughput peaks at 3", Affine(0.0, 1e-6), None)
    activity.note(Activity("digits-1", ("t0001",), 0.5, None, need))
    assert gpus.main([]) == 0
    first, second, third, fourth = capsys.readouterr().out.splitlines()
    assert (first, second) == ("no NVIDIA GPU here", "on the simulated GPU:")
    assert third.startswith(f"     {os.getpid()} ")
    assert third.endswith("digits-1: t0001, share 0.50")
    assert fourth.startswith("     room for 2 more of digits-1: 2 still gain, ")


def test_a_script_is_its_worker_s_training(fake: FakeNvml, capsys: pytest.CaptureFixture[str]) -> None:
    activity.note(Activity("digits-1", ("t0001",), 0.25, None))
    with subprocess.Popen(["sh", "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE, text=True) as script:
        assert script.stdout is not None
        program = int(script.stdout.readline())
        fake.devices[1].processes = {program: 2.5}
        try:
            assert gpus.main(["--once"]) == 0
        finally:
            os.kill(program, signal.SIGKILL)
    lines = capsys.readouterr().out.splitlines()
    assert f"     {program} " in lines[3]
    assert "digits-1: t0001" in lines[3]
    assert "on none of these:" not in lines


def test_visible_devices_choose(fake: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [gpu.index for gpu in visible_gpus(f"{fake.uuids[2]},0")] == [2, 0]
    assert visible_gpus("") == []


def cut(fake: FakeNvml) -> None:
    """Cut the second GPU into two MIG instances, of which the first is in use."""
    fake.devices[1].mig = pynvml.NVML_DEVICE_MIG_ENABLE
    fake.devices[1].processes = {}
    fake.devices[1].instances = [FakeInstance("MIG-aaaa", 7, processes={10: 1.5}), FakeInstance("MIG-bbbb", 8)]


def test_mig_instances_are_devices(
    fake: FakeNvml, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cut(fake)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert gpus.main(["--once"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split()[0] for line in lines[1:]] == ["1", "1:0", "10", "1:1"]
    assert lines[4].split()[-8:] == ["-"] * 8, "use, power, temperature, clock and worth are none of an instance's"
    assert "0.5 of 4.8" in lines[4]
    assert "MIG 1g.5gb " in lines[4], "of a long name the end is shown"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", f"MIG-{fake.uuids[1]}/8/0")
    assert gpus.main(["--once"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]] == ["1:1"]


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
    places = dict(zip(fake.uuids, range(len(fake.uuids)), strict=True)) | {"MIG-aaaa": 10, "MIG-bbbb": 11}
    return words, [places[uuid] for uuid in environment["CUDA_VISIBLE_DEVICES"].split(",")]


def test_an_instance_is_picked_alone_and_its_gpu_never(
    fake: FakeNvml, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cut(fake)
    fake.devices[0].processes = {1: 1.0}
    assert picked(fake, monkeypatch, "--pick", "1", "--", "echo")[1] == [11]
    assert "on GPU 1:1 (NVIDIA A100-SXM4-40GB MIG 1g.5gb)" in capsys.readouterr().err
    assert picked(fake, monkeypatch, "--pick", "2", "--", "echo")[1] == [2, 0]
    assert gpus.main(["--pick", "3", "--", "echo"]) == 2
    assert "whole GPUs here: 2; of MIG instances CUDA shows one alone" in capsys.readouterr().err


def test_a_gpu_on_which_nothing_may_compute_is_not_picked(fake: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.devices[0].compute_mode = pynvml.NVML_COMPUTEMODE_PROHIBITED
    assert picked(fake, monkeypatch, "--pick", "1", "--", "echo")[1] == [2]


def test_the_emptiest_gpu_is_picked(fake: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    words, seen = picked(fake, monkeypatch, "--pick", "1", "--", "echo", "--lr", "0.1")
    assert (words, seen) == (["echo", "--lr", "0.1"], [0])


def test_gpus_without_processes_come_first_then_the_least_used(fake: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.devices[0].processes = {1: 1.0, 2: 1.0}
    assert picked(fake, monkeypatch, "--pick", "2", "--", "echo")[1] == [2, 1]


def test_a_gpu_that_another_pick_has_taken_comes_last(fake: FakeNvml, tmp_path: Path) -> None:
    found = visible_gpus(None)
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
        chosen = emptiest(machine_status(found, 0.0), 3, taken_by_picks(found))
        assert [gpu.index for gpu in chosen] == [2, 1, 0]
        other.communicate("\n")
    assert taken_by_picks(found) == []


def test_those_that_pick_at_the_same_moment_get_gpus_of_their_own(fake: FakeNvml) -> None:
    status, together = machine_status(visible_gpus(None), 0.0), threading.Barrier(3)

    def chosen() -> str:
        together.wait()
        [gpu] = pick(status, 1)
        return gpu.uuid

    with ThreadPoolExecutor(3) as threads:
        picks = [threads.submit(chosen) for _ in range(3)]
        assert sorted(each.result() for each in picks) == sorted(fake.uuids)


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
        assert taken_by_picks(visible_gpus(None)) == [fake.uuids[0]]
        program.communicate()
    take(visible_gpus(None)[:1])


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["conf/sweep/digits.toml"], "read 'conf/sweep/digits.toml'; allowed: --once"),
        (["--watch", "0"], "--watch: read '0'; allowed: seconds, from 0.1 to 86400"),
        (["--watch", "nan"], "--watch: read 'nan'"),
        (["--watch", "5", "--once"], "--once, --watch: give one of them"),
        (["--pick", "0", "--", "echo"], "--pick: read '0'; allowed: a whole number from 1"),
        (["--pick", "9", "--", "echo"], "--pick: read 9; this machine shows 3 GPUs that compute"),
        (["--pick", "1"], "--pick: no command; write it after two dashes"),
        (["--pick", "1", "--", "no-such-program"], "--pick: 'no-such-program' is no program that can be run"),
        (["--", "echo"], "--: a command is run with --pick only"),
        (["--pick", "1", "--address", "auto", "--", "echo"], "--pick, --address: give one of them"),
        (["--json", "--watch", "5"], "--json, --watch: give one of them"),
        (["--address", "auto"], "--address: read auto; no cluster of `ray start` answers on this machine"),
        (["--address", "ray://head:10001"], "--address: read 'ray://head:10001'; allowed: local, auto, or HOST:PORT"),
        (["--for", "no-such-file.toml"], "no-such-file.toml: no such file"),
    ],
)
def test_bad_input(fake: FakeNvml, argv: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpus.main(argv) == 2
    err = capsys.readouterr().err
    assert line in err
    assert len(err.splitlines()) == 1
