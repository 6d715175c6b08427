"""What a checkpoint does not hold is told before a training starts, and what holds it all is not complained of."""

from __future__ import annotations

import collections
import itertools
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from raygpu import Splits, TorchExperiment
from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from raygpu.training.torch.checkpoint_check import CheckpointCheck, NotLoadable, check_checkpoint, drawn_attribute
from raygpu.training.torch.models import trained_model
from raygpu.training.torch.solo import TorchSolo

HP = {"lr": 0.1}


class Base(TorchExperiment):
    def data(self) -> Splits:
        inputs = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32) + 3
        return Splits.of(inputs, np.arange(16) % 2, validation=0.5)

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2))


class Centred(nn.Module):
    def __init__(self, *, kept: bool) -> None:
        super().__init__()
        self.last = nn.Linear(4, 2)
        self.register_buffer("mean", torch.zeros(4), persistent=kept)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean.lerp_(inputs.mean(0), 0.5)
        return self.last(inputs - self.mean)


class Forgets(Base):
    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return Centred(kept=False)


class Noisy(nn.Linear):
    """Draws in evaluation too, as a variational autoencoder does."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs = super().forward(inputs)
        return outputs + torch.randn_like(outputs)


class DrawsInEvaluation(Base):
    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return Noisy(4, 2)

    def loss(self, outputs: Any, targets: Any) -> Any:
        return super().loss(outputs, targets) * (1 + torch.rand(()))


class Counts(nn.Linear):
    made = 0

    def __init__(self) -> None:
        super().__init__(4, 2)
        Counts.made += 1
        self.number = Counts.made


class CountsModels(Base):
    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return Counts()


class OneModel(Base):
    """Gives its model once."""

    def __init__(self) -> None:
        self.net = nn.Linear(4, 2)

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return self.net


class Annealed(Base):
    """A loss that changes by a number outside the model, which no metric has."""

    weight = 1.0

    def loss(self, outputs: Any, targets: Any) -> Any:
        if outputs.requires_grad:
            self.weight *= 0.9
        return self.weight * super().loss(outputs, targets)


class Grows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(4, 2)
        self.register_buffer("bank", torch.zeros(0, 4))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.bank = torch.cat([self.bank, inputs.detach()])
        return self.last(inputs)


class Bank(Base):
    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return Grows()


class Remembers(Base):
    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return Centred(kept=True)


NUMBERS = itertools.count()


class SlowWeights(torch.optim.SGD):
    """Keeps what no state_dict() has."""

    count, every = 0, 4
    slow: Any = None
    factor: float | None = None

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        super().step()
        self.factor = self.factor and self.factor * 0.9
        parameters = self.param_groups[0]["params"]
        self.slow = self.slow or [parameter.clone() for parameter in parameters]
        self.count += 1
        if self.count % self.every == 0:
            for parameter, slow in zip(parameters, self.slow, strict=True):
                parameter.copy_(slow.lerp_(parameter, 0.5))


class Lookahead(Base):
    def optimizer(self, model: nn.Module, hp: Mapping[str, Any]) -> Any:
        return SlowWeights(model.parameters(), lr=hp["lr"])


class LateLookahead(Base):
    """Takes its slow weights in after more steps than the check takes."""

    def optimizer(self, model: nn.Module, hp: Mapping[str, Any]) -> Any:
        made = SlowWeights(model.parameters(), lr=hp["lr"])
        made.every, made.factor = 1000, hp.get("factor")
        return made


class Numbered(Base):
    """Has attributes of each object, which training does not change."""

    def optimizer(self, model: nn.Module, hp: Mapping[str, Any]) -> Any:
        made: Any = torch.optim.SGD(model.parameters(), lr=hp["lr"])
        made.number, made.began_s = next(NUMBERS), time.time()
        return made


class NumbersOfNumPy(Base):
    def optimizer(self, model: nn.Module, hp: Mapping[str, Any]) -> Any:
        return torch.optim.SGD(model.parameters(), lr=np.sqrt(hp["lr"]))

    def scheduler(self, optimizer: Any, hp: Mapping[str, Any], num_steps: int) -> Any:
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 * (1 + np.cos(np.pi * step / num_steps)))


class Remembering(torch.optim.lr_scheduler.LRScheduler):
    def __init__(self, optimizer: Any) -> None:
        self.seen: Any = collections.deque(maxlen=3)
        super().__init__(optimizer)

    def get_lr(self) -> Any:
        self.seen.append(self.last_epoch)
        return self.base_lrs


class Deque(Base):
    def optimizer(self, model: nn.Module, hp: Mapping[str, Any]) -> Any:
        return torch.optim.SGD(model.parameters(), lr=hp["lr"])

    def scheduler(self, optimizer: Any, hp: Mapping[str, Any], num_steps: int) -> Any:
        return Remembering(optimizer)


class Unrepeatable(Base):
    def training_step(self, model: nn.Module, inputs: Any, targets: Any, hp: Mapping[str, Any]) -> Any:
        return super().training_step(model, inputs, targets, hp) * np.random.default_rng().random()


class Teacher(Base):
    """An average of the parameters in the experiment, which no checkpoint has."""

    average: Any = None

    def training_step(self, model: nn.Module, inputs: Any, targets: Any, hp: Mapping[str, Any]) -> Any:
        own = model[0].weight.detach()
        self.average = own.clone() if self.average is None else self.average.lerp(own, 0.5)
        return super().training_step(model, inputs, targets, hp) + (model[0].weight - self.average).square().sum()


class Permuted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last, self.order = nn.Linear(4, 2), torch.randperm(4)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.last(inputs[:, self.order])


class Shuffles(Base):
    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return Permuted()


class ShufflesByBuffer(Base):
    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        found = nn.Sequential(nn.Linear(4, 2))
        found[0].register_buffer("order", torch.randperm(4), persistent=False)
        return found


def checked(kind: type[Base], **more: Any) -> CheckpointCheck:
    experiment = kind()
    return check_checkpoint(experiment, experiment.data(), HP | more)


@pytest.mark.parametrize(
    "kind", [Base, Remembers, NumbersOfNumPy, Unrepeatable, Shuffles, DrawsInEvaluation, OneModel, Numbered]
)
def test_nothing_is_said_of_what_a_checkpoint_holds(kind: type[Base]) -> None:
    assert checked(kind, **({} if kind is NumbersOfNumPy else {"ema_decay": 0.9})) == CheckpointCheck()


def test_a_buffer_that_is_not_kept_changes_the_scores_of_a_loaded_model() -> None:
    found = checked(Forgets)
    assert found.scores is not None
    assert found.scores.startswith(
        "mean changes while it trains, and a checkpoint does not hold it: a loaded model has validation/"
    )
    assert found.going_on is not None


@pytest.mark.parametrize("kind", [Lookahead, Teacher])
def test_state_of_the_optimizer_and_of_the_experiment_is_missed_where_a_training_goes_on(kind: type[Base]) -> None:
    found = checked(kind)
    assert found.scores is None
    assert found.going_on is not None
    assert "changes while it trains, and a checkpoint does not hold it: a training that goes on has" in found.going_on


def test_a_number_that_the_optimizer_counts_is_named_before_it_has_an_effect() -> None:
    found = checked(LateLookahead)
    assert found.going_on is not None
    assert found.going_on.startswith("count of the optimizer changes while it trains, and a checkpoint does not hold")
    assert "a training that goes on may have other numbers" in found.going_on
    found = checked(LateLookahead, factor=0.5)
    assert found.going_on is not None
    assert found.going_on.startswith("factor of the optimizer changes")


def test_the_metrics_that_differ_are_known() -> None:
    assert checked(Annealed).lost_metrics == {"validation/loss"}
    assert "validation/loss" in checked(Forgets).lost_metrics


def test_a_buffer_that_grows_cannot_be_loaded() -> None:
    with pytest.raises(
        NotLoadable, match=r"size mismatch for bank.*a buffer keeps the size that it has in model\(hp\)"
    ):
        checked(Bank)


def test_a_state_that_cannot_be_read_again_is_named() -> None:
    line = r"cannot be loaded: Unsupported global: GLOBAL collections\.deque .* \(a state_dict\(\) may have numbers"
    with pytest.raises(NotLoadable, match=line):
        checked(Deque)


class TrainsWithoutReturn(Centred):
    def train(self, mode: bool = True) -> None:  # type: ignore[override]
        super().train(mode)


class ForgetsWithoutReturn(Base):
    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return TrainsWithoutReturn(kept=False)


def test_a_model_whose_train_returns_nothing_is_looked_at_and_loaded(tmp_path: Path) -> None:
    experiment, trial = ForgetsWithoutReturn(), Trial("t0000", 0, HP)
    assert checked(ForgetsWithoutReturn).scores is not None
    training = TorchSolo(experiment, experiment.data(), trial, Settings(1, 1, "float32", tmp_path))
    training.save(tmp_path)
    assert isinstance(trained_model(experiment, trial, tmp_path), TrainsWithoutReturn)


def test_what_a_model_draws_by_its_seed_is_drawn_again_where_it_is_loaded(tmp_path: Any) -> None:
    assert drawn_attribute(Base(), HP) is None
    assert drawn_attribute(CountsModels(), HP) is None
    assert drawn_attribute(OneModel(), HP) is None
    assert drawn_attribute(Shuffles(), HP) == "Permuted.order"
    assert drawn_attribute(ShufflesByBuffer(), HP) == "0.order"
    experiment, trial = Shuffles(), Trial("t0003", 17, HP)
    training = TorchSolo(experiment, experiment.data(), trial, Settings(1, 1, "float32", tmp_path))
    training.run_epoch()
    training.save(tmp_path)
    state = torch.get_rng_state()
    loaded = trained_model(experiment, trial, tmp_path)
    assert torch.equal(torch.get_rng_state(), state)
    inputs = torch.arange(8.0).reshape(2, 4)
    torch.testing.assert_close(loaded(inputs), training.model.eval().cpu()(inputs), rtol=0, atol=0)
