"""The measured width and the compiled step: both change no result."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from raygpu.training.fused import width
from raygpu.training.fused.model_array import TorchArray
from raygpu.training.fused.width import capacity, resettle, settle
from raygpu.training.torch.data import DeviceData
from tests.models import MODELS
from tests.torch_device import DEVICE


def array(count: int, epochs: int = 3, width: int | None = None, dtype: torch.dtype = torch.float64) -> TorchArray:
    kind, shape = MODELS["mlp"]
    experiment = kind()
    trials = [Trial(f"t{i:04d}", i + 3, {**shape, "lr": 0.01 * (i + 1), "momentum": 0.5}) for i in range(count)]
    settings = Settings(epochs, 1, "float32", Path())
    return TorchArray(experiment, experiment.data(), trials, settings, width=width, device=DEVICE, dtype=dtype)


def finished(own: TorchArray) -> dict[str, torch.Tensor]:
    while own.run_epoch() is not None:
        pass
    return {f"{t.trial_id} {n}": p for t in own.trials for n, p in own.member_state(t.trial_id)["model"].items()}


def test_settling_changes_nothing() -> None:
    settled = array(12)
    (told, compiled) = settle(settled)
    assert re.match(r"(all|\d+ of) 12 trials train at once \(measured: 4: ", told), "whichever width was the fastest"
    assert "not compiled" in compiled
    expected = finished(array(12))
    for name, tensor in finished(settled).items():
        assert (tensor - expected[name]).norm() <= 1e-12 * expected[name].norm()


def test_an_asked_width_is_kept() -> None:
    own = array(12, width=5)
    settle(own)
    assert [len(tile.trials) for tile in own.tiles] == [4, 4, 4], "as level as three tiles of at most 5 can be"


def test_memory_bounds_the_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    own = array(32)
    monkeypatch.setattr(width, "measured", lambda _, width: (0.001 * width**0.5, 1000 + 100 * width))
    settle(own, memory_limit=2000)
    assert max(tile.width for tile in own.tiles) <= 10


def test_memory_bounds_the_tiles_with_the_orders_of_their_members(monkeypatch: pytest.MonkeyPatch) -> None:
    own = array(32)
    own.data = replace(own.data, samples_per_epoch=10**6)  # type: ignore[type-var]
    monkeypatch.setattr(width, "measured", lambda _, width: (0.001 * width**0.5, 1000 + 100 * width))
    settle(own, memory_limit=1000 + 10 * (100 + 4 * 10**6))
    assert max(tile.width for tile in own.tiles) <= 10


def test_a_tile_holds_the_orders_that_it_is_planned_with(monkeypatch: pytest.MonkeyPatch) -> None:
    own, train_batches, held = array(12, width=8), DeviceData.train_batches, []

    def spied(data: DeviceData, epoch: int, chosen: Sequence[torch.Tensor]) -> Iterator[Any]:
        """Note the memory behind the batches of an epoch."""
        held.append((chosen[0].dtype, chosen[0].untyped_storage().nbytes()))
        return train_batches(data, epoch, chosen)

    monkeypatch.setattr(DeviceData, "train_batches", spied)
    own.audits = False
    own.run_epoch()
    assert own.data.order_bytes == 4 * own.data.samples_per_epoch
    assert held == [(torch.int32, tile.width * own.data.order_bytes) for tile in own.tiles]


@pytest.mark.usefixtures("exported_alone")
def test_a_compiled_step_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raygpu.planning.array_tiles.COMPILE_S", {"cpu": 0.0})
    monkeypatch.setattr("raygpu.planning.array_tiles.FIRST_COMPILE_S", {"cpu": 0.0})
    monkeypatch.setattr(width.Affine, "at", lambda cost, width: 1e9)  # whatever the machine is doing meanwhile
    own = array(7, epochs=4, width=4)
    lines = settle(own)
    assert "step compiled in" in lines[1]
    assert [tile.width for tile in own.tiles] == [4, 4], "the rest of 3 is filled up"
    own.run_epoch()
    own.drop({"t0001", "t0005"})
    resettle(own)
    plain = array(7, epochs=4, width=4)
    plain.run_epoch()
    plain.drop({"t0001", "t0005"})
    expected = finished(plain)
    for name, tensor in finished(own).items():
        assert (tensor - expected[name]).norm() <= 1e-9 * expected[name].norm()


def test_a_step_that_cannot_be_compiled_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_compiler(*_: object, **__: object) -> None:
        raise RuntimeError("no C++ compiler found")

    monkeypatch.setattr("raygpu.planning.array_tiles.COMPILE_S", {"cpu": 0.0})
    monkeypatch.setattr("raygpu.planning.array_tiles.FIRST_COMPILE_S", {"cpu": 0.0})
    monkeypatch.setattr("raygpu.training.fused.compiled_step.compile_step", no_compiler)
    own = array(6)
    lines = settle(own)
    assert "not compiled" in lines[1]
    assert "no C++ compiler found" in lines[1]
    assert len(finished(own)) == 6 * 4


def test_members_that_do_not_fit_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(width, "default_device", lambda: torch.device("cpu"))
    kind, shape = MODELS["mlp"]
    trial = Trial("t0000", 0, {**shape, "lr": 0.1})
    limit, few = capacity(kind(), trial, gpu_fraction=1.0, host_memory_gib=0.0001)
    _, many = capacity(kind(), trial, gpu_fraction=1.0, host_memory_gib=1.0)
    assert limit == int(0.0001 * 2**30)
    assert 1 <= few < many


def test_the_first_compiled_step_of_a_machine_has_to_repay_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raygpu.planning.array_tiles.COMPILE_S", {"cpu": 0.0})
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    assert "do not repay it" in settle(array(4))[1]
    (tmp_path / "compiled").mkdir()
    monkeypatch.setattr(width, "_compile", lambda own, width, why: "compiled")
    assert settle(array(4))[1] == "compiled"


def test_memory_for_less_than_the_narrowest_measured_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    own = array(20)
    monkeypatch.setattr(width, "measured", lambda _, width: (0.001, 10**6 * width))
    settle(own, memory_limit=2 * 10**6)
    assert max(tile.width for tile in own.tiles) <= 2


def test_what_a_gpu_cannot_hold_bounds_the_width(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(_: TorchArray, width: int) -> tuple[float, int]:
        if width > 8:
            raise torch.cuda.OutOfMemoryError("out of memory")
        return 0.001, 1000

    own = array(40)
    monkeypatch.setattr(width, "measured", measured)
    settle(own)
    assert max(tile.width for tile in own.tiles) == 8


@pytest.mark.parametrize(("most", "recorded"), [(8, False), (64, True)])
def test_steps_are_recorded_where_the_recordings_of_all_tiles_fit(
    monkeypatch: pytest.MonkeyPatch, most: int, recorded: bool
) -> None:
    own = array(40)
    own.graphs = True
    monkeypatch.setattr(width, "_known_widths", lambda *_: ({4: 0.1, 8: 0.1}, most, "kept"))
    lines = settle(own)
    assert own.graphs == recorded
    assert any("the recordings of all tiles do not fit" in line for line in lines) != recorded


def test_the_measured_memory_is_of_this_measurement_and_has_an_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    own = array(8)
    ballast = torch.ones(2**26)  # 256 MiB, long gone when it counts
    del ballast
    _, num_bytes = width.measured(own, 8)
    ballast = torch.ones(2**26)
    _, more = width.measured(own, 8)
    assert 2**27 < more - num_bytes < 2**29
    evaluated = []
    monkeypatch.setattr(own, "_evaluated", lambda tile, parts: iter([evaluated.append(tile.width)]))  # type: ignore[func-returns-value] # to see it
    width.measured(own, 4)
    monkeypatch.setattr(own.program.evaluation, "chunk", 2)
    width.measured(own, 4)
    monkeypatch.setattr(own.program.evaluation, "metrics_are_fused", False)
    width.measured(own, 4)
    monkeypatch.setattr(own.program.evaluation, "metrics_are_fused", True)
    monkeypatch.setattr(own, "data", replace(own.data, shared_validation=False))
    width.measured(own, 4)
    assert evaluated == [4, 2, 4, 4], "no more than are evaluated at once, where these alone take memory"
    assert ballast.numel()


def test_what_was_not_worth_compiling_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(width, "compiling", lambda *_, **__: "now")
    tried = []

    def measured(own: TorchArray, width: int) -> tuple[float, int]:
        tried.append(width)
        return 1e9, 1000

    own = array(16)
    own.compiled_s = {16: 1.0}
    monkeypatch.setattr(width, "measured", measured)
    own.drop({f"t{i:04d}" for i in range(9)})
    assert "no faster" in width.resettle(own)[0]
    own.drop({"t0009"})
    assert width.resettle(own) == []
    assert tried == [8]
