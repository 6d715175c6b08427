"""Batches that the model takes in parts: the gradient of the whole batch, whatever the loss is a mean of."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from raygpu import Splits, Sum, dataset_splits
from raygpu.config.source import Source
from raygpu.errors import BadInput
from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from raygpu.training.distributed.micro_batch_check import lines_of_parts
from raygpu.training.fused.groups import TorchGrouper
from raygpu.training.fused.refusal import IN_PARTS
from raygpu.training.torch.solo import TorchSolo
from tests.models import Mlp, few
from tests.torch_device import DEVICE
from tests.training.distributed.parallel_cases import CASES, Plain
from tests.training.fused.alike import parameters

HP: dict[str, Any] = {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01, "batch_size": 32}
FURTHER = ("Masked", "Tied", "Sparse")
"""Cases of which `make test` has a clipped norm and another optimizer, too: steps after the gradient are the same for
all."""
HERE = Source("torch", "here:Experiment", str(Path.cwd()))


def trained(kind: type[Plain], hp: Mapping[str, Any]) -> tuple[dict[str, torch.Tensor], list[float]]:
    """The parameters after two epochs in float64, and the epochs' losses."""
    experiment = kind()
    settings = Settings(2, 1, "float32", Path())
    solo = TorchSolo(experiment, experiment.data(), Trial("t0000", 3, hp), settings, DEVICE, torch.float64)
    losses = [result.metrics["train/loss"] for result in iter(solo.run_epoch, None)]
    return parameters(solo.model), losses


@pytest.mark.parametrize(
    ("name", "more"),
    [
        pytest.param(name, more, marks=pytest.mark.slow if more and name not in FURTHER else ())
        for name in CASES
        for more in ({}, {"clip_norm": 0.05}, {"optimizer": "adamw", "ema_decay": 0.9})
    ],
    ids=str,
)
def test_parts_have_the_gradient_of_the_whole_batch(name: str, more: dict[str, Any]) -> None:
    """Three batches of 32, 32 and 26 samples, in parts of 12 at most: 11, 11, 10 and 9, 9, 8."""
    wanted, losses = trained(CASES[name], HP | more)
    found, own = trained(CASES[name], HP | more | {"micro_batch_size": 12})
    for key, value in wanted.items():
        torch.testing.assert_close(found[key], value, rtol=1e-8, atol=1e-10, msg=lambda text, key=key: f"{key}: {text}")
    assert own == pytest.approx(losses, rel=1e-9)


def test_a_part_is_no_larger_than_asked_for() -> None:
    sizes = []

    class Noted(Plain):
        def loss(self, outputs: Any, targets: Any) -> Any:
            sizes.append(len(targets))
            return super().loss(outputs, targets)

    trained(Noted, HP | {"micro_batch_size": 12})
    assert sizes[:9] == [11, 11, 10, 11, 11, 10, 9, 9, 8]


def test_a_part_larger_than_the_batch_cuts_nothing() -> None:
    wanted, _ = trained(Plain, HP)
    found, _ = trained(Plain, HP | {"micro_batch_size": 99})
    assert all(torch.equal(found[key], value) for key, value in wanted.items())


def test_an_array_takes_whole_batches() -> None:
    whole = [Trial(Trial.name(i), i, {"hidden": 8, "lr": 0.1 + i / 100, "batch_size": 32}) for i in range(2)]
    cut = [Trial(Trial.name(2 + i), i, {**each.hyperparameters, "micro_batch_size": 8}) for i, each in enumerate(whole)]
    large = [
        Trial(Trial.name(4 + i), i, {**each.hyperparameters, "micro_batch_size": 32}) for i, each in enumerate(whole)
    ]
    groups = TorchGrouper(Mlp(), few(90, 16)).groups([*whole, *cut, *large])
    assert [group.reason for group in groups] == [None, IN_PARTS, None]


class DropsGradients(Plain):
    """A step that begins as a loop by hand begins, and reads what gradients there are."""

    def training_step(self, model: Any, inputs: Any, targets: Any, hp: Any) -> Any:
        assert all(parameter.grad is None for parameter in model.parameters())
        model.zero_grad(set_to_none=False)
        return super().training_step(model, inputs, targets, hp)


def test_a_step_sees_no_gradient_of_earlier_parts() -> None:
    wanted, _ = trained(DropsGradients, HP)
    found, _ = trained(DropsGradients, HP | {"micro_batch_size": 12})
    for key, value in wanted.items():
        torch.testing.assert_close(found[key], value, rtol=1e-8, atol=1e-10)


