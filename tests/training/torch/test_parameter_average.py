"""Trainings that are evaluated with a moving average of their parameters."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from raygpu import Splits, TorchExperiment
from raygpu.planning.batches import batch_bounds, epoch_order
from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from raygpu.training.distributed.ranks import OneRank, ParallelSettings
from raygpu.training.distributed.torch_ranks import TorchParallel
from raygpu.training.fused.saved_array import save_saved_members
from raygpu.training.hyperparameters import OptimizerSettings
from raygpu.training.torch.models import CHECKPOINT, initial_model, trained_model
from raygpu.training.torch.parameter_average import AVERAGED, UNAVERAGED
from raygpu.training.torch.solo import TorchSolo
from tests.models import few
from tests.torch_device import DEVICE
from tests.training.fused.alike import EXACT, difference, new_array, parameters

EPOCHS, BATCH = 4, 32
HP = {"lr": 0.05, "momentum": 0.9, "batch_size": BATCH, "ema_decay": 0.95}


class Net(TorchExperiment):
    def data(self) -> Splits:
        return few()

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(nn.Linear(64, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 10))


class Centre(nn.Module):
    """Moving centres: each step puts a new tensor in the place of one, and each evaluation moves the other."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(12))
        self.register_buffer("level", torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.centre = 0.5 * self.centre + 0.5 * x.detach().mean(0)
        else:
            self.level.copy_(0.5 * self.level + 0.5 * x.detach().abs().mean())
        return (x - self.centre) * self.level


class Centred(Net):
    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(nn.Linear(64, 12), Centre(), nn.ReLU(), nn.Linear(12, 10))


def solo(hp: Mapping[str, Any] = HP, epochs: int = EPOCHS, kind: type[Net] = Net) -> TorchSolo:
    return TorchSolo(
        kind(), few(), Trial("t0000", 7, hp), Settings(epochs, 1, "float32", Path()), DEVICE, torch.float64
    )  # fmt: skip


def by_hand(kind: type[Net]) -> tuple[nn.Module, nn.Module, float]:
    """A loop as one writes it: the trained model, its average by torch's own class, and the average's loss."""
    model = initial_model(kind(), HP, 7).double()
    average: Any = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.95), use_buffers=True)
    data = few()
    inputs, targets = torch.as_tensor(data.train_inputs).double(), torch.as_tensor(data.train_targets)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loss = torch.zeros(())
    for epoch in range(1, EPOCHS + 1):
        model.train()
        order = torch.from_numpy(epoch_order(7, epoch, len(targets)))
        for start, end in batch_bounds(len(targets), BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs[order[start:end]]), targets[order[start:end]]).backward()
            optimizer.step()
            average.update_parameters(model)
        with torch.no_grad():
            outputs = average.module.eval()(torch.as_tensor(data.validation_inputs).double())
            loss = nn.functional.cross_entropy(outputs, torch.as_tensor(data.validation_targets))
    return model, average.module, loss.item()


