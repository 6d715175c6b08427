"""A pipeline over micro-batches trains as one device does, and says in a line what it cannot do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import nn

from raygpu import Mean, Splits, Sum, TorchExperiment
from raygpu.errors import BadInput
from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from raygpu.training.torch import pipeline_cut
from raygpu.training.torch.data import tensors
from raygpu.training.torch.pipeline import PipelineSettings, TorchPipeline
from raygpu.training.torch.solo import TorchSolo
from tests.ranks import on_ranks

CPU = torch.device("cpu")
SETTINGS = Settings(epochs=2, threads=1, precision="float32", folder=Path())
SAMPLES = 43
"""With batches of 16, the last one has 11 samples: no micro-batches of one size."""


class Small(TorchExperiment):
    """Three classes."""

    shape: tuple[int, ...] = (6,)

    def data(self) -> Splits:
        draw = np.random.default_rng(0)
        inputs = draw.normal(size=(SAMPLES + 8, *self.shape)).astype(np.float32)
        targets = draw.integers(0, 3, SAMPLES + 8)
        return Splits(inputs[:SAMPLES], targets[:SAMPLES], inputs[SAMPLES:], targets[SAMPLES:])

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 3))

    def loss(self, outputs: Any, targets: Any) -> Any:
        return nn.functional.cross_entropy(outputs, targets)

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        return {}


class Weighted(Small):
    """A mean with a denominator of its own: class 0 counts three times."""

    def loss(self, outputs: Any, targets: Any) -> Any:
        weights = torch.where(targets == 0, 3.0, 1.0)
        return Mean((nn.functional.cross_entropy(outputs, targets, reduction="none") * weights).sum(), weights.sum())


class Summed(Small):
    """A sum over samples."""

    def loss(self, outputs: Any, targets: Any) -> Any:
        return Sum(nn.functional.cross_entropy(outputs, targets, reduction="sum"))


class Skipping(nn.Module):
    """Convolutions with a residual connection from the first to behind the third."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Conv2d(before, 4, 3, padding=1) for before in (2, 4, 4))
        self.last = nn.Linear(4, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        early = self.first(images).relu()
        return self.last((early + self.third(self.second(early).relu())).amax((2, 3)))


class Cnn(Small):
    """The convolutions."""

    shape = (2, 5, 5)

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return Skipping()


class Gated(Small):
    """A second input of floating-point numbers, which all stages read."""

    def data(self) -> Splits:
        one = super().data()
        return Splits(*(self.gated(each) for each in (one.train_inputs, one.train_targets)),
                      *(self.gated(each) for each in (one.validation_inputs, one.validation_targets)))  # fmt: skip

    def gated(self, arrays: Any) -> Any:
        return arrays if arrays.ndim == 1 else {"inputs": arrays, "gate": np.abs(arrays)}

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return _Gated()


class _Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, gate: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        early = self.first(inputs) * gate
        middle = self.second(early) * gate
        return self.third(middle + gate * early)


class Frozen(Small):
    """A first stage that only scales its inputs, and a layer that is not trained."""

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        layers = nn.Sequential(nn.Tanh(), nn.Linear(6, 7), nn.Linear(7, 4), nn.Tanh(), nn.Linear(4, 3))
        layers[1].requires_grad_(False)
        return layers


class Towers(TorchExperiment):
    """Two towers, of named inputs."""

    def data(self) -> Splits:
        draw = np.random.default_rng(0)
        inputs = {name: draw.integers(0, 30, (SAMPLES, 9)) for name in ("item", "user")}
        stars = draw.normal(3, 1, SAMPLES).astype(np.float32)
        return Splits(inputs, stars, inputs, stars)

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        from experiments.torch_networks import TwoTowers

        return TwoTowers(30, 4, 5, 3, 3.0)

    def loss(self, outputs: Any, targets: Any) -> Any:
        return (outputs - targets).square().mean()

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        return {}


def trial(**hp: Any) -> Trial:
    return Trial("t0000", 3, {"batch_size": 16, "lr": 0.1, "momentum": 0.9} | hp)


def piped(ranks: Any, experiment: Any, hp: dict[str, Any], pipeline: PipelineSettings) -> Any:
    """Loss of two epochs, and the stage's parameters."""
    rank = TorchPipeline(experiment, experiment.data(), trial(**hp), SETTINGS, pipeline, CPU)
    losses = [rank.train(epoch) for epoch in (1, 2)]
    return losses, {name: value.numpy() for name, value in rank.parameters().items()}


def turned(ranks: Any, experiment: Any, pipeline: PipelineSettings) -> Any:
    rank = TorchPipeline(experiment, experiment.data(), trial(), SETTINGS, pipeline, CPU)
    return rank.turn(), {name: value.numpy() for name, value in rank.parameters().items()}


def refused(ranks: Any, experiment: Any, pipeline: PipelineSettings, settings: Settings) -> list[str]:
    try:
        rank = TorchPipeline(experiment, experiment.data(), trial(), settings, pipeline, CPU)
    except BadInput as error:
        return list(error.faults)
    return ["not refused", *rank.notes]


def alone(experiment: Any, **hp: Any) -> tuple[list[float], dict[str, np.ndarray]]:
    solo = TorchSolo(experiment, experiment.data(), trial(**hp), SETTINGS, CPU)
    losses = []
    while (result := solo.run_epoch()) is not None:
        losses.append(result.metrics["train/loss"])
    return losses, {name: value.detach().numpy() for name, value in solo.model.named_parameters()}


def require_equal(told: list[Any], losses: list[float], parameters: dict[str, np.ndarray]) -> None:
    found: dict[str, np.ndarray] = {}
    for own_losses, own in told:
        assert own_losses == pytest.approx(losses, rel=1e-5)
        assert not found.keys() & own.keys()
        found |= own
    assert found.keys() == parameters.keys()
    for name, value in parameters.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


BY_BOTH: list[Any] = [
    (Small(), ("2", "4"), 5),
    (Cnn(), ("second", "third"), 4),  # the first maps are read by both of the later stages
    (Frozen(), ("1",), 4),  # nothing to train in the first stage
]
BY_ONE: list[Any] = [
    (Small(), ("2",), 4),
    (Small(), ("2",), 13),
    (Cnn(), ("third",), 4),
    (Gated(), ("second", "third"), 4),
    (Frozen(), ("2", "4"), 4),
    (Small(), ("1", "2"), 4),  # no parameters in the second stage
    (Towers(), ("item_tower",), 4),
    (Towers(), ("item_tower", "join"), 4),
]
"""Of these, `make test` has one schedule alone."""


@pytest.mark.parametrize(
    ("experiment", "stages", "micro_batches", "schedule"),
    [
        *((*case, schedule) for case in BY_BOTH for schedule in ("gpipe", "1f1b")),
        *((*case, "gpipe") for case in BY_ONE),
        *(pytest.param(*case, "1f1b", marks=pytest.mark.slow) for case in BY_ONE),
    ],
)
def test_a_pipeline_trains_as_one_device(
    experiment: Any, stages: tuple[str, ...], micro_batches: int, schedule: Literal["gpipe", "1f1b"]
) -> None:
    if isinstance(experiment, Towers) and not pipeline_cut.PASSES_INTEGERS:
        pytest.skip("torch before 2.13 passes no integers")
    pipeline = PipelineSettings(stages, micro_batches, schedule)
    require_equal(on_ranks(len(stages) + 1, piped, experiment, {}, pipeline), *alone(experiment))


@pytest.mark.parametrize("experiment", [Weighted(), Summed()])
def test_losses_with_a_denominator_of_their_own_and_sums(experiment: Any) -> None:
    hp = {"lr": 0.01, "optimizer": "adam"}
    require_equal(on_ranks(2, piped, experiment, hp, PipelineSettings(("2",), 5, "1f1b")), *alone(experiment, **hp))


def test_the_norm_is_that_of_all_stages() -> None:
    hp = {"clip_norm": 0.05}
    require_equal(on_ranks(3, piped, Small(), hp, PipelineSettings(("2", "4"), 4)), *alone(Small(), **hp))


def test_a_turn_is_a_warm_up_and_an_epoch() -> None:
    solo = TorchSolo(Small(), Small().data(), trial(), SETTINGS, CPU)
    for _ in solo._steps(epoch=1):  # three steps: fewer than the most of a warm-up
        pass
    solo.epoch = 1
    loss = solo._train()["train/loss"]
    told = on_ranks(2, turned, Small(), PipelineSettings(("2",), 4))
    for turn, parameters in told:
        assert turn.loss == pytest.approx(loss, rel=1e-5)
        assert turn.epoch_s == told[0][0].epoch_s
        assert 0 < turn.busy_s < turn.epoch_s
        floats = 3 * sum(value.size for value in parameters.values())  # with the gradient and SGD's momentum
        assert 4 * floats < turn.memory_gib * 2**30 < 4 * floats + 10_000


def test_one_after_the_other_keeps_fewer_activations_than_all_at_once() -> None:
    memory = {}
    for schedule in ("gpipe", "1f1b"):
        told = on_ranks(2, turned, Wide(), PipelineSettings(("2",), 8, schedule))  # type: ignore[arg-type]
        memory[schedule] = [turn.memory_gib for turn, _ in told]
    assert all(less < more for less, more in zip(memory["1f1b"], memory["gpipe"], strict=True))


class Wide(Small):
    """Many activations that stay on their stage."""

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        layers = [nn.Linear(6, 500), nn.Linear(500, 3), nn.Linear(3, 500), nn.Linear(500, 3)]
        return nn.Sequential(*(nn.Sequential(layer, nn.Tanh()) for layer in layers))


class Branching(Small):
    """Python's `if` on a number."""

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return _Branching()


class _Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        maps = self.first(inputs)
        return self.last(maps if maps.sum() > 0 else -maps)


class Normalised(Small):
    """BatchNorm in the first stage."""

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))


