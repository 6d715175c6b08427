"""A model that is sharded over ranks is trained as on one device, or refused in a line."""

from __future__ import annotations

import re
import resource
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from experiments.benchmarks.ranks import Group
from experiments.benchmarks.sharded import THRESHOLD
from experiments.benchmarks.sharded import training as layers
from raygpu.errors import one_line
from raygpu.training.distributed.ranks import OneRank, ParallelSettings, Ranks
from raygpu.training.distributed.sharded.optimizer import EXACT as OPTIMIZERS
from raygpu.training.torch.models import CHECKPOINT
from tests.models import Cnn, few
from tests.ranks import on_ranks
from tests.training.distributed.parallel_cases import CASES, Plain
from tests.training.distributed.parts import sharded, training
from tests.training.distributed.sharded_cases import EXACT, REFUSED, Deep, Freezes

HP = {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.01, "batch_size": 30}
VARIANTS: dict[str, Mapping[str, Any]] = {
    "sgd": {},
    "clipped": {"clip_norm": 0.05},
    "adamw": {"optimizer": "adamw", "momentum": 0.0, "clip_norm": 0.05},
}
ALIKE = {name: kind for name, kind in {**EXACT, **CASES}.items() if name not in ("Penalty", "Branch", "Sparse")}
"""The others are refused: a penalty on all parameters, a branch, and sparse gradients."""
Outcome = tuple[dict[str, torch.Tensor], list[Mapping[str, float]]]


def outcome(own: Any) -> Outcome:
    """The parameters at the end, whole, and the metrics of each epoch; on rank 0 at least."""
    metrics = [each.result.metrics for each in iter(own.advance, None) if each.result is not None]
    state, names = own.states()["model"], {name for name, _ in own.solo.model.named_parameters()}
    own.close()
    return {name: value.clone() for name, value in state.items() if name in names}, metrics


def trained(ranks: Ranks, parallel: ParallelSettings, names: Sequence[str], variants: Sequence[str]) -> Any:
    """By case and variant: the outcome in float64, of a sharded model if there are several ranks."""
    found = {}
    for name in names:
        for variant in variants:
            experiment = {**ALIKE, "Freezes": Freezes}[name]()
            make = sharded if ranks.world > 1 else training
            own = make(experiment, experiment.data(), HP | VARIANTS[variant], parallel, ranks, dtype=torch.float64)
            found[name, variant] = outcome(own)
    return found


def distance(found: Mapping[str, torch.Tensor], wanted: Mapping[str, torch.Tensor]) -> float:
    """The L2 norm of the difference over that of what is wanted."""
    assert list(found) == list(wanted)
    square = sum(float((found[name] - wanted[name]).abs().double().square().sum()) for name in wanted)
    return float((square / sum(float(each.abs().double().square().sum()) for each in wanted.values())) ** 0.5)


def compare(world: int, parallel: ParallelSettings, names: Sequence[str], variants: Sequence[str]) -> None:
    found = on_ranks(world, trained, parallel, names, variants)[0]
    for key, (wanted, metrics) in trained(OneRank(), ParallelSettings(30), names, variants).items():
        assert distance(found[key][0], wanted) <= 1e-9, key
        for one, other in zip(found[key][1], metrics, strict=True):
            assert dict(one) == pytest.approx(dict(other), rel=1e-9), key


def test_two_ranks() -> None:
    compare(
        2, ParallelSettings(30, ratios=(4.0, 1.0)), ["Deep", "TiedTokens", "Scaled", "Masked", "Freezes"], ["clipped"]
    )


@pytest.mark.slow
@pytest.mark.parametrize(("world", "variant"), [(2, "sgd"), *((3, variant) for variant in VARIANTS)])
def test_all_cases(world: int, variant: str) -> None:
    """On three ranks, in parts. Two have plain SGD: a norm or Adam hides a gradient that is wrong by a factor."""
    parallel = ParallelSettings(30, ratios=(4.0, 1.0)) if world == 2 else ParallelSettings(30, 2, (5.0, 3.0, 2.0))
    compare(world, parallel, list(ALIKE), [variant])


