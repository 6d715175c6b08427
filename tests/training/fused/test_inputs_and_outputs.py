"""Models of other inputs, outputs, parameters and losses: each member equals the same trial trained alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from raygpu import Mean, Splits, Sum, TorchExperiment
from raygpu.training.fused.model_array import TorchArray
from raygpu.training.torch.solo import TorchSolo
from tests.models import Mlp, few
from tests.torch_device import DEVICE
from tests.training.fused.alike import (
    ADAM,
    EXACT,
    SGD,
    difference,
    member_difference,
    members,
    new_array,
    parameters,
    run,
    settings,
    solo,
)


class Parts(TorchExperiment):
    """A model with a frozen, an unused and a tied parameter, and buffers that are saved and that are not."""

    def data(self) -> Splits:
        return few()

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return PartsModel()


class PartsModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.unused = nn.Linear(64, 16), nn.Linear(3, 3)
        self.frozen.requires_grad_(False)
        self.inner, self.tied, self.last = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 10)
        self.tied.weight = self.inner.weight
        self.register_buffer("scale", torch.rand(16))
        self.register_buffer("steps", torch.zeros(()), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.steps.add_(1)
        hidden = torch.tanh(self.frozen(x)) * self.scale
        return self.last(torch.tanh(self.tied(torch.tanh(self.inner(hidden)))))


@pytest.mark.parametrize(
    ("optimizer", "own"), [("sgd", SGD), ("adam", ADAM), ("adamw", ADAM)], ids=["sgd", "adam", "adamw"]
)
def test_frozen_unused_and_tied_parameters(optimizer: str, own: list[dict[str, Any]], tmp_path: Path) -> None:
    experiment = Parts()
    trials = members({}, own, optimizer=optimizer)
    array = new_array(experiment, trials)
    before = {trial.trial_id: array.member_state(trial.trial_id)["model"] for trial in trials}
    run(array)
    for trial in trials:
        training = solo(experiment, trial, torch.float64)
        run(training)
        state = array.member_state(trial.trial_id)["model"]
        assert list(state) == list(training.model.state_dict())
        assert difference(state, training.model.state_dict()) <= EXACT
        for name in ("frozen.weight", "frozen.bias", "unused.weight", "unused.bias", "scale"):
            assert torch.equal(state[name], before[trial.trial_id][name])
        assert torch.equal(state["tied.weight"], state["inner.weight"])
        assert difference(before[trial.trial_id], {"inner.weight": state["inner.weight"]}) > 0.01
        array.save_member(trial.trial_id, tmp_path)
        going_on = solo(experiment, trial, torch.float64)
        going_on.load(tmp_path)
        for buffers, others in zip(going_on.optimizer.buffers, training.optimizer.buffers, strict=True):
            assert [b.shape for b in buffers] == [b.shape for b in others]
            assert difference(dict(enumerate(buffers)), dict(enumerate(others))) <= 1e-8  # type: ignore[arg-type]
    assert array.tiles[0].buffers["steps"].tolist() == [40.0] * len(trials)


class Halves(TorchExperiment):
    """Named inputs and named targets, outputs of two kinds."""

    def data(self) -> Splits:
        whole = few()

        def cut(pixels: Any) -> dict[str, np.ndarray]:
            return {"top": pixels[:, :32], "bottom": pixels[:, 32:]}

        def named(labels: Any) -> dict[str, np.ndarray]:
            return {"digit": labels, "odd": (labels % 2).astype(np.float32)}

        return Splits(
            cut(whole.train_inputs),
            named(whole.train_targets),
            cut(whole.validation_inputs),
            named(whole.validation_targets),
        )

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return HalvesModel()

    def augment(self, inputs: Any, hp: Mapping[str, Any]) -> Any:
        return {name: half * hp["gain"] for name, half in inputs.items()}

    def loss(self, outputs: Any, targets: Any) -> Any:
        digit = nn.functional.cross_entropy(outputs["digit"], targets["digit"])
        return digit + nn.functional.binary_cross_entropy_with_logits(outputs["odd"], targets["odd"])

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        return {"accuracy": (outputs["digit"].argmax(-1) == targets["digit"]).double().mean()}


class HalvesModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.top, self.bottom, self.last = nn.Linear(32, 8), nn.Linear(32, 8), nn.Linear(16, 11)

    def forward(self, *, top: torch.Tensor, bottom: torch.Tensor) -> dict[str, torch.Tensor]:
        both = self.last(torch.tanh(torch.cat([self.top(top), self.bottom(bottom)], 1)))
        return {"digit": both[:, :10], "odd": both[:, 10]}


class HostMetrics(Halves):
    """Metrics that leave torch: not to be had for all members at once."""

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        found = outputs["digit"].argmax(-1).cpu().numpy()
        return {
            "accuracy": float(np.mean(found == targets["digit"].cpu().numpy())),
            "largest": outputs["odd"].max().item(),
            "first": outputs["digit"][0, 0],
        }


@pytest.mark.parametrize("kind", [Halves, HostMetrics])
def test_named_inputs_and_metrics_off_the_device(kind: type[TorchExperiment]) -> None:
    experiment = kind()
    trials = members({"gain": 1.5}, SGD)
    array = new_array(experiment, trials, epochs=3, width=3)
    results = run(array, 3)
    for trial in trials:
        training = solo(experiment, trial, torch.float64, epochs=3)
        for result, expected in zip(results, run(training, 3), strict=True):
            assert dict(result[trial.trial_id].metrics) == pytest.approx(dict(expected.metrics), rel=1e-6)
        assert member_difference(array, trial, parameters(training.model)) <= EXACT


class Pair(NamedTuple):
    logits: torch.Tensor
    hidden: torch.Tensor


class PairModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 8), nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> Pair:
        hidden = torch.tanh(self.first(x))
        return Pair(self.last(hidden), hidden)


class Pairs(TorchExperiment):
    """Outputs as a named tuple, a metric in numpy."""

    def data(self) -> Splits:
        return few()

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return PairModel()

    def loss(self, outputs: Any, targets: Any) -> Any:
        return nn.functional.cross_entropy(outputs.logits, targets) + outputs.hidden.square().mean()

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        return {"largest": outputs.hidden.max().item()}


def test_outputs_as_a_named_tuple() -> None:
    trials = members({}, SGD[:2])
    array = new_array(Pairs(), trials, epochs=1)
    (results,) = run(array, 1)
    for trial in trials:
        (expected,) = run(solo(Pairs(), trial, torch.float64, epochs=1), 1)
        assert dict(results[trial.trial_id].metrics) == pytest.approx(dict(expected.metrics), rel=1e-6)


class WithAttributes(dict[str, Any]):
    """A dict with its items as attributes."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


