from __future__ import annotations

import pytest

from raygpu.devices.nvml import Gpu, MigInstance
from raygpu.devices.selection import listed, select, shown
from raygpu.errors import BadInput

GPUS = [Gpu(index, f"GPU-{letter}{letter}{letter}", "NVIDIA T4", 16.0) for index, letter in enumerate("abc")]


@pytest.mark.parametrize(
    ("devices", "visible", "expected"),
    [
        ("all", None, [0, 1, 2]),
        ("all", "2,0", [2, 0]),
        ("all", "0,0", [0]),
        ("all", "0,9,1", [0]),  # CUDA stops at the first entry that names nothing
        ("all", "", []),
        ("all", "-1", []),
        ("2", None, [2]),
        ("0,GPU-ccc", None, [0, 2]),
        ("GPU-b", None, [1]),
        ("1, 1", None, [1]),
        ("0", "GPU-aaa,GPU-bbb", [0]),
    ],
)
def test_select(devices: str, visible: str | None, expected: list[int]) -> None:
    assert [gpu.index for gpu in select(GPUS, devices, visible)] == expected


@pytest.mark.parametrize(
    ("devices", "visible", "message"),
    [
        ("7", None, "read '7'; the GPUs are: 0 (GPU-aaa)"),
        ("2", "0,1", "read '2'; the GPUs are: 0 (GPU-aaa), 1 (GPU-bbb)"),
        ("GPU-", None, "read 'GPU-'"),  # could be any
        ("²", None, "read '²'; the GPUs are: 0 (GPU-aaa)"),
        (",", None, "allowed"),
        ("0", "", "shows none"),
        ("all", "MIG-aaa", "CUDA_VISIBLE_DEVICES: read 'MIG-aaa'; whole GPUs are wanted, which are: 0 (GPU-aaa)"),
    ],
)
def test_select_refuses(devices: str, visible: str | None, message: str) -> None:
    with pytest.raises(BadInput) as caught:
        select(GPUS, devices, visible)
    assert message in str(caught.value)


def test_what_ray_calls_them() -> None:
    assert listed(GPUS, None) == [("0", GPUS[0]), ("1", GPUS[1]), ("2", GPUS[2])]
    assert listed(GPUS, "2,GPU-aaa") == [("2", GPUS[2]), ("GPU-aaa", GPUS[0])]
    assert listed([], "0,1") == [("0", None), ("1", None)]


def test_no_gpu_at_all() -> None:
    assert select([], "all", None) == []
    with pytest.raises(BadInput, match="no NVIDIA GPU here"):
        select([], "0", None)


CUT = Gpu(3, "GPU-ddd", "NVIDIA H100", 80.0, mig=True)
PARTS = [
    Gpu(3, f"MIG-{letter}", "NVIDIA H100 MIG 1g.10gb", 9.5, instance=MigInstance(place, "GPU-ddd", place + 7, 0))
    for place, letter in enumerate("xy")
]
DEVICES = [*GPUS, CUT, *PARTS]


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, ["0", "1", "2", "3", "3:0", "3:1"]),
        ("", []),
        ("-1", []),
        ("MIG-y", ["3:1"]),
        ("MIG-GPU-ddd/7/0", ["3:0"]),  # as before driver 470
        ("MIG-GPU-ddd/8/0,2", ["3:1", "2"]),
        ("3,0", ["3", "3:0", "3:1", "0"]),
        ("MIG-x,MIG-x,3", ["3:0", "3", "3:1"]),
        ("1,MIG-GPU-ddd/8/1,0", ["1"]),  # no such compute instance: CUDA stops there
    ],
)
def test_what_a_person_sees(visible: str | None, expected: list[str]) -> None:
    assert [gpu.label for gpu in shown(DEVICES, visible)] == expected


@pytest.mark.parametrize("visible", ["MIG-", "MIG-GPU-ddd/9/0", "7"])
def test_a_device_that_is_not_there_is_named(visible: str) -> None:
    with pytest.raises(BadInput, match=rf"read '{visible}'; the devices are: 0 \(GPU-aaa\), .*3:1 \(MIG-y\)"):
        shown(DEVICES, visible)
