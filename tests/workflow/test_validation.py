"""What a command checks before anything is started."""

from __future__ import annotations

from typing import Any

import pytest

from raygpu.config import PackConfig, SweepConfig, TrainConfig
from raygpu.errors import BadInput
from raygpu.workflow.validation import chosen_gpus
from tests.fakes.nvml import FakeNvml


@pytest.mark.parametrize("kind", [SweepConfig, PackConfig, TrainConfig])
def test_a_gpu_without_bf16_is_refused_in_a_line(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    fake = FakeNvml(["NVIDIA A100-SXM4-40GB", "Tesla T4", "Tesla T4"]).install(monkeypatch)
    for device in fake.devices[1:]:
        device.capability = (7, 5)

    def chosen(precision: str, devices: str = "all") -> list[str]:
        gpu = {"precision": precision, "devices": devices}
        return [each.name for each in chosen_gpus(kind.model_construct(gpu=kind.model_fields["gpu"].annotation(**gpu)))]

    assert len(chosen("fp16")) == 3
    assert chosen("bf16", "0") == ["NVIDIA A100-SXM4-40GB"]
    with pytest.raises(BadInput) as refused:
        chosen("bf16")
    assert str(refused.value) == "gpu.precision: read bf16, which a Tesla T4 does not have: use fp16"
