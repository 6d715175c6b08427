"""Cards that the installed torch has no code for, and cards that cannot be packed."""

from __future__ import annotations

import pytest
import torch

from raygpu.devices import nvml
from raygpu.devices.fitness import packing_refusal, too_old
from raygpu.devices.nvml import Gpu

CU130 = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"]
CU126 = ["sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"]


@pytest.mark.parametrize(
    ("capability", "arch_list"),
    [
        ((7, 5), CU130),
        ((8, 0), CU130),
        ((8, 9), CU130),  # by sm_86's binary
        ((12, 0), CU130),
        ((12, 1), CU130),
        ((13, 0), CU130),  # by PTX
        ((7, 0), CU126),
        ((6, 1), CU126),
        ((9, 0), ["sm_90a"]),
        ((10, 3), ["sm_100f"]),
    ],
)
def test_it_runs(capability: tuple[int, int], arch_list: list[str]) -> None:
    assert too_old("card", capability, arch_list) is None


@pytest.mark.parametrize(
    ("name", "capability", "arch_list", "parts"),
    [
        (
            "Tesla V100-SXM2-16GB",
            (7, 0),
            CU130,
            ["Tesla V100-SXM2-16GB (compute capability 7.0) is too old", "7.5 to 12.0", "<2.15", "whl/cu126"],
        ),
        ("NVIDIA B200", (10, 0), CU126, ["too new", "5.0 to 9.0", "whl/cu130"]),
        ("Tesla K80", (3, 7), CU126, ["too old", "no wheel of torch 2.11 or later is built for it"]),
        ("NVIDIA H100 PCIe", (9, 0), ["sm_80", "sm_100"], ["not among the cards"]),
        ("NVIDIA B200", (10, 3), ["sm_100a"], ["too new"]),
        ("NVIDIA T4", (7, 5), [], ["NVIDIA T4: the installed torch is built without CUDA", "whl/cu130"]),
    ],
)
def test_it_does_not(name: str, capability: tuple[int, int], arch_list: list[str], parts: list[str]) -> None:
    line = too_old(name, capability, arch_list)
    assert line is not None
    assert "\n" not in line
    for part in [name, "CUDA_VISIBLE_DEVICES=", *parts]:
        assert part in line


def test_cards_that_cannot_be_packed() -> None:
    assert packing_refusal(Gpu(0, "GPU-a", "A100", 40.0)) is None
    assert packing_refusal(Gpu(0, "GPU-a", "A100", 40.0, (8, 0), "default", False)) is None
    exclusive = packing_refusal(Gpu(0, "GPU-a", "A100", 40.0, (8, 0), "exclusive-process"))
    assert exclusive is not None
    assert "A100 is in compute mode exclusive-process" in exclusive
    assert "only under MPS or fused" in exclusive
    assert "prohibited" in str(packing_refusal(Gpu(0, "GPU-a", "A100", 40.0, (8, 0), "prohibited")))
    assert "MIG" in str(packing_refusal(Gpu(0, "GPU-a", "A100", 40.0, (8, 0), "default", True)))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU that torch can use")
def test_a_card_that_computes_is_not_refused() -> None:
    assert float(torch.ones(1, device="cuda")) == 1
    uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
    gpu = next(gpu for gpu in nvml.gpus() if gpu.uuid == uuid)
    assert gpu.capability == torch.cuda.get_device_capability(0)
    assert too_old(gpu.name, gpu.capability, torch.cuda.get_arch_list()) is None
    assert gpu.compute_mode != "prohibited"
