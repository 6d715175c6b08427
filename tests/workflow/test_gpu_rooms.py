"""Which trainings have room on which device, and what counts as running there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raygpu.devices.nvml import Clock, Gpu, Memory, MigInstance
from raygpu.devices.telemetry import GpuWindow
from raygpu.planning.scaling_laws import Affine
from raygpu.planning.training_need import Need
from raygpu.records.activity import Activity
from raygpu.workflow.gpu_rooms import NOT_HERE, NOT_MEASURED, WantedTraining, num_running, with_rooms
from raygpu.workflow.gpu_status import GpuProcess, GpuStatus, MachineStatus

NEED = Need("process", "NVIDIA A100", 40.0, 8, "measured up to 8", None, Affine(0.0, 2.0))
A100 = Gpu(0, "GPU-a", "NVIDIA A100", 40.0)
WINDOW = GpuWindow(0.5, 5, *[None] * 8)


def process(pid: int, activity: Activity | None = None) -> GpuProcess:
    return GpuProcess(pid, 2.0, "me", "python", activity)


def trial(run: str, need: Need | None = NEED, trials: int = 1) -> Activity:
    return Activity(run, tuple(f"t{i:04}" for i in range(trials)), 0.25, None, need)


def on(gpu: Gpu, *processes: GpuProcess, free_gib: float = 30.0) -> GpuStatus:
    return GpuStatus(gpu, Memory(40.0, free_gib, None), WINDOW, Clock(None), None, processes)


def machine(*gpus: GpuStatus) -> MachineStatus:
    return MachineStatus(gpus, (), "a CPU", 500.0, "here")


def rooms(status: MachineStatus) -> list[dict[str, int | None]]:
    return [{each.name: each.room.more for each in gpu.rooms} for gpu in status.gpus]


def test_a_sweep_has_room_on_each_device_of_the_profile_s_type() -> None:
    busy, idle = on(A100, process(1, trial("a")), process(2)), on(replace(A100, index=1))
    other = on(Gpu(2, "GPU-c", "NVIDIA L4", 24.0), process(3, trial("b", None)))
    found = with_rooms(machine(busy, idle, other), None)
    assert rooms(found) == [{"a": 6}, {"a": 8}, {"b": None}], "each other process counts as a training"
    assert found.gpus[2].rooms[0].room.reason == NOT_MEASURED


def test_a_sweep_that_was_measured_elsewhere_says_so() -> None:
    elsewhere = replace(NEED, device="NVIDIA L4")
    (gpu,) = with_rooms(machine(on(A100, process(1, trial("a", elsewhere)))), None).gpus
    assert [(each.room.more, each.room.reason) for each in gpu.rooms] == [(None, NOT_HERE)]


def test_a_named_training_has_room_beside_what_runs() -> None:
    wanted = WantedTraining("mine.toml", (NEED,), "pack measures it")
    status = machine(on(A100, process(1, trial("a", None))), on(Gpu(1, "GPU-b", "NVIDIA L4", 24.0)))
    found = with_rooms(status, wanted)
    assert rooms(found) == [{"a": None, "mine.toml": 7}, {"mine.toml": None}]
    assert found.gpus[1].rooms[0].room.reason == f"{NOT_HERE}; pack measures it"


def test_a_production_training_wants_no_company() -> None:
    noted = Activity("train-1", ("t0000",))
    assert rooms(with_rooms(machine(on(A100, process(1, noted))), None)) == [{}]


def test_a_gpu_that_is_cut_leaves_its_room_to_the_instances() -> None:
    whole = replace(A100, mig=True)
    part = replace(A100, uuid="MIG-a", instance=MigInstance(0, "GPU-a", 7, 0))
    found = with_rooms(machine(on(whole), on(part, process(1, trial("a")))), None)
    assert rooms(found) == [{}, {"a": 7}]


def test_the_host_s_memory_is_shared_by_the_devices() -> None:
    need = replace(NEED, host_line=Affine(0.0, 100.0))
    status = machine(on(A100, process(1, trial("a", need))), on(replace(A100, index=1)))
    assert rooms(with_rooms(status, None)) == [{"a": 2}, {"a": 2}]  # 0.9 x 250 GiB


def test_a_simulated_gpu_has_rooms_too() -> None:
    need = replace(NEED, device="a CPU", device_gib=None, host_line=Affine(0.0, 1.0))
    status = replace(machine(), elsewhere=(process(1, trial("a", need)), process(2, trial("a", need))))
    assert [(each.name, each.room.more) for each in with_rooms(status, None).rooms] == [("a", 6)]


def test_a_gpu_of_one_process_at_a_time() -> None:
    exclusive = replace(A100, compute_mode="exclusive-process")
    found = with_rooms(machine(on(exclusive, process(1, trial("a"))), on(replace(exclusive, index=1))), None)
    assert rooms(found) == [{"a": 0}, {"a": 1}]


@pytest.mark.parametrize(("way", "expected"), [("process", 3), ("mps", 3), ("fused", 18), ("split", 18)])
def test_members_count_where_the_training_would_be_one(way: str, expected: int) -> None:
    need = replace(NEED, way=way)
    processes = [process(1, trial("a", need, trials=16)), process(2, trial("b", need, trials=64)), process(3)]
    assert num_running(need, "a", processes) == expected
