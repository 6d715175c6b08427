"""Optimizers and schedulers that an experiment makes itself."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from raygpu import Mean
from raygpu.planning.batches import batch_bounds, epoch_order
from raygpu.search.trials import Trial
from raygpu.training.base import NotAsAlone, Settings
from raygpu.training.distributed.ranks import OneRank, ParallelSettings
from raygpu.training.distributed.torch_ranks import TorchParallel
from raygpu.training.fused.groups import TorchGrouper
from raygpu.training.fused.model_array import TorchArray
from raygpu.training.torch.first_step import first_result
from raygpu.training.torch.models import initial_model
from raygpu.training.torch.solo import TorchSolo
from tests.models import Mlp, few
from tests.torch_device import DEVICE
from tests.training.fused.alike import EXACT, difference, parameters

EPOCHS, BATCH = 4, 32
HP = {"hidden": 16, "batch_size": BATCH, "rate": 0.01, "alpha": 0.9}


class Own(Mlp):
    """RMSprop with one cycle of the learning rate."""

    def optimizer(self, model: nn.Module, hp: Mapping[str, Any]) -> torch.optim.Optimizer:
        return torch.optim.RMSprop(model.parameters(), lr=hp["rate"], alpha=hp["alpha"])

    def scheduler(self, optimizer: torch.optim.Optimizer, hp: Mapping[str, Any], num_steps: int) -> Any:
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=hp["rate"], total_steps=num_steps)


def solo(experiment: Any = None, epochs: int = EPOCHS, hp: Mapping[str, Any] = HP) -> TorchSolo:
    settings = Settings(epochs, 1, "float32", Path())
    return TorchSolo(experiment or Own(), few(), Trial("t0000", 7, hp), settings, DEVICE, torch.float64)


def trained(training: TorchSolo) -> dict[str, torch.Tensor]:
    while training.run_epoch() is not None:
        pass
    return parameters(training.model)


class Unfreezing(Own):
    """Its first step unfreezes what is frozen."""

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        model = super().model(hp)
        next(model.children()).requires_grad_(False)
        return model

    def training_step(self, model: nn.Module, inputs: Any, targets: Any, hp: Mapping[str, Any]) -> Any:
        loss = super().training_step(model, inputs, targets, hp)
        model.requires_grad_()
        return loss


def test_a_parameter_that_a_step_unfreezes_is_trained() -> None:
    model = initial_model(Unfreezing(), HP, 7).double()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    data = few()
    inputs, targets = torch.as_tensor(data.train_inputs).double(), torch.as_tensor(data.train_targets)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.01, alpha=0.9)
    bounds = list(batch_bounds(len(targets), BATCH))
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.01, total_steps=EPOCHS * len(bounds))
    for epoch in range(1, EPOCHS + 1):
        order = torch.from_numpy(epoch_order(7, epoch, len(targets)))
        for start, end in bounds:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs[order[start:end]]), targets[order[start:end]]).backward()
            model.requires_grad_()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            scheduler.step()
            average.update_parameters(model)
    training = solo(Unfreezing(), hp={**HP, "clip_norm": 0.5, "ema_decay": 0.9})
    assert difference(trained(training), parameters(model)) < EXACT
    with training.average.in_place():
        assert difference(parameters(training.model), parameters(average.module)) < EXACT


class OfHours(Unfreezing):
    """A mean over the hours of samples, which are a number of each class; the model may compute their weight."""

    is_fraction = False

    def loss(self, outputs: Any, targets: Any) -> Any:
        losses, hours = nn.functional.cross_entropy(outputs, targets, reduction="none"), 1 + targets.double() / 3
        if self.is_fraction:
            hours = hours + outputs.square().sum(-1)
        return Mean((losses * hours).sum(), hours.sum())


class OfFractions(OfHours):
    is_fraction = True


@pytest.mark.parametrize("kind", [OfHours, OfFractions])
@pytest.mark.parametrize("ranks", [False, True], ids=["a trial", "a production training"])
def test_a_parameter_that_a_part_of_a_batch_unfreezes_has_the_gradient_of_a_mean(
    kind: type[OfHours], ranks: bool
) -> None:
    experiment, data = kind(), few()
    model = initial_model(experiment, HP, 7).double()
    inputs, targets = torch.as_tensor(data.train_inputs).double(), torch.as_tensor(data.train_targets)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.01, alpha=0.9)
    bounds = list(batch_bounds(len(targets), BATCH))
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.01, total_steps=EPOCHS * len(bounds))
    for epoch in range(1, EPOCHS + 1):
        order = torch.from_numpy(epoch_order(7, epoch, len(targets)))
        for start, end in bounds:
            optimizer.zero_grad()
            means = []
            for part in order[start:end].chunk(2):
                means.append(experiment.loss(model(inputs[part]), targets[part]))
                model.requires_grad_()
            (sum(each.total for each in means) / sum(each.weight for each in means)).backward()
            optimizer.step()
            scheduler.step()
    if ranks:
        training = TorchParallel(solo(kind()), ParallelSettings(BATCH, accumulate=2), OneRank())
        assert all(iter(training.advance, None))
        found = parameters(training.solo.model)
    else:
        found = trained(solo(kind(), hp={**HP, "micro_batch_size": BATCH // 2}))
    assert difference(found, parameters(model)) < EXACT


def by_hand(clip_norm: float | None = None) -> tuple[dict[str, torch.Tensor], list[float]]:
    """A loop as one writes it; the learning rate of each step."""
    model = initial_model(Mlp(), HP, 7).double()
    data = few()
    inputs, targets = torch.as_tensor(data.train_inputs).double(), torch.as_tensor(data.train_targets)
    bounds = list(batch_bounds(len(targets), BATCH))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.01, alpha=0.9)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.01, total_steps=len(bounds) * EPOCHS)
    lrs = []
    for epoch in range(1, EPOCHS + 1):
        order = torch.from_numpy(epoch_order(7, epoch, len(targets)))
        for start, end in bounds:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs[order[start:end]]), targets[order[start:end]]).backward()
            if clip_norm is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
            lrs.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
    return parameters(model), lrs


def test_it_takes_the_steps_of_a_loop_by_hand() -> None:
    assert difference(trained(solo()), by_hand()[0]) <= EXACT


def test_clip_norm_keeps_its_meaning() -> None:
    assert difference(trained(solo(hp={**HP, "clip_norm": 0.1})), by_hand(0.1)[0]) <= EXACT
    assert difference(trained(solo(hp={**HP, "clip_norm": 0.1})), by_hand()[0]) > EXACT


def test_going_on_from_a_checkpoint_changes_nothing(tmp_path: Path) -> None:
    whole, first, second = solo(), solo(), solo()
    for _ in range(2):
        first.run_epoch()
    first.save(tmp_path)
    second.load(tmp_path)
    assert difference(trained(second), trained(whole)) == 0
    assert second.optimizer.num_steps == whole.optimizer.num_steps


def test_production_steps_by_whole_batches_and_tells_the_learning_rate() -> None:
    training = TorchParallel(solo(), ParallelSettings(BATCH, accumulate=2), OneRank())
    told = []
    while (progress := training.advance()) is not None:
        told.append((progress.epoch, progress.step, progress.lr))
    wanted, lrs = by_hand()
    assert difference(parameters(training.solo.model), wanted) <= EXACT
    steps = len(lrs) // EPOCHS
    assert [lr for _, _, lr in told] == pytest.approx([lrs[(epoch - 1) * steps + step - 1] for epoch, step, _ in told])
    larger = TorchParallel(solo(), ParallelSettings(2 * BATCH), OneRank())
    while larger.advance() is not None:
        pass
    assert larger.solo.optimizer.own_lr == pytest.approx(lrs[-1])  # the cycle has as many steps as there are batches


def test_steps_that_are_timed_have_no_end() -> None:
    training = solo(epochs=1)
    steps = training.trial_steps()
    for _ in range(3 * training.steps_per_epoch):
        next(steps)
    assert training.optimizer.num_steps == 3 * training.steps_per_epoch


def test_parameters_that_it_leaves_out_stay() -> None:
    class Last(Mlp):
        def optimizer(self, model: Any, hp: Mapping[str, Any]) -> torch.optim.Optimizer:
            return torch.optim.Adagrad([{"params": model[2].weight, "lr": 0.1}, {"params": [model[2].bias]}])

    training, before = solo(Last()), parameters(initial_model(Mlp(), HP, 7).double())
    after = trained(training)
    assert {name for name in before if torch.equal(before[name], after[name])} == {"0.weight", "0.bias"}
    assert all(parameter.grad is None for parameter in training.model.parameters())


class NoOptimizer(Mlp):
    def optimizer(self, model: nn.Module, hp: Mapping[str, Any]) -> Any:
        return "rmsprop"


class OfAnother(Mlp):
    def optimizer(self, model: nn.Module, hp: Mapping[str, Any]) -> torch.optim.Optimizer:
        return torch.optim.RMSprop(nn.Linear(2, 2).parameters())


class SchedulerAlone(Mlp):
    def scheduler(self, optimizer: torch.optim.Optimizer, hp: Mapping[str, Any], num_steps: int) -> Any:
        return torch.optim.lr_scheduler.StepLR(optimizer, 2)


class NeedsClosure(Mlp):
    def optimizer(self, model: nn.Module, hp: Mapping[str, Any]) -> torch.optim.Optimizer:
        return torch.optim.LBFGS(model.parameters())


class OnPlateau(Mlp):
    def optimizer(self, model: nn.Module, hp: Mapping[str, Any]) -> torch.optim.Optimizer:
        return torch.optim.RMSprop(model.parameters())

    def scheduler(self, optimizer: torch.optim.Optimizer, hp: Mapping[str, Any], num_steps: int) -> Any:
        return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)


class SeveralSchedulers(OnPlateau):
    def scheduler(self, optimizer: torch.optim.Optimizer, hp: Mapping[str, Any], num_steps: int) -> Any:
        return [torch.optim.lr_scheduler.StepLR(optimizer, 2)]


@pytest.mark.parametrize(
    ("experiment", "line"),
    [
        (NoOptimizer, r"optimizer\(model, hp\) returned str; a torch.optim.Optimizer is wanted"),
        (OfAnother, "parameters that are not the model's"),
        (SchedulerAlone, r"scheduler\(\) steps an optimizer of the experiment's own, and optimizer\(\) returned none"),
        (NeedsClosure, r"optimizer\(model, hp\) returned LBFGS, whose step\(\) needs a closure"),
        (SeveralSchedulers, r"scheduler\(\) returned list; one scheduler is wanted.*ChainedScheduler"),
        (OnPlateau, r"scheduler\(\) returned ReduceLROnPlateau, whose step\(\) needs a metric"),
    ],
)
def test_what_the_first_step_refuses(experiment: type[Mlp], line: str) -> None:
    with pytest.raises((TypeError, ValueError), match=line):
        first_result(experiment(), few().first(8), HP)


@pytest.mark.parametrize("large", [False, True])
def test_its_hyperparameters_count_as_read(large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if large:
        monkeypatch.setattr("raygpu.training.base.LARGE", 1)
    _, read, *_ = first_result(Own(), few().first(8), HP)
    assert {"rate", "alpha"} <= read


def test_it_is_made_once_and_only_where_it_steps() -> None:
    made = []

    class Counted(Own):
        def optimizer(self, model: nn.Module, hp: Mapping[str, Any]) -> torch.optim.Optimizer:
            made.append(model)
            return super().optimizer(model, hp)

    solo(Counted()).evaluate()
    assert not made
    TorchParallel(solo(Counted()), ParallelSettings(BATCH), OneRank()).advance()
    assert len(made) == 1


class Lookahead(torch.optim.SGD):
    """Slow weights, copied when it is made (Zhang et al., 2019)."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, lr=lr)
        self.num_steps = 0
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["slow"] = parameter.detach().clone()

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step()
        self.num_steps += 1
        for parameter in self.param_groups[0]["params"] if self.num_steps % 2 == 0 else ():
            parameter.copy_(self.state[parameter]["slow"].lerp_(parameter, 0.5))


