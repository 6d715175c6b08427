"""The plan of a sharded training: by the model's bytes and the smallest GPU, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from raygpu.config import TrainConfig
from raygpu.config.source import Source
from raygpu.errors import BadInput
from raygpu.training.distributed import sharding_plan
from raygpu.training.distributed.batch_split import BatchPlan
from raygpu.training.distributed.ranks import ParallelSettings
from raygpu.training.distributed.sharding_plan import require_sharding, with_sharding
from tests.training.distributed.sharded_cases import Deep, Hooked

SMALL_GIB = 1e-5
"""Memory of a device on which the model leaves little room."""


def planned(experiment: Any = None, devices: int = 2, device_gib: float | None = SMALL_GIB, **values: Any) -> BatchPlan:
    given = {"experiment": "a:B", "epochs": 1, "hyperparameters": {"lr": 0.1}}
    config = TrainConfig.model_validate(given | {key: v for key, v in values.items() if key != "shared"})
    code = experiment or Deep()
    plan = BatchPlan(ParallelSettings(30), ("first",))
    return with_sharding(config, plan, devices, Source("torch", "a:B", "."), code, code.data(),
                         device_gib=device_gib, shared=values.get("shared", False))  # fmt: skip


def test_auto_shards_a_model_that_leaves_little_room_and_none_on_a_cpu() -> None:
    small, large, cpu = planned(), planned(device_gib=80.0), planned(device_gib=None)
    assert (small.parallel.sharded, large.parallel.sharded, cpu.parallel.sharded) == (True, False, False)
    assert small.lines[1].startswith("sharding: full; ")
    assert large.lines[1].startswith("sharding: none; ")
    assert cpu.lines == ("first",)
    assert planned(sharding="none").lines == ("first",)


class Scripted(Deep):
    """A compiled layer, whose class does not tell whether it has a forward pass."""

    def model(self, hp: Any) -> Any:
        model = super().model(hp)
        return nn.Sequential(
            torch.jit.script(nn.Linear(2, 2)), nn.ModuleList([torch.jit.script(nn.Linear(2, 2))]), model
        )


def test_a_model_that_fits_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[Any] = []
    monkeypatch.setattr(sharding_plan, "_hindrance", lambda *given: looks.append(given))
    assert not planned(Scripted(), device_gib=80.0).parallel.sharded
    assert not looks
    planned(device_gib=SMALL_GIB)
    assert len(looks) == 1


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"experiment": Scripted()}, "a scripted module cannot be sharded"),
        ({"compile": True}, "a sharded model is not compiled"),
        ({"ratios": "auto"}, "a device's own speed cannot be measured"),
        ({"shared": True}, "workers that share a GPU"),
        ({"experiment": Hooked()}, "the hook of last.weight would not see its gradient"),
    ],
)
def test_what_cannot_be_sharded_is_told_by_auto_and_refused_if_asked_for(values: Any, line: str) -> None:
    found = planned(**values)
    assert not found.parallel.sharded
    assert found.lines[1].startswith("sharding: none, although ")
    assert line in found.lines[1]
    with pytest.raises(BadInput, match=f"sharding: read full; {line}"):
        planned(sharding="full", **values)


@pytest.mark.parametrize(("framework", "name"), [("keras", "Keras"), ("function", "a function")])
def test_other_frameworks_are_refused(framework: str, name: str) -> None:
    config = TrainConfig.model_validate({"experiment": "a:B", "sharding": "full"})
    with pytest.raises(BadInput, match=f"sharding: read full; sharding is for torch experiments, not for {name}"):
        require_sharding(config, framework)
    require_sharding(config.model_copy(update={"sharding": "auto"}), framework)
