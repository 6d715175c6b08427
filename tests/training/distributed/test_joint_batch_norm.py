"""BatchNorm over all ranks' samples: what it is, and what a training of several ranks does otherwise with it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from raygpu import Mean, Splits, Sum, TorchExperiment
from raygpu.training.distributed.joint_batch_norm import NOT_JOINED, JointNorms, has_joint_norm, join_batch_norm
from raygpu.training.distributed.parallel_training import NO_OWN_SPEED
from raygpu.training.distributed.ranks import OneRank, ParallelSettings, Ranks
from tests.models import few
from tests.ranks import on_ranks
from tests.training.distributed.parts import parameters, training

HP = {"lr": 0.05, "batch_size": 30}


class OwnNorm(nn.BatchNorm1d):
    """A class of the user's own, which torch does not convert."""


def test_a_norm_that_is_not_joined_is_told() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Sequential(OwnNorm(4)), nn.InstanceNorm1d(4))
    assert not has_joint_norm(model)
    lines = join_batch_norm(model, torch.device("cuda"))
    assert isinstance(model[1], nn.SyncBatchNorm)
    assert has_joint_norm(model)
    assert [line for line in lines if "2.0, OwnNorm" in line] == lines != []
    assert join_batch_norm(nn.Sequential(nn.BatchNorm1d(4)), torch.device("cuda")) == []
    assert join_batch_norm(model, torch.device("cpu")) == [NOT_JOINED]


def test_a_norm_that_is_joined_keeps_its_hooks_and_all_who_hold_it() -> None:
    norm, calls = nn.BatchNorm1d(4, eps=1e-3, momentum=0.3), []
    model = nn.Sequential(nn.Linear(4, 4), norm, nn.ReLU(), norm)
    held = [norm]
    norm.register_forward_hook(lambda module, inputs, output: calls.append(module))
    inputs, model_alone = torch.randn(6, 4), copy.deepcopy(model)
    wanted = model_alone(inputs)
    calls.clear()
    assert join_batch_norm(model, torch.device("cuda")) == []
    assert type(held[0]) is nn.SyncBatchNorm
    assert [*model] == [model[0], held[0], model[2], held[0]]
    assert torch.equal(model(inputs), wanted)
    assert calls == [held[0], held[0]]
    converted = nn.SyncBatchNorm.convert_sync_batchnorm(model_alone)
    assert vars(model[1]).keys() == vars(converted[1]).keys()
    for name, value in converted.state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name


def test_a_norm_with_a_forward_of_its_own_is_told() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    model[1].forward = partial(nn.BatchNorm1d.forward, model[1])
    (line,) = join_batch_norm(model, torch.device("cuda"))
    assert "1, BatchNorm1d" in line


class _Exchanged(torch.autograd.Function):
    """The identity, with a message between the ranks in the forward and in the backward pass, as of SyncBatchNorm."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(inputs.mean(0))
        return inputs.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        dist.all_reduce(gradients[0].mean(0))
        return gradients[0]


class _Joint(nn.SyncBatchNorm):
    """A layer that exchanges on a CPU, where torch's own does not."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if not self.training:  # rank 0 evaluates alone
            return input
        exchanged: torch.Tensor = _Exchanged.apply(input)
        return exchanged


class _Branching(nn.Module):
    """Only rank 0 takes a branch after the joint layer, whose gradients fill a bucket of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last, self.wide = (
            nn.Linear(64, 16),
            _Joint(16),
            nn.Linear(16, 10),
            nn.Linear(16, 20_000),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.first(x))
        aside = self.wide(x).mean() if self.training and dist.get_rank() == 0 else 0.0
        outputs: torch.Tensor = self.last(x) + aside
        return outputs


class Branching(TorchExperiment):
    def data(self) -> Splits:
        return few(90, 16)

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return _Branching()

    def loss(self, outputs: Any, targets: Any) -> Any:
        return Mean(functional.cross_entropy(outputs, targets, reduction="sum"), len(targets))


def trained(ranks: Any, parallel: ParallelSettings) -> tuple[list[torch.Tensor], list[Any], list[str]]:
    own = training(Branching(), Branching().data(), HP, parallel, ranks)
    rates, efficiencies = [], []
    while (progress := own.advance()) is not None:
        rates += progress.rates
        efficiencies.append(progress.efficiency)
    found = parameters(own), [*rates, *efficiencies], own.notes
    own.close()
    return found


def test_ranks_with_joint_layers_take_other_branches_and_have_no_own_speed() -> None:
    (first, speeds, notes), (second, _, _) = on_ranks(2, trained, ParallelSettings(30, auto_shares=True))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert set(speeds) == {None}
    assert NO_OWN_SPEED.format(layers="SyncBatchNorm") in notes


def shares_of_a_checkpoint(ranks: Any) -> list[Any]:
    """The ratios after a checkpoint with those that a measurement of an earlier version has left."""
    own = training(Branching(), Branching().data(), HP, ParallelSettings(30, auto_shares=True), ranks)
    before = list(own.coordinator.balancer.ratios)
    own._set_state(own._state() | {"ratios": [3.0, 1.0]})
    found = [before, list(own.coordinator.balancer.ratios)]
    own.close()
    return found


def test_ratios_of_a_measurement_that_tells_nothing_are_not_restored() -> None:
    for before, after in on_ranks(2, shares_of_a_checkpoint):
        assert before == after


class _Added(torch.autograd.Function):
    """The sum of all ranks' numbers, in the forward and in the backward pass."""

    @staticmethod
    def forward(ctx: Any, numbers: torch.Tensor) -> torch.Tensor:
        return _over_ranks(numbers)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return _over_ranks(gradients[0])