class LooksAhead(Mlp):
    def optimizer(self, model: nn.Module, hp: Mapping[str, Any]) -> torch.optim.Optimizer:
        return Lookahead(model.parameters(), lr=0.1)


def test_an_optimizer_that_copies_the_parameters_copies_those_of_a_warm_start(tmp_path: Path) -> None:
    begun = solo(LooksAhead(), epochs=8)
    trained(begun)
    begun.save(tmp_path)
    wanted = solo(LooksAhead(), epochs=1)
    wanted.load_parameters(tmp_path)
    trained(wanted)
    warm = TorchParallel(solo(LooksAhead(), epochs=1), ParallelSettings(BATCH), OneRank())
    warm.load_parameters(tmp_path)
    assert all(iter(warm.advance, None))
    assert difference(parameters(warm.solo.model), parameters(wanted.model)) <= EXACT


def test_no_array_takes_it() -> None:
    trials = [Trial(Trial.name(i), i, {**HP, "rate": 0.01 * (i + 1)}) for i in range(2)]
    (group,) = TorchGrouper(Own(), few()).groups(trials)
    assert group.reason == "optimizer() is the experiment's own, which steps one model"
    with pytest.raises(NotAsAlone, match="the experiment's own"):
        TorchArray(Own(), few(), trials, Settings(EPOCHS, 1, "float32", Path()))