SIBLINGS = ("BlockPenalty", "FreezesBlock", "FreezesAfter", "UnfreezesOwn")
"""Experiments that are refused as another one is, at another place."""


def refused(ranks: Any, name: str) -> str:
    experiment = REFUSED[name][0]()
    try:
        outcome(sharded(experiment, experiment.data(), HP, ParallelSettings(30, ratios=(4.0, 1.0)), ranks))
    except (RuntimeError, ValueError) as error:
        return one_line(error)
    return ""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SIBLINGS else name for name in REFUSED]
)
def test_what_would_be_wrong_is_refused(name: str) -> None:
    for line in on_ranks(2, refused, name):
        assert re.search(REFUSED[name][1], line)


class Optimized(Deep):
    """An optimizer of its own with two groups of parameters, and a scheduler."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def optimizer(self, model: nn.Module, hp: Mapping[str, Any]) -> torch.optim.Optimizer:
        biases = [p for name, p in model.named_parameters() if name.endswith("bias")]
        weights = [p for name, p in model.named_parameters() if not name.endswith("bias")]
        options: dict[str, Any] = {"momentum": 0.9} if self.kind == "SGD" else {}
        groups = [{"params": weights}, {"params": biases, "lr": 0.002}]
        made: torch.optim.Optimizer = getattr(torch.optim, self.kind)(groups, lr=0.001, **options)
        return made

    def scheduler(self, optimizer: Any, hp: Mapping[str, Any], num_steps: int) -> Any:
        return torch.optim.lr_scheduler.LinearLR(optimizer, 0.5, total_iters=num_steps)


def own_optimizer(ranks: Ranks, kind: str, folder: str) -> Outcome:
    """Trained for an epoch, saved, loaded into a new training, and trained to its end."""
    parallel = ParallelSettings(30, ratios=(4.0, 1.0) if ranks.world > 1 else ())
    make = sharded if ranks.world > 1 else training
    first, again = (make(Optimized(kind), Optimized(kind).data(), HP, parallel, ranks, dtype=torch.float64)
                    for _ in range(2))  # fmt: skip
    while first.epoch < 1:
        first.advance()
    first.save(Path(folder))
    ranks.gather([None])
    again.load(Path(folder))
    first.close()
    return outcome(again)


@pytest.mark.slow
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_an_optimizer_of_the_experiment(kind: str, tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    wanted, _ = own_optimizer(OneRank(), kind, str(tmp_path / "one"))
    found, _ = on_ranks(2, own_optimizer, kind, str(tmp_path / "two"))[0]
    assert distance(found, wanted) <= 1e-9
    one, two = (torch.load(tmp_path / name / CHECKPOINT, weights_only=True)["optimizer"] for name in ("one", "two"))
    assert one["optimizer"]["param_groups"] == two["optimizer"]["param_groups"]
    for place, values in one["optimizer"]["state"].items():
        for name, value in values.items():
            torch.testing.assert_close(two["optimizer"]["state"][place][name], value, rtol=1e-9, atol=1e-12)


class Unknown(Deep):
    def optimizer(self, model: nn.Module, hp: Mapping[str, Any]) -> torch.optim.Optimizer:
        class Whole(torch.optim.SGD):
            """Might divide by the norm of a parameter."""

        return Whole(model.parameters(), lr=0.1)


def of_unknown(ranks: Any) -> str:
    with pytest.raises(ValueError, match="optimizer") as refusal:
        sharded(Unknown(), Unknown().data(), HP, ParallelSettings(30), ranks)
    return str(refusal.value)


def test_an_optimizer_that_may_look_at_whole_parameters_is_refused() -> None:
    for line in on_ranks(2, of_unknown):
        assert line.startswith("optimizer() returned Whole; a sharded model takes SGD, Adam, AdamW, ")


def begun(ranks: Ranks, kind: str, folder: str) -> None:
    """Train an epoch and a part of the next one, and save."""
    own = made(ranks, kind)
    own.advance()
    while own.epoch < 1 or not own.step:
        own.advance()
    own.save(Path(folder))
    own.close()


def gone_on(ranks: Ranks, kind: str, folder: str) -> Outcome:
    own = made(ranks, kind)
    own.load(Path(folder))
    assert own.step
    return outcome(own)


def made(ranks: Ranks, kind: str) -> Any:
    make = sharded if kind == "sharded" else training
    parallel, hp = ParallelSettings(6), HP | {"optimizer": "adam", "momentum": 0.0}
    return make(Deep(), Deep().data(), hp, parallel, ranks, dtype=torch.float64)


@pytest.mark.slow
def test_checkpoints_go_from_any_number_of_ranks_to_any_other_sharded_or_not(tmp_path: Path) -> None:
    """All have the same content, and lead to the same end."""
    ways = {"one": (1, "whole"), "two": (2, "sharded"), "three": (3, "sharded"), "apart": (2, "whole")}

    def called(world: int, function: Any, *arguments: Any) -> Any:
        return function(OneRank(), *arguments) if world == 1 else on_ranks(world, function, *arguments)[0]

    for name, (world, kind) in ways.items():
        (tmp_path / name).mkdir()
        called(world, begun, kind, str(tmp_path / name))
    states = {name: torch.load(tmp_path / name / CHECKPOINT, weights_only=True) for name in ways}
    for name, state in states.items():
        assert distance(state["model"], states["one"]["model"]) <= 1e-9, name
        assert state["optimizer"]["num_steps"] == states["one"]["optimizer"]["num_steps"]
        for own, wanted in zip(state["optimizer"]["buffers"], states["one"]["optimizer"]["buffers"], strict=True):
            torch.testing.assert_close(own, wanted, rtol=1e-7, atol=1e-12)
        assert state["loss_sum"] == pytest.approx(states["one"]["loss_sum"], rel=1e-9)
    wanted, metrics = called(1, gone_on, "whole", str(tmp_path / "one"))
    for came_from, goes_on in [("two", "three"), ("three", "one"), ("one", "two"), ("two", "apart"), ("apart", "two")]:
        world, kind = ways[goes_on]
        found, losses = called(world, gone_on, kind, str(tmp_path / came_from))
        assert distance(found, wanted) <= 1e-8, (came_from, goes_on)
        assert [dict(each) for each in losses] == [pytest.approx(dict(each), rel=1e-8) for each in metrics]


def gone_on_sharded(ranks: Ranks, folder: str) -> Any:
    own = sharded(Deep(), Deep().data(), HP, ParallelSettings(30), ranks, dtype=torch.float64)
    own.load(Path(folder))
    return own.states()["model"]


def test_a_training_with_an_average_goes_on_sharded_from_the_trained_parameters(tmp_path: Path) -> None:
    hp, parallel = HP | {"ema_decay": 0.9}, ParallelSettings(30)
    averaged = training(Deep(), Deep().data(), hp, parallel, dtype=torch.float64)
    while averaged.epoch < 1:
        averaged.advance()
    averaged.save(tmp_path)
    trained = {name: value.clone() for name, value in averaged.solo.model.state_dict().items()}
    assert distance(averaged.states()["model"], trained) > 1e-3
    assert distance(on_ranks(2, gone_on_sharded, str(tmp_path))[0], trained) == 0


def with_buffers(ranks: Ranks, kind: str, precision: Any) -> Any:
    """BatchNorm of each rank's own, and the estimates of the noise scale."""
    make = sharded if kind == "sharded" else training
    options: dict[str, Any] = {"precision": precision} if kind == "sharded" else {}
    hp = {"channels": 4, "blocks": 1, "lr": 0.05, "momentum": 0.9}
    own = make(Cnn(), few(), hp, ParallelSettings(20, 1, (3.0, 2.0)), ranks, **options)
    metrics = [each.result.metrics for each in iter(own.advance, None) if each.result is not None]
    return own.states()["model"], metrics, own.coordinator.noise._estimates, own.notes


