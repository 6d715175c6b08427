"""An optimizer with `train()` and `eval()`, as schedule-free ones have: what is evaluated and saved is what `eval()`
makes of the parameters, and the training goes on as if that had not been."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from raygpu.planning.batches import batch_bounds, epoch_order
from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from raygpu.training.distributed.ranks import OneRank, ParallelSettings, Ranks
from raygpu.training.distributed.torch_ranks import TorchParallel
from raygpu.training.torch.first_step import first_result
from raygpu.training.torch.models import initial_model
from raygpu.training.torch.parameter_average import UNAVERAGED
from raygpu.training.torch.solo import TorchSolo
from tests.models import Mlp, few
from tests.ranks import on_ranks
from tests.training.fused.alike import EXACT, difference, parameters

EPOCHS, BATCH = 3, 32
HP = {"hidden": 16, "batch_size": BATCH}
SHARE = 0.9


class Averaging(torch.optim.SGD):
    """Moves the parameters most of the way to the mean of all steps, and back with rounding; the mode is saved."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.5)
        self.param_groups[0] |= {"trains": False, "count": 0}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        (group,) = self.param_groups
        assert group["trains"]
        super().step()
        group["count"] += 1
        for parameter in group["params"]:
            mean = self.state[parameter].setdefault("mean", parameter.detach().clone())
            mean.lerp_(parameter, 1 / group["count"])

    def train(self) -> None:
        self._move(1 - 1 / (1 - SHARE), trains=True)

    def eval(self) -> None:
        self._move(SHARE, trains=False)

    @torch.no_grad()
    def _move(self, share: float, *, trains: bool) -> None:
        (group,) = self.param_groups
        for parameter in group["params"] if group["trains"] != trains else ():
            if "mean" in self.state[parameter]:
                parameter.lerp_(self.state[parameter]["mean"], share)
        group["trains"] = trains


class Averaged(Mlp):
    def optimizer(self, model: nn.Module, hp: Mapping[str, Any]) -> torch.optim.Optimizer:
        return Averaging(model.parameters())


class InTurns(Mlp):
    """The same among several optimizers."""

    def optimizer(self, model: Any, hp: Mapping[str, Any]) -> Any:
        return {"first": Averaging(model[0].parameters()), "last": Averaging(model[2].parameters())}

    def training_step(self, model: Any, inputs: Any, targets: Any, hp: Mapping[str, Any]) -> Iterator[Any]:
        for name in ("first", "last"):
            yield name, self.loss(model(inputs), targets)


def solo(experiment: Any) -> TorchSolo:
    settings = Settings(EPOCHS, 1, "float32", Path())
    return TorchSolo(experiment, few(), Trial("t0000", 7, HP), settings, torch.device("cpu"), torch.float64)


def by_hand(experiment: Any) -> tuple[nn.Module, list[float]]:
    """The model that a loop by hand evaluates at the end, and the validation loss of each epoch."""
    model, data = initial_model(experiment, HP, 7).double(), few()
    inputs, targets, held_out, wanted = (
        torch.as_tensor(each)
        for each in (data.train_inputs, data.train_targets, data.validation_inputs, data.validation_targets)
    )
    made = experiment.optimizer(model, HP)
    optimizers = [*made.values()] if isinstance(made, dict) else [made]
    losses = []
    for epoch in range(1, EPOCHS + 1):
        for each in optimizers:
            each.train()
        order = torch.from_numpy(epoch_order(7, epoch, len(targets)))
        for start, end in batch_bounds(len(targets), BATCH):
            for each in optimizers:
                model.zero_grad()
                chosen = order[start:end]
                nn.functional.cross_entropy(model(inputs[chosen].double()), targets[chosen]).backward()
                each.step()
        for each in optimizers:
            each.eval()
        with torch.no_grad():
            losses.append(nn.functional.cross_entropy(model(held_out.double()), wanted).item())
    return model, losses


@pytest.mark.parametrize("kind", [Averaged, InTurns])
def test_what_is_evaluated_and_saved_is_what_eval_makes(kind: type[Mlp], tmp_path: Path) -> None:
    training = solo(kind())
    results = [result.metrics["validation/loss"] for result in iter(training.run_epoch, None)]
    wanted, losses = by_hand(kind())
    assert results == pytest.approx(losses, rel=EXACT)
    training.save(tmp_path)
    loaded = solo(kind())
    loaded.load_parameters(tmp_path)
    assert difference(parameters(loaded.model), parameters(wanted)) <= EXACT
    assert difference(parameters(training.model), parameters(wanted)) > 1e-3
    assert loaded.evaluate()["loss"] == pytest.approx(losses[-1], rel=EXACT)


@pytest.mark.parametrize("kind", [Averaged, InTurns])
def test_going_on_and_evaluations_change_nothing(kind: type[Mlp], tmp_path: Path) -> None:
    whole, first, second = (solo(kind()) for _ in range(3))
    first.run_epoch()
    first.evaluate()
    first.save(tmp_path)
    second.load(tmp_path)
    for training in (whole, second):
        while training.run_epoch() is not None:
            pass
    for name in ("model", UNAVERAGED):
        assert difference(second.state()[name], whole.state()[name]) == 0


def produced(ranks: Ranks) -> Any:
    training = TorchParallel(solo(Averaged()), ParallelSettings(BATCH, ratios=(3.0, 2.0)[: ranks.world]), ranks)
    progress = [each.result for each in iter(training.advance, None) if each.result is not None]
    return [
        each.metrics["validation/loss"] for each in progress if "validation/loss" in each.metrics
    ], training.states()


def test_ranks_evaluate_and_save_the_same() -> None:
    """One rank evaluates, and the parameters of all are alike in the next epoch."""
    (losses, states), (_, others) = on_ranks(2, produced)
    wanted, by_epoch = by_hand(Averaged())
    assert losses == pytest.approx(by_epoch, rel=EXACT)
    assert difference(states["model"], dict(wanted.state_dict())) <= EXACT
    assert difference(states[UNAVERAGED], others[UNAVERAGED]) == 0
    (alone, one) = produced(OneRank())
    assert alone == pytest.approx(by_epoch, rel=EXACT)
    assert difference(one["model"], dict(wanted.state_dict())) <= EXACT


@pytest.mark.parametrize("kind", [Averaged, InTurns])
def test_two_averages_are_refused(kind: type[Mlp]) -> None:
    with pytest.raises(ValueError, match=r"ema_decay: Averaging has an average of its own, by its eval\(\)"):
        first_result(kind(), few().first(8), {**HP, "ema_decay": 0.9})