def test_none_takes_the_one_that_hyperparameters_name() -> None:
    class Either(Mlp):
        def optimizer(self, model: nn.Module, hp: Mapping[str, Any]) -> Any:
            return torch.optim.RMSprop(model.parameters()) if hp.get("rule") == "rmsprop" else None

    named = {"hidden": 16, "batch_size": BATCH, "lr": 0.1}
    assert difference(trained(solo(Either(), hp=named)), trained(solo(Mlp(), hp=named))) == 0
    assert difference(trained(solo(Either(), hp={**named, "rule": "rmsprop"})), trained(solo(Mlp(), hp=named))) > 0


class BySign(torch.optim.Optimizer):
    """Its groups have no learning rate."""

    def __init__(self, parameters: Any, size: float) -> None:
        super().__init__(parameters, {"size": size})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter -= group["size"] * parameter.grad.sign()


class WithoutLr(Mlp):
    def optimizer(self, model: nn.Module, hp: Mapping[str, Any]) -> torch.optim.Optimizer:
        return BySign(model.parameters(), hp["rate"])


def test_an_optimizer_without_a_learning_rate_trains() -> None:
    training = solo(WithoutLr(), epochs=1)
    before = parameters(training.model)
    after = trained(training)
    steps = training.steps_per_epoch
    assert all(0 < float((after[name] - before[name]).abs().max()) <= HP["rate"] * steps * 1.001 for name in before)
    assert math.isnan(training.optimizer.own_lr or 0.0)


