"""CUDA MPS in user mode: a daemon that starts, serves and leaves nothing, and the reasons where there is none."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest
import torch

from raygpu.devices import mps as module
from raygpu.devices import mps_control, nvml
from raygpu.devices.mps import Mps, NoMps, refusal, unavailable
from raygpu.devices.mps_control import Control, until
from tests.fakes import mps as fake_mps
from tests.fakes.nvml import FakeNvml


@pytest.fixture
def root() -> Iterator[Path]:
    """Short, as a socket's path has to be."""
    folder = Path(tempfile.mkdtemp(prefix="rg-", dir="/tmp"))
    yield folder
    for pid in folder.rglob("*.pid"):
        os.kill(int(pid.read_text()), signal.SIGKILL)  # the fake daemon of a test that failed, or of an undying one
    shutil.rmtree(folder)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, root: Path) -> FakeNvml:
    """One GPU, and the fake control program on PATH."""
    fake_mps.install(root / "bin")
    monkeypatch.setenv("PATH", f"{root / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setattr(module, "STOP_S", 0.3)
    return FakeNvml(["NVIDIA A100"]).install(monkeypatch)


def folder_of(root: Path) -> Path:
    return next(root.glob("0000*"))


def test_a_daemon_from_start_to_stop(fake: FakeNvml, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "10")  # of an MPS around us
    monkeypatch.setattr(module, "STOP_S", 5.0)
    with Mps.start(fake.uuids[0], root) as mps:
        folder = folder_of(root)
        assert Control(folder).servers()
        assert mps.clients() == []
        (folder / "pipe" / "clients").write_text("123\n45\n")
        assert mps.clients() == [45, 123]
        assert mps.access.clients() == [45, 123]
        environment = (folder / "pipe" / "environ").read_text().splitlines()
        assert f"CUDA_VISIBLE_DEVICES={fake.uuids[0]}" in environment
        assert not [line for line in environment if line.startswith("CUDA_MPS_ACTIVE")]
        daemon = Control(folder).daemon()
        assert daemon is not None
    assert not folder.exists()
    assert until(lambda: not Path(f"/proc/{daemon}").exists(), 5)
    assert mps.stop() is None, "once more is nothing"


def test_what_a_client_needs(fake: FakeNvml, root: Path) -> None:
    with Mps.start(fake.uuids[0], root) as mps:
        folder = folder_of(root)
        assert mps.access.environment(0.25, 4.0) == {
            "CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipe"),
            "CUDA_MPS_LOG_DIRECTORY": str(folder / "log"),
            "CUDA_VISIBLE_DEVICES": fake.uuids[0],
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50",
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=4096M",
        }
        third = mps.access.environment(1 / 3, 2.5)
        assert third["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "67"
        assert third["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=2560M"
        assert mps.access.environment(1, 16)["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "100"
        assert mps.access.environment(1 / 48, 1)
        with pytest.raises(NoMps, match="49 trainings per GPU, but MPS serves at most 48"):
            mps.access.environment(1 / 49, 1)


def test_it_ends_after_an_exception(fake: FakeNvml, root: Path) -> None:
    with pytest.raises(KeyboardInterrupt), Mps.start(fake.uuids[0], root):
        raise KeyboardInterrupt
    assert not list(root.glob("0000*"))


@pytest.mark.parametrize(
    ("misbehaviour", "within_s", "line"),
    [
        ("refuse", 5, "nvidia-cuda-mps-control -d refused: Insufficient permission to start the daemon"),
        ("hang", 0.3, "nvidia-cuda-mps-control -d did not come back within 0.3 s"),
        ("silent", 3.0, "the MPS daemon does not answer; its log: [control] Starting on GPU-0000-aaaa"),
        (
            "no-server",
            3.0,
            "the MPS daemon runs, but its server does not start; its log: [control] Starting on GPU-0000-aaaa | "
            "[server] Failed to start: not permitted",
        ),
    ],
)
def test_a_daemon_that_does_not_start(
    fake: FakeNvml, root: Path, monkeypatch: pytest.MonkeyPatch, misbehaviour: str, within_s: float, line: str
) -> None:
    monkeypatch.setenv("FAKE_MPS", misbehaviour)
    with pytest.raises(NoMps) as caught:
        Mps.start(fake.uuids[0], root, within_s)
    assert str(caught.value) == f"its start failed: {line}"
    assert unavailable(fake.uuids[0], root) is None, "only a start shows it"
    assert not list(root.glob("0000*")), "nothing is left"


def test_a_daemon_that_does_not_hear_quit(fake: FakeNvml, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_MPS", "deaf")
    mps = Mps.start(fake.uuids[0], root)
    assert mps.stop() is None, "it is ended by SIGTERM"
    assert not list(root.glob("0000*"))


def test_a_daemon_that_does_not_end(fake: FakeNvml, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_MPS", "undying")
    mps = Mps.start(fake.uuids[0], root)
    daemon = Control(folder_of(root)).daemon()
    assert mps.stop() == f"the MPS daemon with pid {daemon} does not end"
    with pytest.raises(NoMps, match=f"pid {daemon} does not end"):
        Mps.start(fake.uuids[0], root)


OWNER = """
import os, sys, time
from pathlib import Path
import pytest
from raygpu.devices.mps import Mps
from tests.fakes.nvml import FakeNvml
fake = FakeNvml(["NVIDIA A100"]).install(pytest.MonkeyPatch())
mps = Mps.start(fake.uuids[0], Path(sys.argv[1]))
print("up", flush=True)
if sys.argv[2] == "wait":
    time.sleep(600)
elif sys.argv[2] == "fork":
    if os.fork() == 0:
        sys.exit()  # its atexit must not end its parent's daemon
    os.wait()
    assert mps.clients() == []
"""


def owner(root: Path, then: str) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", OWNER, str(root), then], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    return process


@pytest.mark.parametrize("then", ["leave", "fork"])
def test_it_ends_with_the_process_that_started_it(fake: FakeNvml, root: Path, then: str) -> None:
    assert owner(root, then).wait(30) == 0
    assert not list(root.glob("0000*"))


def test_another_raygpu_is_left_alone(fake: FakeNvml, root: Path) -> None:
    other = owner(root, "wait")
    try:
        with pytest.raises(NoMps, match="another raygpu of yours runs MPS on GPU-0000-aaaa"):
            Mps.start(fake.uuids[0], root)
        assert Control(folder_of(root)).daemon() is not None
    finally:
        other.kill()
        other.wait()


def test_the_daemon_of_a_killed_raygpu_is_ended_first(fake: FakeNvml, root: Path) -> None:
    other = owner(root, "wait")
    other.kill()
    other.wait()
    stale = Control(folder_of(root)).daemon()
    assert stale is not None
    (folder_of(root) / "pipe" / "clients").write_text("123\n")
    with pytest.raises(NoMps, match="an earlier raygpu's MPS still serves processes: end 123"):
        Mps.start(fake.uuids[0], root)
    assert Control(folder_of(root)).daemon() == stale
    assert unavailable(fake.uuids[0], root) == "an earlier raygpu's MPS still serves processes: end 123"
    (folder_of(root) / "pipe" / "clients").unlink()
    with Mps.start(fake.uuids[0], root):
        assert Control(folder_of(root)).daemon() not in (None, stale)
        assert not Path(f"/proc/{stale}").exists() or Path(f"/proc/{stale}/cmdline").read_bytes() == b""


def test_whether_it_can_start_is_known_without_trying(fake: FakeNvml, root: Path) -> None:
    uuid = fake.uuids[0]
    assert unavailable(uuid, root) is None
    assert not list(root.glob("0000*"))
    other = owner(root, "wait")
    try:
        assert unavailable(uuid, root) == f"another raygpu of yours runs MPS on {uuid}"
    finally:
        other.kill()
        other.wait()
    assert unavailable(uuid, root) is None, "the daemon of a killed raygpu is ended at the start"
    fake.devices[0].compute_mode = pynvml.NVML_COMPUTEMODE_PROHIBITED
    assert "prohibited" in str(unavailable(uuid, root))


def test_where_there_is_none(fake: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    device, uuid = fake.devices[0], fake.uuids[0]
    assert refusal(uuid) is None
    device.compute_mode = pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS
    assert refusal(uuid) is None, "the mode that NVIDIA advises for MPS"
    device.compute_mode = pynvml.NVML_COMPUTEMODE_PROHIBITED
    assert refusal(uuid) == "NVIDIA A100 is in compute mode prohibited: no process may compute on it"
    device.mig = pynvml.NVML_DEVICE_MIG_ENABLE
    assert refusal(uuid) == "NVIDIA A100 is cut into MIG instances; MPS is used on whole GPUs"
    device.mig, device.compute_mode, device.capability = None, pynvml.NVML_COMPUTEMODE_DEFAULT, (6, 0)
    assert "older than Volta" in str(refusal(uuid))
    assert refusal("GPU-gone") == "GPU-gone is no GPU of this machine"
    monkeypatch.setattr(module, "_kernel", lambda: "5.15.167.4-microsoft-standard-WSL2")
    assert refusal(uuid) == "WSL2 has no CUDA MPS"
    monkeypatch.setattr(module, "program", lambda: None)
    assert "nvidia-cuda-mps-control is not installed" in str(refusal(uuid))


def test_places_that_will_not_do(fake: FakeNvml, root: Path) -> None:
    with pytest.raises(NoMps, match="too long for a socket"):
        Mps.start(fake.uuids[0], root / ("a" * 90))
    shared = root / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(NoMps, match="open to others"):
        Mps.start(fake.uuids[0], shared)
    (root / "file").touch()
    with pytest.raises(NoMps, match="cannot be made"):
        Mps.start(fake.uuids[0], root / "file")
    for place in (root / ("a" * 90), shared, root / "file"):
        assert unavailable(fake.uuids[0], place) is not None


def test_a_full_disk_is_seen_without_a_start(fake: FakeNvml, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: object) -> None:
        """Stand in for a disk without space."""
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    assert unavailable(fake.uuids[0], root) == f"{root} cannot be used: OSError: [Errno 28] No space left on device"


ON_GPU = """
import os, sys, torch
held = torch.ones(64 * 2**20, device="cuda")
print(os.getpid(), flush=True)
sys.stdin.readline()
try:
    torch.empty(2 * 2**30, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError:
    print("capped", float(held.sum()))
"""


@pytest.mark.gpu
@pytest.mark.skipif(
    not torch.cuda.is_available() or mps_control.program() is None,
    reason="no NVIDIA GPU that torch can use, or no nvidia-cuda-mps-control",
)
def test_two_clients_of_a_real_daemon() -> None:
    uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
    if refusal(uuid) is not None:
        pytest.skip(str(refusal(uuid)))
    try:
        mps = Mps.start(uuid)
    except NoMps as reason:
        pytest.skip(f"no MPS on this machine: {reason}")
    with mps:
        environment = os.environ | mps.access.environment(0.5, 1.5)
        command = [sys.executable, "-c", ON_GPU]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        clients = [subprocess.Popen(command, env=environment, **pipes) for _ in range(2)]
        pids = [int(client.stdout.readline()) for client in clients]
        assert set(pids) <= set(mps.clients())
        assert nvml.process_memory(uuid) is not None
        for client in clients:
            output, _ = client.communicate("\n", timeout=60)
            assert output.startswith("capped")
        deadline = time.monotonic() + 60
        while mps.clients() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert mps.clients() == []
    assert not Path(mps.access.directories["CUDA_MPS_PIPE_DIRECTORY"]).exists()


def test_a_folder_whose_disk_takes_no_more_is_no_mps(
    fake: FakeNvml, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        if path != root:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(NoMps, match=r"cannot be used: OSError: .*No space left on device"):
        Mps.start(fake.uuids[0], root)