@pytest.fixture(scope="module")
def in_float32() -> Any:
    """What a sharded model has in single precision."""
    return on_ranks(2, with_buffers, "sharded", "float32")[0]


@pytest.mark.slow
def test_buffers_noise_scale_and_notes_are_those_of_whole_models(in_float32: Any) -> None:
    wanted, metrics, noise, notes = on_ranks(2, with_buffers, "whole", "float32")[0]
    found, own_metrics, own_noise, own_notes = in_float32
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5)
    for one, other in zip(own_metrics, metrics, strict=True):
        assert dict(one) == pytest.approx(dict(other), rel=1e-3)
    assert noise
    for one, other in zip(own_noise, noise, strict=True):
        assert one == pytest.approx(other, rel=1e-3)
    assert own_notes == notes


@pytest.mark.slow
def test_mixed_precision_is_close_to_single_precision(in_float32: Any) -> None:
    whole, _, _, _ = in_float32
    mixed, metrics, _, _ = on_ranks(2, with_buffers, "sharded", "bf16")[0]
    weights = [name for name in whole if name.endswith("weight")]
    gap = distance({name: mixed[name] for name in weights}, {name: whole[name] for name in weights})
    assert 0 < gap < 0.1
    assert all(metric["train/loss"] < 2.5 for metric in metrics)


