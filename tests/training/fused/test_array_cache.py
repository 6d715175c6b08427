"""A step that an earlier array left is loaded and not compiled; nothing is used that differs from the eager step."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
import torch

import raygpu
from raygpu.config.source import Source
from raygpu.planning.array_tiles import compiling
from raygpu.records.array_store import ArrayStore
from raygpu.search.trials import Trial
from raygpu.training.base import NotAsAlone, Settings
from raygpu.training.fused import array_cache, audit, compile_process, width
from raygpu.training.fused.array_cache import ArrayCache
from raygpu.training.fused.array_key import array_key
from raygpu.training.fused.compile_process import CompileRequest, compile_and_keep
from raygpu.training.fused.compiled_step import require_loadable
from raygpu.training.fused.model_array import TorchArray
from raygpu.training.fused.width import settle, take_compiled
from raygpu.training.torch.experiment import TorchExperiment
from tests.models import MODELS, Mlp

SOURCE = Source("torch", "tests.models:Mlp", str(Path(__file__).parents[3]))
COUNT = 9
"""Members, for which a step of 10 is compiled."""


def array(count: int = COUNT, epochs: int = 4, threads: int = 1, **changed: Any) -> TorchArray:
    shape = {**MODELS["mlp"][1], **changed}
    trials = [Trial(f"t{i:04d}", i + 3, {**shape, "lr": 0.01 * (i + 1), "momentum": 0.5}) for i in range(count)]
    settings = Settings(epochs, threads, "float32", Path())
    return TorchArray(Mlp(), Mlp().data(), trials, settings, device=torch.device("cpu"))


def kept(own: TorchArray, folder: Path) -> ArrayCache:
    return ArrayCache(ArrayStore(folder), own, SOURCE, os.environ)


class Ended:
    """Process that has compiled already."""

    def poll(self) -> int:
        return 0


@pytest.fixture
def compilations(compiled: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Widths that are compiled: here and at once, by copying the step that was compiled first. Any training repays
    it."""
    found: list[int] = []

    def copied(request: CompileRequest, code: object, part: Path) -> None:
        assert request.width == 10
        shutil.copy(program(compiled), part)

    monkeypatch.setattr(compile_process, "_compile", copied)

    def start(request: CompileRequest, environment: Mapping[str, str]) -> Ended:
        found.append(request.width)
        compile_and_keep(request)
        return Ended()

    monkeypatch.setattr(array_cache, "start", start)
    monkeypatch.setattr(width, "load_repays", lambda eager_s: True)
    monkeypatch.setattr(width, "compiling", lambda *_, **__: "beside")
    monkeypatch.setattr(width.Affine, "at", lambda cost, width: 1e9)  # whatever the machine is doing meanwhile
    return found


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store in which a first array has left its step and its widths."""
    folder = tmp_path_factory.mktemp("kept") / "arrays"
    store = ArrayStore(folder)
    assert store.is_private()
    own = array()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(array_cache, "start", lambda request, environment: compile_and_keep(request) or Ended())
        assert kept(own, folder).request(10) is None
    kept(own, folder).keep_widths({4: 0.001, 8: 0.0015, COUNT: 0.0016}, {4: 1000, 8: 1100, COUNT: 1150})
    return folder


@pytest.fixture
def folder(compiled: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "arrays"
    shutil.copytree(compiled, copy)
    copy.chmod(0o700)
    return copy


def program(folder: Path) -> Path:
    (path,) = folder.glob("*.pt2")
    return path


def finished(own: TorchArray) -> dict[str, torch.Tensor]:
    while own.run_epoch() is not None:
        pass
    return {f"{t.trial_id} {n}": p for t in own.trials for n, p in own.member_state(t.trial_id)["model"].items()}


def test_the_second_array_loads_and_equals_an_uncompiled_one(folder: Path, compilations: list[int]) -> None:
    own = array()
    lines = settle(own, kept=kept(own, folder))
    assert "all 9 trials train at once (kept from " in lines[0]
    assert "step compiled on " in lines[1]
    assert "10 trials at once" in lines[1]
    assert [tile.width for tile in own.tiles] == [10]
    assert compilations == []
    expected = finished(array())
    for name, tensor in finished(own).items():
        assert (tensor - expected[name]).norm() <= 1e-4 * expected[name].norm()


def test_an_array_of_another_size_uses_the_same_step(folder: Path, compilations: list[int]) -> None:
    own = array(10)
    lines = settle(own, kept=kept(own, folder))
    assert "step compiled on " in lines[1]
    assert compilations == []


def test_the_first_array_steps_before_its_step_is_there(tmp_path: Path, compilations: list[int]) -> None:
    own = array()
    left = kept(own, tmp_path / "arrays")
    lines = settle(own, kept=left)
    assert "measured" in lines[0]
    assert "is being compiled in the background" in lines[1]
    assert own.compiled_s == {}
    own.run_epoch()
    (line,) = take_compiled(own, left)
    assert "10 trials at once" in line
    assert compilations == [10]
    expected = finished(array())
    for name, tensor in finished(own).items():
        assert (tensor - expected[name]).norm() <= 1e-4 * expected[name].norm()


def test_a_sweep_of_short_arrays_compiles_once_they_add_up(
    tmp_path: Path, compilations: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, bool]] = []
    monkeypatch.setattr(array_cache, "start", lambda request, _: asked.append((request.width, request.urgent)))
    monkeypatch.setattr(array_cache, "_postponed_s", {})
    monkeypatch.setattr(array_cache, "_waiting", set())
    monkeypatch.setattr(width, "compiling", compiling)
    monkeypatch.setattr(width, "_nothing_compiled", lambda: False)
    step_s = 15.0 / (4 * array().steps_per_epoch)  # 15 s of training without a compiled step
    monkeypatch.setattr(width, "_known_widths", lambda *_: ({COUNT: step_s}, 10, "measured"))
    lines = []
    for _ in range(2):
        own = array()
        lines += settle(own, kept=kept(own, tmp_path / "arrays"))[1:]
    assert asked == [(10, False), (10, True)]
    assert lines == [
        "step of 10 trials at once is compiled once this worker has ended, for later sweeps",
        "step of 10 trials at once is being compiled in the background, and for later sweeps",
    ]


def test_a_file_that_ends_the_process_that_loads_it_is_told(compiled: Path, tmp_path: Path) -> None:
    """As one does that has a second copy of the C++ library in it."""
    code, library, ending = (tmp_path / name for name in ("ends.c", "ends.so", "ending.pt2"))
    code.write_text("#include <stdlib.h>\n__attribute__((constructor)) static void end(void) { abort(); }\n")
    subprocess.run(["gcc", "-shared", "-fPIC", code, "-o", library], check=True)
    with ZipFile(program(compiled)) as package, ZipFile(ending, "w") as other:
        for member in package.infolist():
            is_library = member.filename.endswith(".so")
            other.writestr(member, library.read_bytes() if is_library else package.read(member))
    with pytest.raises(RuntimeError, match=r"^a process that loads what .* has made ends: SIGABRT$"):
        require_loadable(ending)


def test_a_damaged_step_is_compiled_anew(folder: Path, compilations: list[int]) -> None:
    path = program(folder)
    path.write_bytes(path.read_bytes()[:-100])
    own = array()
    lines = settle(own, kept=kept(own, folder))
    assert "is being compiled" in lines[1]
    assert compilations == [10]
    assert kept(own, folder).load(10) is not None


def test_a_file_that_is_no_program_is_compiled_anew(folder: Path, compilations: list[int]) -> None:
    name = program(folder).stem
    with ArrayStore(folder).making(name) as part:
        assert part is not None
        part.write_bytes(b"no program at all")
    own = array()
    settle(own, kept=kept(own, folder))
    assert compilations == [10]


@pytest.mark.parametrize("package", [torch, raygpu])
def test_another_version_has_a_step_of_its_own(
    folder: Path, compilations: list[int], package: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(package, "__version__", "0.0.1")
    own = array()
    lines = settle(own, kept=kept(own, folder))
    assert "measured" in lines[0]
    assert compilations == [10]


def test_another_users_step_is_not_loaded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, mine = array(), os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    assert kept(own, folder).load(10) is None
    assert not kept(own, folder).keeps
    monkeypatch.setattr(os, "geteuid", lambda: mine)
    assert kept(own, folder).load(10) is not None


@pytest.mark.parametrize("factor", [2, 1.005])
def test_a_step_that_differs_from_the_eager_one_is_not_used(
    folder: Path, monkeypatch: pytest.MonkeyPatch, factor: float
) -> None:
    loss = TorchExperiment.loss  # raygpu's own, in which no key looks for a change
    monkeypatch.setattr(TorchExperiment, "loss", lambda self, outputs, targets: factor * loss(self, outputs, targets))
    own = array()
    assert kept(own, folder).load(10) is None
    assert [*folder.glob("*.pt2")] == []


def test_a_fault_is_told_and_not_tried_again(
    tmp_path: Path, compilations: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_compiler(*_: Any) -> None:
        raise RuntimeError("no C++ compiler found")

    monkeypatch.setattr(compile_process, "_compile", no_compiler)
    own = array()
    left = kept(own, tmp_path / "arrays")
    settle(own, kept=left)
    assert take_compiled(own, left) == ["step not compiled: RuntimeError: no C++ compiler found"]
    again = array()
    assert settle(again, kept=kept(again, tmp_path / "arrays"))[1].endswith("no C++ compiler found")
    assert compilations == [10]
    assert len(finished(again)) == COUNT * 4


def test_the_key_has_what_the_step_is_made_of() -> None:
    key = array_key(array())
    assert array_key(array(5)) == key, "whatever the width"
    others = [array(hidden=8), array(batch_size=16), array(threads=2), array(optimizer="adam"), array(weight_decay=0.1)]
    assert len({key, *map(array_key, others)}) == 6


def test_the_key_leaves_out_what_members_differ_in() -> None:
    assert array_key(array(seed=3)) == array_key(array())


def test_a_disturbed_measurement_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(width.Busyness, "found", lambda self, device: True)
    own = array()
    left = kept(own, tmp_path / "arrays")
    settle(own, kept=left)
    assert left.widths() is None
    monkeypatch.setattr(width.Busyness, "found", lambda self, device: False)
    settle(own, kept=left)
    assert left.widths() is not None


ASKS = """
import pickle, sys
from raygpu.training.fused.compile_process import start
start(pickle.load(open(sys.argv[1], "rb")), {})
print("asked", flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_a_step_for_later_sweeps_is_compiled_once_the_asking_process_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[CompileRequest] = []
    monkeypatch.setattr(array_cache, "start", lambda request, _: requests.append(request))
    monkeypatch.setattr(array_cache, "_postponed_s", {})
    monkeypatch.setattr(array_cache, "_waiting", set())
    own = array()
    left = kept(own, tmp_path / "arrays")
    assert left.postpone(10, 5.0) is None
    (tmp_path / "request").write_bytes(pickle.dumps(replace(requests[0], source=replace(SOURCE, name="absent:Absent"))))
    fault = left._store.folder / f"{requests[0].name}.fault"
    command = [sys.executable, "-c", ASKS, str(tmp_path / "request")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as asking:
        assert asking.stdout is not None
        assert asking.stdout.readline() == "asked\n"
        time.sleep(3.0)  # in which it would find that there is no such module
        assert not fault.exists()
        asking.kill()
    deadline = time.monotonic() + 60
    while not fault.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert "absent" in fault.read_text()


def test_a_worker_leaves_few_waiting_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(array_cache, "start", lambda request, _: asked.append(request.width))
    monkeypatch.setattr(array_cache, "_postponed_s", {})
    monkeypatch.setattr(array_cache, "_waiting", set())
    left = kept(array(), tmp_path / "arrays")
    for _ in range(2):
        faults = [left.postpone(width, 5.0) for width in range(2, 12)]
        assert faults[:8] == [None] * 8
        assert set(faults[8:]) == {"8 others are compiled once this worker has ended, and no more"}
    assert asked == list(range(2, 10))
    assert left.postponed == set(asked)
    assert left.postponed_s(11) == 10.0, "for a process that compiles at once"


def raises(error: Exception) -> Any:
    """Return a function that raises this."""

    def function(*_: Any, **__: Any) -> None:
        """Raise the exception."""
        raise error

    return function


@pytest.mark.parametrize("place", ["pickle.dump", "subprocess.Popen"])
@pytest.mark.parametrize("urgent", [True, False])
def test_a_process_that_cannot_start_is_told_and_leaves_no_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, urgent: bool
) -> None:
    own = array()
    left = kept(own, tmp_path / "arrays")
    monkeypatch.setattr(array_cache, "_postponed_s", {})
    monkeypatch.setattr(array_cache, "_waiting", set())
    fault = pickle.PicklingError("no pickle") if place == "pickle.dump" else OSError("no process")
    monkeypatch.setattr(place, raises(fault))
    before = len(os.listdir("/proc/self/fd"))
    assert str(fault) in str(left.request(10) if urgent else left.postpone(10, 5.0))
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.slow
def test_a_process_compiles_and_outlives_nobody_waiting(tmp_path: Path) -> None:
    own = array()
    left = kept(own, tmp_path / "arrays")
    assert left.request(10) is None
    (process,) = left._processes
    assert isinstance(process, subprocess.Popen)
    assert process.wait(60) == 0, "at once: the work is done by a process that it leaves behind"
    deadline = time.monotonic() + 300
    while not (ended := left.arrived()) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert ended == [(10, None)]
    assert left.load(10) is not None


def test_dropped_members_load_a_narrower_step(folder: Path, compilations: list[int]) -> None:
    own = array(20)
    left = kept(own, folder)
    own.compiled_s = {20: 1.0}
    own.drop({f"t{i:04d}" for i in range(9, 20)})
    lines = width.resettle(own, left)
    assert "10 trials at once" in lines[0]
    assert compilations == []


def test_a_step_that_an_audit_refuses_is_not_used_again(
    folder: Path, compilations: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    own, name = array(), program(folder).stem
    settle(own, kept=kept(own, folder))
    monkeypatch.setattr(audit, "same_steps", lambda *_: False)
    with pytest.raises(NotAsAlone, match=f"epoch 1 the compiled step differs from the eager one: {name} is deleted"):
        own.run_epoch()
    assert [*folder.glob("*.pt2")] == []
    again = array()
    assert settle(again, kept=kept(again, folder))[1].endswith("of 10 trials at once, was refused by an audit")
    assert compilations == []