class Half(Mlp):
    """Parameters in bfloat16, stepped by SGD."""

    def __init__(self, *, fused: bool) -> None:
        self.fused = fused

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return super().model(hp).bfloat16()

    def training_step(self, model: nn.Module, inputs: Any, targets: Any, hp: Mapping[str, Any]) -> torch.Tensor:
        return self.loss(model(inputs.bfloat16()).float(), targets)

    def optimizer(self, model: nn.Module, hp: Mapping[str, Any]) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=self.fused)


def test_fused_sgd_trains_parameters_in_half_precision_on_a_cpu() -> None:
    settings = Settings(1, 1, "float32", Path())
    found = []
    for fused in (True, False):
        one = TorchSolo(Half(fused=fused), few(), Trial("t0000", 7, HP), settings, torch.device("cpu"))
        state = one.optimizer.state_dict()
        state["optimizer"]["param_groups"][0]["fused"] = fused  # as a training on a GPU saves it
        one.optimizer.load_state_dict(state)
        inputs, targets = one.data.train_batch(1, torch.arange(BATCH))
        one.experiment.training_step(one.model, inputs, targets, HP).backward()
        one.optimizer.step(0.0)
        found.append(parameters(one.model))
    assert found[0].keys() == found[1].keys()
    assert all(torch.equal(value, found[1][name]) for name, value in found[0].items())