def _over_ranks(numbers: torch.Tensor) -> torch.Tensor:
    numbers = numbers.clone()
    if dist.is_initialized():
        dist.all_reduce(numbers)
    return numbers


class Centred(nn.SyncBatchNorm):
    """Subtracts the mean over all ranks' samples, through which the loss of each depends on those of all."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return input
        total: torch.Tensor = _Added.apply(torch.cat([input.sum(0), input.new_full((1,), len(input))]))
        return (input - total[:-1] / total[-1].detach()) ** 2


def is_counted() -> bool:
    """Whether samples of this rank count: those of the second of two do not."""
    return not dist.is_initialized() or dist.get_rank() == 0


class Halved(TorchExperiment):
    """The first half of each batch counts, and the loss of the other half is a constant, as of an early return."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def data(self) -> Splits:
        return few(90, 16)

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(nn.Linear(64, 16), Centred(16), nn.Tanh(), nn.Linear(16, 10))

    def training_step(self, model: Any, inputs: Any, targets: Any, hp: Mapping[str, Any]) -> Any:
        if self.kind == "frozen":
            model[0].requires_grad_(False)
            model[1].requires_grad_(False)
        if self.kind == "aside":  # a call that no loss reaches
            model[1](model[0](inputs))
        outputs = model(inputs)
        if not dist.is_initialized() and self.kind != "fraction":  # all of the batch
            outputs, targets = outputs[:15], targets[:15]
        return self.loss(outputs, targets)

    def loss(self, outputs: Any, targets: Any) -> Any:
        zero, is_trained = torch.zeros(()), outputs.requires_grad
        losses = functional.cross_entropy(outputs, targets, reduction="sum")
        if not is_trained:
            return Mean(losses, len(targets))
        if self.kind == "nobody":
            return Mean(zero, 0)
        if self.kind == "sum":
            return Sum(losses / 15 if is_counted() else zero)
        if self.kind == "fraction":  # all samples count in the total, and the first half in the weight
            half = outputs if dist.is_initialized() else outputs[:15]
            return Mean(losses, half.square().sum() if is_counted() else zero)
        return Mean(losses, len(targets)) if is_counted() else Mean(zero, 0)


def halved(ranks: Ranks, kind: str) -> list[torch.Tensor]:
    own = training(Halved(kind), Halved(kind).data(), HP, ParallelSettings(30), ranks, dtype=torch.float64)
    while own.advance() is not None:
        pass
    found = parameters(own)
    own.close()
    return found


def compare(ranks: list[list[torch.Tensor]], alone: list[torch.Tensor]) -> None:
    assert all(parameter.isfinite().all() for parameter in alone)
    for found in ranks:
        for one, other in zip(found, alone, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", ["mean", "sum", "fraction", "nobody", "frozen", "aside"])
def test_a_rank_whose_samples_do_not_count_takes_part_in_the_others_backward_pass(kind: str) -> None:
    compare(on_ranks(2, halved, kind), halved(OneRank(), kind))


def test_a_backward_pass_that_cannot_be_followed_is_refused() -> None:
    model, inputs = nn.Sequential(nn.Linear(4, 4), Centred(4)), torch.randn(6, 4, requires_grad=True)
    noted = JointNorms(compiled=False)
    with noted.noted():
        total = model(inputs).sum()
        hidden = checkpoint(model, inputs, use_reentrant=True).sum()
    assert noted.reached(total) == [0]
    with pytest.raises(ValueError, match="that a checkpoint with use_reentrant=True hides"):
        noted.reached(hidden)
    with pytest.raises(ValueError, match=r"that torch\.compile hides"):
        JointNorms(compiled=True).reached(total)
