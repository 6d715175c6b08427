"""The placement of a production training's workers on GPUs."""

from __future__ import annotations

from typing import Any

import pytest

from raygpu.config import TrainConfig
from raygpu.errors import BadInput
from raygpu.planning.gpu_shares import Node
from raygpu.planning.worker_devices import WorkerDevices, place_workers

ONE, FOUR = Node(num_cpus=8, num_gpus=1, memory_gib=64), Node(num_cpus=16, num_gpus=4, memory_gib=64)


def placed(nodes: list[Node], framework: str = "torch", simulated: bool = False, **values: Any) -> WorkerDevices:
    config = TrainConfig(name="t", experiment="m:E", **values)
    return place_workers(nodes, config, framework, simulated=simulated)


@pytest.mark.parametrize(
    ("nodes", "values", "workers", "per_gpu", "gpus", "cpus", "backend"),
    [
        ([FOUR], {}, 4, 1, 1.0, 4.0, "nccl"),
        ([ONE, FOUR], {}, 5, 1, 1.0, 4.0, "nccl"),
        ([ONE], {"workers": 3}, 3, 3, 0.3333, 2.6666, "gloo"),
        ([FOUR], {"workers": 2}, 2, 1, 1.0, 8.0, "nccl"),
        ([FOUR], {"cluster": {"max_gpus": 2}}, 2, 1, 1.0, 4.0, "nccl"),
        ([FOUR], {"cluster": {"max_gpus": 0.5}}, 1, 2, 0.5, 2.0, "gloo"),
        ([FOUR], {"cluster": {"max_gpus": 2}, "workers": 6}, 6, 3, 0.3333, 1.3332, "gloo"),
        ([FOUR], {"cluster": {"max_gpus": 4}, "workers": 2}, 2, 1, 1.0, 8.0, "nccl"),
    ],
)
def test_workers_of_one_device(
    nodes: list[Node], values: Any, workers: int, per_gpu: int, gpus: float, cpus: float, backend: str
) -> None:
    found = placed(nodes, **values)
    assert (found.workers, found.per_gpu, found.backend) == (workers, per_gpu, backend)
    assert (found.gpus, found.cpus) == pytest.approx((gpus, cpus), abs=1e-4)
    assert found.shared == (backend == "gloo")


def test_workers_of_several_devices_have_those_of_one_node() -> None:
    found = placed([FOUR, FOUR], "keras", devices_per_worker=3)
    assert (found.workers, found.gpus, found.ranks, found.backend) == (2, 3.0, 6, "MultiWorkerMirroredStrategy")
    assert found.cpus == 16.0
    alone = placed([ONE], "keras", simulated=True, devices_per_worker=2)
    assert (alone.workers, alone.gpus, alone.ranks, alone.backend) == (1, 1.0, 2, "MirroredStrategy")
    assert alone.shared


def test_a_function_has_one_worker() -> None:
    found = placed([FOUR], "function", workers=3)
    assert (found.workers, found.backend) == (1, "")


@pytest.mark.parametrize(
    ("nodes", "simulated", "values", "fault"),
    [
        ([ONE, FOUR], False, {"devices_per_worker": 5}, "devices_per_worker: read 5; the nodes have 1, 4 GPUs, enough"),
        ([FOUR], False, {"devices_per_worker": 2, "workers": 3}, "enough for 2 such workers"),
        ([ONE], True, {"devices_per_worker": 2, "workers": 2}, "workers: read 2; without GPUs one worker may have 2"),
        ([ONE], False, {"workers": 1000}, "workers: read 1000; each takes at least 0.3 GiB of host memory, and 64"),
    ],
)
def test_what_cannot_be_placed_is_one_line(nodes: list[Node], simulated: bool, values: Any, fault: str) -> None:
    with pytest.raises(BadInput, match=fault):
        placed(nodes, "keras", simulated, **values)