class Tied(Small):
    """Two stages with one parameter."""

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        layers = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Linear(6, 3))
        layers[2].weight = layers[0].weight
        return layers


@pytest.mark.parametrize(
    ("experiment", "pipeline", "told"),
    [
        (Small(), PipelineSettings(("first",), 4), "the model has no submodule 'first'; it has: 0, 1, 2, 3, 4"),
        (Small(), PipelineSettings(("2",), 17), "micro_batches: read 17; a batch has 16 samples"),
        (Small(), PipelineSettings(("2",), 1, "1f1b"), "1f1b needs one for each of the 2 stages"),
        (Small(), PipelineSettings(("0",), 4), "nothing is left for stage 0"),
        (Small(), PipelineSettings((), 4), "stages: read none"),
        (Branching(), PipelineSettings(("last",), 4), "the model cannot be traced: "),
        (Tied(), PipelineSettings(("2",), 4), "several stages read the parameter"),
        (Normalised(), PipelineSettings(("2",), 4), "not refused"),
    ],
)
def test_faults_are_told_in_a_line(experiment: Any, pipeline: PipelineSettings, told: str) -> None:
    for faults in on_ranks(2, refused, experiment, pipeline, SETTINGS):
        assert told in faults[0]
        assert all("\n" not in fault for fault in faults)
        assert ("BatchNorm" in faults[-1]) == isinstance(experiment, Normalised)


def test_integers_that_torch_cannot_pass_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_cut, "PASSES_INTEGERS", False)
    experiment = Towers()
    first = tensors(experiment.data().first(4).train_inputs)
    with pytest.raises(BadInput, match="stage 1 reads int64 values of an earlier stage"):
        pipeline_cut.cut_model(experiment.model({}), first, ("item_tower",))
    small = tensors(Small().data().first(4).train_inputs)
    assert pipeline_cut.cut_model(Small().model({}), small, ("2",)).num_stages == 2


def test_half_precision_is_refused() -> None:
    settings = replace(SETTINGS, precision="bf16")
    for faults in on_ranks(2, refused, Small(), PipelineSettings(("2",), 4), settings):
        assert faults[0].startswith("precision: read bf16")