@dataclass(frozen=True)
class Record:
    logits: torch.Tensor
    hidden: torch.Tensor
    states: Any = None
    length: int = 3


FORMS: dict[str, Callable[[Pair], Any]] = {
    "named tuple": lambda pair: pair,
    "dict with attributes": lambda pair: WithAttributes(pair._asdict(), states=None, length=3),
    "dataclass": lambda pair: Record(*pair, states=[pair.hidden, None]),
}


class FormedModel(PairModel):
    def __init__(self, form: str) -> None:
        super().__init__()
        self.form = form

    def forward(self, x: torch.Tensor) -> Any:
        return FORMS[self.form](super().forward(x))


class Formed(Pairs):
    """Outputs of another class."""

    def __init__(self, form: str) -> None:
        self.form = form

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return FormedModel(self.form)


@pytest.mark.parametrize("form", FORMS)
def test_outputs_of_any_class_with_metrics_off_the_device(form: str) -> None:
    trials = members({}, SGD[:2])
    (results,) = run(new_array(Formed(form), trials, epochs=1), 1)
    for trial in trials:
        (expected,) = run(solo(Formed(form), trial, torch.float64, epochs=1), 1)
        assert dict(results[trial.trial_id].metrics) == pytest.approx(dict(expected.metrics), rel=1e-6)


class ManyToValidate(Mlp):
    """More than an evaluation takes at once, in parts of unequal size."""

    def data(self) -> Splits:
        part = few(60, 64)
        times = 20
        return Splits(
            part.train_inputs,
            part.train_targets,
            np.concatenate([part.validation_inputs] * times)[:1100],  # type: ignore[list-item]
            np.concatenate([part.validation_targets] * times)[:1100],  # type: ignore[list-item]
        )


@pytest.mark.parametrize("kind", [ManyToValidate, Mlp])
def test_means_over_validation_data(kind: type[TorchExperiment]) -> None:
    trials = members({"hidden": 8}, SGD[:3])
    (results,) = run(new_array(kind(), trials, epochs=1, width=2), 1)
    for trial in trials:
        (expected,) = run(solo(kind(), trial, torch.float64, epochs=1), 1)
        assert dict(results[trial.trial_id].metrics) == pytest.approx(dict(expected.metrics), rel=1e-6)


class OneLeftOver(Mlp):
    def data(self) -> Splits:
        return few(51, 16)