def in_parts(ranks: Any) -> tuple[Any, list[str]]:
    own = sharded(Plain(), Plain().data(), HP, ParallelSettings(30, 2), ranks)
    outcome(own)
    return own.coordinator.noise.scale(), own.notes


def test_the_noise_scale_of_parts_is_left_out_and_a_line_says_so() -> None:
    for noise, notes in on_ranks(2, in_parts):
        assert noise is None
        assert notes == ["sharded: the gradient noise scale is not measured, as each part of a batch is summed"]


def held(ranks: Any, kind: str) -> int:
    """Bytes of a rank's parameters and buffers of the optimizer."""
    own = made(ranks, kind)
    parts = own._shards.locals if kind == "sharded" else own.solo.optimizer.parameters
    tensors = [*parts, *(buffer for buffers in own.solo.optimizer.buffers for buffer in buffers)]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def test_each_rank_holds_a_part() -> None:
    whole = on_ranks(2, held, "whole")
    parts = on_ranks(2, held, "sharded")
    assert sum(parts) == whole[0] == whole[1]
    assert max(parts) < 0.65 * whole[0]  # first dimensions of 7 are cut into 4 and 3


def within(ranks: Any, kind: Any, limit_mib: int) -> str:
    """Train for an epoch in a process whose memory may grow by so much."""
    hp = {"layers": 16, "optimizer": "adam"}
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    used = next(int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if "VmData" in line)
    resource.setrlimit(resource.RLIMIT_DATA, (used * 1024 + limit_mib * 2**20, hard))
    try:
        own = layers(ranks, kind, hp)
        while own.advance() is not None:
            pass
    except (RuntimeError, MemoryError) as error:
        return one_line(error)
    return "trained"


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the memory of a process from /proc")
def test_a_model_that_a_process_cannot_hold_trains_sharded(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 MiB of parameters: alone, with gradients and two buffers, they take four times that; sharded, half of it, and
    the model as it is made."""
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", THRESHOLD)
    found = {}
    for world, kind in ((1, "whole"), (2, "sharded")):
        with closing(Group.torch(world)) as group:
            found[kind] = group.run(within, kind, 224)
    assert found["sharded"] == ["trained", "trained"]
    assert "memory" in found["whole"][0]