def counted(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A state dict without the number of batches, of which torch's class averages the whole number."""
    return {name: tensor for name, tensor in state.items() if not name.endswith("num_batches_tracked")}


@pytest.mark.parametrize("kind", [Net, Centred])
def test_a_training_equals_a_loop_with_torch_s_own_average(kind: type[Net], tmp_path: Path) -> None:
    model, average, loss = by_hand(kind)
    training = solo(kind=kind)
    results = list(iter(training.run_epoch, None))
    training.save(tmp_path)
    saved = torch.load(tmp_path / CHECKPOINT, weights_only=True)
    assert difference(counted(saved[UNAVERAGED]), counted(model.state_dict())) <= EXACT
    assert difference(counted(saved["model"]), counted(average.state_dict())) <= EXACT
    assert difference(counted(saved["model"]), counted(model.state_dict())) > 1e-2
    assert results[-1].metrics["validation/loss"] == pytest.approx(loss, rel=1e-9)
    loaded = trained_model(kind(), Trial("t0000", 0, HP), tmp_path)
    assert difference(counted(loaded.double().state_dict()), counted(average.state_dict())) <= 1e-6


class Viewed(nn.Module):
    """A buffer in the memory of a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(12, 12, dtype=torch.float64)
        self.register_buffer("rows", self.layer.weight.data[:4])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + (x @ self.rows.t()).repeat(1, 3)  # type: ignore[no-any-return, operator]


class Viewing(Net):
    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        first, last = nn.Linear(64, 12, dtype=torch.float64), nn.Linear(12, 10, dtype=torch.float64)
        return nn.Sequential(first, nn.ReLU(), Viewed(), nn.ReLU(), last)


def test_a_buffer_that_views_a_weight_keeps_its_average_over_evaluations() -> None:
    often, once = solo(kind=Viewing), solo(kind=Viewing)
    viewed: Any = often.model[2]
    assert viewed.rows.data_ptr() == viewed.layer.weight.data_ptr()
    once.evaluate = dict  # type: ignore[assignment, method-assign]
    results = list(zip(iter(often.run_epoch, None), iter(once.run_epoch, None), strict=True))
    assert len(results) == EPOCHS
    assert torch.equal(viewed.rows, viewed.layer.weight[:4])
    assert TorchSolo.evaluate(once)["loss"] == pytest.approx(results[-1][0].metrics["validation/loss"], rel=1e-9)
    assert difference(parameters(often.model), parameters(once.model)) == 0


@pytest.mark.parametrize("stop", [1, 3])
def test_a_training_goes_on_with_its_average(stop: int, tmp_path: Path) -> None:
    whole, first, second = solo(), solo(), solo()
    wanted = [result.metrics for result in iter(whole.run_epoch, None)]
    for _ in range(stop):
        first.run_epoch()
    first.save(tmp_path)
    second.load(tmp_path)
    assert [result.metrics for result in iter(second.run_epoch, None)] == [
        pytest.approx(metrics, rel=1e-9) for metrics in wanted[stop:]
    ]
    scored = solo()
    scored.load_parameters(tmp_path)
    assert scored.evaluate()["loss"] == pytest.approx(wanted[stop - 1]["validation/loss"], rel=1e-9)


def test_production_and_a_member_of_an_array_have_the_same_average(tmp_path: Path) -> None:
    alone = solo()
    wanted = [result.metrics for result in iter(alone.run_epoch, None)]
    production = TorchParallel(solo(), ParallelSettings(BATCH, optimizer_settings=OptimizerSettings.of(HP)), OneRank())
    found = [progress.result.metrics for progress in iter(production.advance, None) if progress.result]
    assert found == [pytest.approx(metrics, rel=1e-9) for metrics in wanted]
    production.save(tmp_path)
    checkpoint = torch.load(tmp_path / CHECKPOINT, weights_only=True)
    assert difference(checkpoint["model"], alone.state()["model"]) <= EXACT

    trials = [Trial("t0000", 7, HP), Trial("t0001", 8, {**HP, "ema_decay": 0.5}), Trial("t0002", 9, _without())]
    array = new_array(Net(), trials, epochs=EPOCHS)
    for _ in range(EPOCHS):
        array.run_epoch()
    array.save(tmp_path)
    save_saved_members(tmp_path, {"t0000": tmp_path})
    state = torch.load(tmp_path / CHECKPOINT, weights_only=True)
    for name in ("model", UNAVERAGED):
        assert difference(state[name], alone.state()[name]) <= EXACT
    assert sorted(state[AVERAGED]) == sorted(alone.state()[AVERAGED])
    assert UNAVERAGED not in array.member_state("t0002")


def _without() -> dict[str, Any]:
    return {name: value for name, value in HP.items() if name != "ema_decay"}


@pytest.mark.parametrize("left", [["t0000"], ["t0001"]], ids=["an average", "no average"])
def test_an_array_goes_on_when_members_have_left(left: list[str], tmp_path: Path) -> None:
    trials = [Trial("t0000", 7, HP), Trial("t0001", 8, _without())]
    array = new_array(Net(), trials, epochs=EPOCHS)
    for _ in range(2):
        array.run_epoch()
    array.save(tmp_path)
    remaining = [trial for trial in trials if trial.trial_id in left]
    again = new_array(Net(), remaining, epochs=EPOCHS)
    again.load(tmp_path)
    for _ in range(2):
        array.run_epoch()
        again.run_epoch()
    (name,) = left
    one, other = array.member_state(name), again.member_state(name)
    assert set(one) == set(other)
    for part in set(one) & {"model", UNAVERAGED}:
        assert difference(one[part], other[part]) <= EXACT


def test_an_array_that_was_saved_without_averages_begins_them(tmp_path: Path) -> None:
    """An experiment's own hyper-parameter of this name, before it had a meaning here."""
    trials = [Trial("t0000", 7, _without())]
    array = new_array(Net(), trials, epochs=EPOCHS)
    array.run_epoch()
    array.save(tmp_path)
    again = new_array(Net(), [Trial("t0000", 7, HP)], epochs=EPOCHS)
    again.load(tmp_path)
    one, other = again.member_state("t0000"), array.member_state("t0000")
    assert difference(one[UNAVERAGED], other["model"]) == 0
    assert difference(one["model"], other["model"]) == 0
    assert str(one["optimizer"]) == str(other["optimizer"])


def test_an_evaluation_leaves_the_training_as_it_was() -> None:
    training, other = solo(), solo()
    for each in (training, other):
        each.run_epoch()
    before = training.state()
    training.evaluate()
    for part in ("model", UNAVERAGED):
        assert difference(training.state()[part], before[part]) == 0
    again = [training.run_epoch(), other.run_epoch()]
    assert again[0].metrics == again[1].metrics  # type: ignore[union-attr]
    assert training.state()["model"]._metadata == training.model.state_dict()._metadata  # type: ignore[attr-defined]


def test_members_take_over_the_average_of_others(tmp_path: Path) -> None:
    """As a population does: from a row of the array, and from a checkpoint of another worker."""
    trials = [Trial("t0000", 7, HP), Trial("t0001", 8, HP), Trial("t0002", 9, HP)]
    array = new_array(Net(), trials, epochs=EPOCHS)
    array.run_epoch()
    array.save_member("t0000", tmp_path)
    array.copy_members({"t0001": "t0000"})
    array.load_member("t0002", tmp_path)
    wanted = array.member_state("t0000")
    for taker in ("t0001", "t0002"):
        for part in ("model", UNAVERAGED):
            assert difference(array.member_state(taker)[part], wanted[part]) == 0


class Counted(nn.Linear):
    def __init__(self) -> None:
        super().__init__(64, 10)
        self.register_buffer("total", torch.zeros(()), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.total = self.total + x.abs().mean() * (1 + self.bias.detach().norm())
        return super().forward(x)


class Counting(Net):
    def model(self, hp: Any) -> nn.Module:
        return Counted()


def test_the_average_of_a_buffer_that_no_checkpoint_holds_is_not_taken_over(tmp_path: Path) -> None:
    trials = [Trial("t0000", 7, HP), Trial("t0001", 8, HP), Trial("t0002", 9, HP)]
    array = new_array(Counting(), trials, epochs=EPOCHS)
    array.run_epoch()
    average = array.program.optimizer.average(array.tiles[0].optimizer_state)["total"]
    before = average.tolist()
    assert len(set(before)) == 3
    array.save_member("t0000", tmp_path)
    array.copy_members({"t0001": "t0000"})
    array.load_member("t0002", tmp_path)
    assert average.tolist() == before
    alone = TorchSolo(Counting(), few(), trials[1], Settings(EPOCHS, 1, "float32", Path()), DEVICE, torch.float64)
    alone.run_epoch()
    alone.load(tmp_path)
    assert alone.average is not None
    assert alone.average.averages is not None
    assert alone.average.averages[-1].item() == pytest.approx(before[1])


def test_a_checkpoint_of_a_trial_without_an_average_begins_one(tmp_path: Path) -> None:
    plain = solo(_without())
    plain.run_epoch()
    plain.save(tmp_path)
    training = solo()
    training.load(tmp_path)
    assert difference(training.state()["model"], plain.state()["model"]) == 0
    average = solo()
    average.run_epoch()
    average.save(tmp_path)
    without = solo(_without())
    without.load(tmp_path)
    assert difference(without.state()["model"], average.state()[UNAVERAGED]) == 0


@pytest.mark.parametrize("read", [1.0, -0.1, "0.9", True])
def test_a_decay_out_of_range_is_refused(read: Any) -> None:
    with pytest.raises(ValueError, match=r"ema_decay: read .*; a number from 0 to below 1 is wanted"):
        OptimizerSettings.of({"ema_decay": read})


class OwnSteps(Net):
    """Its optimizer takes the steps of raygpu's."""

    def optimizer(self, model: nn.Module, hp: Mapping[str, Any]) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=hp["lr"], momentum=hp["momentum"])


def test_a_training_goes_on_with_another_decay_and_an_average_cannot_begin_later() -> None:
    """Also beside an optimizer of the experiment's own, as raygpu keeps the average itself."""
    changes = [{"epoch": 2, "ema_decay": 0.5}]
    changed, plain = OptimizerSettings.of(HP, changes), OptimizerSettings.of(HP)
    averages = []
    for kind, settings in ((Net, changed), (Net, plain), (OwnSteps, changed)):
        training = solo(kind=kind)
        training.optimizer_settings = settings
        training.run_epoch()
        training.run_epoch()
        averages.append(training.state())
    assert difference(averages[0][UNAVERAGED], averages[1][UNAVERAGED]) == 0
    assert difference(averages[0]["model"], averages[1]["model"]) > 1e-3
    assert difference(averages[0]["model"], averages[2]["model"]) <= EXACT
    own = solo(kind=OwnSteps, epochs=2)
    own.optimizer_settings = changed
    production = TorchParallel(own, ParallelSettings(BATCH, optimizer_settings=changed), OneRank())
    assert all(iter(production.advance, None))
    assert difference(averages[0]["model"], own.state()["model"]) <= EXACT
    with pytest.raises(ValueError, match="ema_decay: an average begins with the first epoch"):
        OptimizerSettings.of({"lr": 0.1}, changes)


class Network(nn.Sequential):
    """A network of bfloat16."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 10))
        self.bfloat16()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.to(next(self.parameters()).dtype)).float()  # type: ignore[no-any-return]


class InHalf(Net):
    """A model whose average a step moves by less than a parameter's last digit."""

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return Network()


SLOW = {**HP, "ema_decay": 0.998}


def in_half() -> TorchSolo:
    return TorchSolo(InHalf(), few(), Trial("t0000", 7, SLOW), Settings(EPOCHS, 1, "float32", Path()), DEVICE)


def test_an_average_of_half_precision_is_kept_in_float32(tmp_path: Path) -> None:
    training, wanted = in_half(), list[torch.Tensor]()
    take_step = training.take_step

    def noted(lr: float) -> None:
        """Take a step, and its result into an average by hand."""
        take_step(lr)
        values = [parameter.detach().float() for parameter in training.model.parameters()]
        for average, value in zip(wanted, values, strict=False):
            average.lerp_(value, 1 - SLOW["ema_decay"])
        wanted.extend(values[len(wanted) :])

    training.take_step = noted  # type: ignore[method-assign]
    for _ in range(2):
        training.run_epoch()
    training.save(tmp_path)
    state = training.state()
    assert state[UNAVERAGED]["0.weight"].dtype == torch.bfloat16
    by_hand = dict(zip(dict(training.model.named_parameters()), wanted, strict=True))
    assert difference(state["model"], by_hand) <= 1e-6
    second = in_half()
    second.load(tmp_path)
    for wanted_result, result in zip(iter(training.run_epoch, None), iter(second.run_epoch, None), strict=True):
        assert result.metrics == wanted_result.metrics
    for part in ("model", UNAVERAGED):
        assert difference(second.state()[part], training.state()[part]) == 0
    loaded: Any = trained_model(InHalf(), Trial("t0000", 0, SLOW), tmp_path)
    assert torch.equal(loaded[0].weight, state["model"]["0.weight"].bfloat16())


def test_a_member_in_half_precision_has_the_average_of_its_training_alone(tmp_path: Path) -> None:
    trials = [Trial("t0000", 7, SLOW), Trial("t0001", 8, {**SLOW, "ema_decay": 0.5})]
    array, other = (new_array(InHalf(), trials, None, epochs=EPOCHS) for _ in range(2))
    results = list(iter(array.run_epoch, None))
    state, alone = array.member_state("t0000"), in_half()
    metrics = [result.metrics for result in iter(alone.run_epoch, None)][-1]
    assert difference(state["model"], alone.state()["model"]) < 0.005
    assert state[UNAVERAGED]["0.weight"].dtype == torch.bfloat16
    assert results[-1]["t0000"].metrics["validation/loss"] == pytest.approx(metrics["validation/loss"], rel=0.02)
    array.save(tmp_path)
    other.load(tmp_path)
    assert difference(other.member_state("t0000")["model"], state["model"]) == 0
    array.save_member("t0000", tmp_path)
    array.load_member("t0001", tmp_path)
    assert difference(array.member_state("t0001")["model"], state["model"]) == 0