def test_a_last_batch_of_one_sample() -> None:
    trials = members({"hidden": 8}, SGD[:3])
    array = new_array(OneLeftOver(), trials, epochs=2)
    run(array, 2)
    for trial in trials:
        training = solo(OneLeftOver(), trial, torch.float64, epochs=2)
        run(training, 2)
        assert training.optimizer.num_steps == 4
        assert member_difference(array, trial, parameters(training.model)) <= EXACT


class Padded(Mlp):
    """The first samples have no padding, which a look at them would not show."""

    def data(self) -> Splits:
        words = np.random.default_rng(0).integers(1, 12, size=(60, 5))
        words[30:, 3:] = 0
        return Splits.of(words, words[:, 0] % 3)

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(nn.Embedding(12, 4, padding_idx=0), nn.Flatten(), nn.Linear(20, 3))


def test_rows_of_padding_are_trained_by_no_member() -> None:
    trials = members({}, [{"lr": 0.1}, {"lr": 0.5}, {"lr": 0.2}])
    array = new_array(Padded(), trials)
    run(array, 2)
    for trial in trials:
        training = solo(Padded(), trial, torch.float64, epochs=2)
        run(training, 2)
        assert member_difference(array, trial, parameters(training.model)) <= EXACT


class InPlace(Mlp):
    """A forward pass, a loss and a metric that change what they are given."""

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        class Model(nn.Linear):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return super().forward(x.mul_(0.5))

        return Model(64, 10)

    def loss(self, outputs: Any, targets: Any) -> Any:
        return super().loss(outputs, targets.remainder_(7))

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        return super().metrics(outputs, targets.add_(1))


def test_data_stays_as_it_is_whatever_a_model_does_to_its_arguments() -> None:
    data = InPlace().data()
    before = [np.array(part) for part in (data.train_inputs, data.validation_inputs, data.validation_targets)]
    trials = members({}, [{"lr": 0.1}, {"lr": 0.05}])
    settings_of_two = settings(2)
    ends = []
    for _ in range(2):
        training = TorchSolo(InPlace(), data, trials[0], settings_of_two, DEVICE, torch.float64)
        ends.append(run(training, 2)[-1].metrics)
    array = TorchArray(InPlace(), data, trials, settings_of_two, device=DEVICE, dtype=torch.float64)
    fused = run(array, 2)[-1][trials[0].trial_id].metrics
    assert ends[0] == ends[1]
    assert fused == pytest.approx(ends[0], rel=1e-9)
    after = (data.train_inputs, data.validation_inputs, data.validation_targets)
    assert all(np.array_equal(one, other) for one, other in zip(before, after, strict=True))


class Negating(Mlp):
    """A loss that changes the outputs, which metrics see as the model gave them."""

    in_place = True

    def loss(self, outputs: Any, targets: Any) -> Any:
        return super().loss((outputs.neg_() if self.in_place else -outputs).neg() * 1.0, targets)


class NegatingCopies(Negating):
    in_place = False


def test_metrics_see_the_outputs_and_not_what_a_loss_made_of_them() -> None:
    trials = members({"hidden": 8}, [{"lr": 0.1}, {"lr": 0.05}])
    for trial in trials:
        own, other = (run(solo(kind(), trial, torch.float64, epochs=2), 2) for kind in (Negating, NegatingCopies))
        assert own[-1].metrics == other[-1].metrics
        array = new_array(Negating(), trials)
        assert run(array, 2)[-1][trial.trial_id].metrics == pytest.approx(other[-1].metrics, rel=1e-9)


class Weighted(Mlp):
    """A loss that leaves some samples out, and a metric over the others."""

    def loss(self, outputs: Any, targets: Any) -> Any:
        counted = (targets < 7).to(outputs)
        return Mean((nn.functional.cross_entropy(outputs, targets, reduction="none") * counted).sum(), counted.sum())

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        hits = (outputs.argmax(-1) == targets) & (targets < 7)
        return {"accuracy": Mean(hits.sum(), (targets < 7).sum()), "hits": Sum(hits.sum())}


def test_weighted_losses_and_sums() -> None:
    trials = members({"hidden": 8}, [{"lr": 0.1}, {"lr": 0.05}])
    array = new_array(Weighted(), trials)
    results = run(array, 2)[-1]
    data = Weighted().data()
    for trial in trials:
        training = solo(Weighted(), trial, torch.float64, epochs=2)
        metrics = run(training, 2)[-1].metrics
        assert results[trial.trial_id].metrics == pytest.approx(metrics, rel=1e-9)
        assert member_difference(array, trial, parameters(training.model)) <= EXACT
        counted = int((np.asarray(data.validation_targets) < 7).sum())
        assert metrics["validation/hits"] == pytest.approx(metrics["validation/accuracy"] * counted)