class Samples(Dataset[Any]):
    def __len__(self) -> int:
        return 90

    def __getitem__(self, row: int) -> Any:
        return torch.sin(torch.arange(64.0) * (row + 1)), row % 10


def mixed(samples: list[Any]) -> Any:
    inputs = torch.stack([each[0] for each in samples])
    return inputs + 0.3 * inputs[torch.randperm(len(samples))], torch.tensor([each[1] for each in samples])


class Collated(Plain):
    """Batches of a function that mixes samples."""

    def data(self) -> Splits:
        return dataset_splits(Samples(), validation=0.2, collate_fn=mixed)


def test_a_batch_is_collated_before_it_is_cut() -> None:
    wanted, _ = trained(Collated, HP)
    found, _ = trained(Collated, HP | {"micro_batch_size": 12})
    for key, value in wanted.items():
        torch.testing.assert_close(found[key], value, rtol=1e-8, atol=1e-10)


class Ranked(Plain):
    """A loss of pairs of samples."""

    def loss(self, outputs: Any, targets: Any) -> Any:
        return (outputs[:, :1] - outputs[:, 0]).abs().mean()


class Normalised(Plain):
    def model(self, hp: Mapping[str, Any]) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(64, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 10))


def test_a_loss_that_cannot_be_cut_is_refused() -> None:
    data = few(90, 16)
    with pytest.raises(BadInput, match=r"the loss is no mean over samples: .*; .* leave micro_batch_size out$"):
        lines_of_parts(HERE, Ranked(), HP | {"micro_batch_size": 8}, data)
    assert lines_of_parts(HERE, Plain(), HP | {"micro_batch_size": 8}, data) == []


class Hooked(Plain):
    """A bound on a gradient that few gradients reach."""

    def model(self, hp: Mapping[str, Any]) -> torch.nn.Module:
        model = super().model(hp)
        next(model.parameters()).register_hook(lambda gradient: gradient.clamp(-10, 10))
        return model


class Centred(Plain):
    def augment(self, inputs: Any, hp: Mapping[str, Any]) -> Any:
        return inputs - inputs.mean(0)


class Noisy(Plain):
    """Noise of each sample alone."""

    def augment(self, inputs: Any, hp: Mapping[str, Any]) -> Any:
        return inputs + torch.randn_like(inputs)


def test_what_a_part_does_otherwise_is_told() -> None:
    data, parts = few(90, 16), HP | {"micro_batch_size": 8}
    (line,) = lines_of_parts(HERE, Hooked(), parts, data)
    assert line.startswith("the hook of ")
    assert line.endswith(" sees the gradient of each part of a batch, before they are summed")
    (line,) = lines_of_parts(HERE, Centred(), parts, data)
    assert line == "augment() makes a sample of others of its batch too: each part of a batch is augmented by itself"
    assert lines_of_parts(HERE, Noisy(), parts, data) == []


def test_batch_norm_is_told_and_a_part_of_one_sample_refused() -> None:
    data = few(90, 16)
    assert "BatchNorm: each part of a batch is normalised by itself" in lines_of_parts(
        HERE, Normalised(), HP | {"micro_batch_size": 8}, data
    )
    with pytest.raises(BadInput, match=r"space.micro_batch_size: read 1; the model cannot be trained on parts of 1"):
        lines_of_parts(HERE, Normalised(), HP | {"micro_batch_size": 1}, data)


@pytest.mark.parametrize("micro", [{}, {"micro_batch_size": 12}], ids=str)
@pytest.mark.parametrize(
    ("returned", "fault"),
    [
        (lambda losses: losses, r"shape \(\d+,\); a scalar is wanted"),
        (lambda losses: losses.mean().item(), "is a float; a scalar tensor is wanted"),
        (lambda losses: (losses.mean(), {}), "is a tuple; a scalar tensor is wanted"),
        (lambda losses: {"loss": losses.mean()}, "is a dict; a scalar tensor is wanted"),
        (lambda losses: Sum(losses), r"shape \(\d+,\); a scalar is wanted"),
    ],
    ids=["several", "float", "tuple", "dict", "sum"],
)
def test_what_is_no_loss_is_refused_in_parts_as_at_once(returned: Any, fault: str, micro: dict[str, Any]) -> None:
    class Wrong(Plain):
        def training_step(self, model: Any, inputs: Any, targets: Any, hp: Any) -> Any:
            return returned(torch.nn.functional.cross_entropy(model(inputs), targets, reduction="none"))

    with pytest.raises((TypeError, ValueError), match=fault):
        trained(Wrong, HP | micro)
