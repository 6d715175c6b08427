"""NVML with as many GPUs as a test wants, behind the functions of `pynvml` that raygpu calls."""

from __future__ import annotations

from types import SimpleNamespace

import pynvml
import pytest


class FakeNvml:
    """Patches `pynvml` in place. `unsupported` names functions that answer "not supported"."""

    def __init__(self, names: list[str], unsupported: set[str] = frozenset()) -> None:
        self.names = names
        self.unsupported = unsupported
        self.uuids = [f"GPU-{index}{index}{index}{index}-aaaa" for index in range(len(names))]

    def install(self, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
        answers = {
            "nvmlInit": lambda: None,
            "nvmlDeviceGetCount": lambda: len(self.names),
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetHandleByUUID": self._by_uuid,
            "nvmlDeviceGetName": lambda handle: self.names[handle],
            "nvmlDeviceGetUUID": lambda handle: self.uuids[handle],
            "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(total=16 * 2**30, used=(handle + 1) * 2**30),
            "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=40 + handle, memory=5),
            "nvmlDeviceGetPowerUsage": lambda handle: 150_000,
            "nvmlDeviceGetTemperature": lambda handle, sensor: 61,
        }
        for name, answer in answers.items():
            monkeypatch.setattr(pynvml, name, self._refuse if name in self.unsupported else answer)
        return self

    def _by_uuid(self, uuid: str) -> int:
        if uuid not in self.uuids:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return self.uuids.index(uuid)

    @staticmethod
    def _refuse(*_: object) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
