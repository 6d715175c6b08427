"""Several optimizers of one training, which take turns in every batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import softplus

from raygpu import Splits, TorchExperiment
from raygpu.config import TrainConfig
from raygpu.config.source import Source
from raygpu.errors import BadInput
from raygpu.planning.batches import batch_bounds, epoch_order
from raygpu.search.trials import Trial
from raygpu.training.base import NotAsAlone, Settings
from raygpu.training.distributed.batch_split import checked, spread
from raygpu.training.distributed.ranks import OneRank, ParallelSettings
from raygpu.training.distributed.torch_ranks import TorchParallel
from raygpu.training.fused.dry_run import names_read
from raygpu.training.fused.groups import TorchGrouper
from raygpu.training.fused.model_array import TorchArray
from raygpu.training.fused.refusal import OWN_OPTIMIZER
from raygpu.training.torch.first_step import first_result
from raygpu.training.torch.models import initial_model
from raygpu.training.torch.solo import TorchSolo
from tests.models import few
from tests.torch_device import DEVICE
from tests.training.fused.alike import EXACT, difference

EPOCHS, BATCH, NOISE = 3, 32, 4
HP = {"lr": 0.01, "batch_size": BATCH}


class Networks(nn.Module):
    """Generates images of digits, and tells them from real ones."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(NOISE, 16), nn.ReLU(), nn.Linear(16, 64))
        self.discriminator = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 1))
        self.unused = nn.Linear(2, 2)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.discriminator(images)[:, 0]  # type: ignore[no-any-return]


class Gan(TorchExperiment):
    def data(self) -> Splits:
        return few()

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return Networks()

    def optimizer(self, model: Any, hp: Mapping[str, Any]) -> Any:
        return {
            "discriminator": torch.optim.SGD(model.discriminator.parameters(), hp["lr"], momentum=0.5),
            "generator": torch.optim.Adam(model.generator.parameters(), hp["lr"]),
        }

    def scheduler(self, optimizer: torch.optim.Optimizer, hp: Mapping[str, Any], num_steps: int) -> Any:
        return torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=num_steps)

    def training_step(self, model: Any, inputs: Any, targets: Any, hp: Mapping[str, Any]) -> Iterator[Any]:
        fake = model.generator(noise(inputs))
        yield "discriminator", discriminator_loss(model, inputs, fake)
        yield "generator", softplus(-model(fake)).mean()

    def loss(self, outputs: Any, targets: Any) -> Any:
        return softplus(-outputs).mean()

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        return {"real": (outputs > 0).float().mean()}


def noise(inputs: torch.Tensor) -> torch.Tensor:
    """Of these images alone, so that all ways of training see the same."""
    return inputs[:, :NOISE] - 0.5


def discriminator_loss(model: Any, inputs: torch.Tensor, fake: torch.Tensor) -> torch.Tensor:
    return softplus(-model(inputs)).mean() + softplus(model(fake.detach())).mean()


class Critic(Gan):
    """The critic takes three steps for each of the generator."""

    def training_step(self, model: Any, inputs: Any, targets: Any, hp: Mapping[str, Any]) -> Iterator[Any]:
        for _ in range(3):
            yield "discriminator", discriminator_loss(model, inputs, model.generator(noise(inputs)))
        yield "generator", softplus(-model(model.generator(noise(inputs)))).mean()


def solo(kind: type[Gan] = Gan, precision: Any = "float32", **hp: Any) -> TorchSolo:
    settings = Settings(EPOCHS, 1, precision, Path())
    return TorchSolo(kind(), few(), Trial("t0000", 7, HP | hp), settings, DEVICE, torch.float64)


def by_hand(kind: type[Gan], clip_norm: float | None = None) -> tuple[nn.Module, list[dict[str, float]]]:
    """A loop as one writes it: the model, and the metrics of each epoch."""
    model: Any = initial_model(kind(), HP, 7).double().requires_grad_()
    optimizers = Gan().optimizer(model, HP)
    inputs = torch.as_tensor(few().train_inputs).double()
    bounds = list(batch_bounds(len(inputs), BATCH))
    schedulers = {name: Gan().scheduler(each, HP, EPOCHS * len(bounds)) for name, each in optimizers.items()}
    metrics = []
    for epoch in range(1, EPOCHS + 1):
        order, sums = torch.from_numpy(epoch_order(7, epoch, len(inputs))), {"discriminator": 0.0, "generator": 0.0}
        for start, end in bounds:
            real = inputs[order[start:end]]

            number = 3 if kind is Critic else 1
            fake = model.generator(noise(real))
            for name in ["discriminator"] * number + ["generator"]:
                is_generator = name == "generator"
                loss = softplus(-model(fake)).mean() if is_generator else discriminator_loss(model, real, fake)
                model.zero_grad()
                loss.backward()
                if clip_norm is not None:
                    nn.utils.clip_grad_norm_(optimizers[name].param_groups[0]["params"], clip_norm)
                optimizers[name].step()
                schedulers[name].step()  # beyond its end it leaves the learning rate as it is
                sums[name] += loss.item() * (end - start) / (1 if is_generator else number)
        means = {f"train/{name}_loss": value / len(inputs) for name, value in sums.items()}
        metrics.append({"train/loss": sum(means.values()), **means})
    return model, metrics


class Toggling(Gan):
    """Freezes the discriminator while the generator takes its step, as many write it; it is frozen at the start."""

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return Networks().requires_grad_(False)

    def training_step(self, model: Any, inputs: Any, targets: Any, hp: Mapping[str, Any]) -> Iterator[Any]:
        model.requires_grad_()
        fake = model.generator(noise(inputs))
        yield "discriminator", discriminator_loss(model, inputs, fake)
        model.discriminator.requires_grad_(False)
        yield "generator", softplus(-model(fake)).mean()


@pytest.mark.parametrize(
    ("kind", "clip_norm"), [(Gan, None), (Gan, 0.05), (Critic, None), (Toggling, None), (Toggling, 0.05)]
)
def test_a_training_equals_a_loop_by_hand(kind: type[Gan], clip_norm: float | None) -> None:
    model, wanted = by_hand(kind, clip_norm)
    training = solo(kind, **({} if clip_norm is None else {"clip_norm": clip_norm}))
    found = [dict(result.metrics) for result in iter(training.run_epoch, None)]
    assert difference(training.model.state_dict(), model.state_dict()) <= EXACT
    for one, other in zip(found, wanted, strict=True):
        assert {name: one[name] for name in other} == pytest.approx(other, rel=1e-9)
    assert {*found[0]} == {*wanted[0], "validation/loss", "validation/real"}


class Freezing(Gan):
    """Freezes the network whose turn it is not, as many write it."""

    def training_step(self, model: Any, inputs: Any, targets: Any, hp: Mapping[str, Any]) -> Iterator[Any]:
        fake = model.generator(noise(inputs))
        model.generator.requires_grad_(False)
        yield "discriminator", discriminator_loss(model, inputs, fake)
        model.generator.requires_grad_(True)
        yield "generator", softplus(-model(model.generator(noise(inputs)))).mean()


def test_the_average_has_what_was_frozen_in_the_first_turn() -> None:
    training = solo(Freezing, ema_decay=0.9)
    training.run_epoch()
    average = training.state()["model"]
    for network in ("generator", "discriminator"):
        own = {name: tensor for name, tensor in training.model.state_dict().items() if name.startswith(network)}
        assert difference(average, own) > 1e-3, network


class Shrinking(Critic):
    """The discriminator's learning rate falls to 0 at the training's end, three times as many steps away."""

    def scheduler(self, optimizer: torch.optim.Optimizer, hp: Mapping[str, Any], num_steps: int) -> Any:
        number = 3 if isinstance(optimizer, torch.optim.SGD) else 1
        return torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=number * num_steps)


def test_schedulers_go_on_to_the_last_batch() -> None:
    training = solo(Shrinking)
    for _ in iter(training.run_epoch, None):
        pass
    states = training.optimizer.state_dict()["several"]
    assert [each["scheduler"]["_last_lr"][0] for each in states.values()] == pytest.approx([0.0, 0.0], abs=1e-12)
    steps = training.trial_steps()
    for _ in range(3):
        next(steps)
    assert (
        training.optimizer.state_dict()["several"]["discriminator"]["scheduler"] == states["discriminator"]["scheduler"]
    )


@pytest.mark.parametrize("hp", [{}, {"ema_decay": 0.9}])
@pytest.mark.parametrize("kind", [Critic, Freezing])
def test_it_goes_on_from_a_checkpoint(kind: type[Gan], hp: dict[str, Any], tmp_path: Path) -> None:
    whole, first, second = (solo(kind, **hp) for _ in range(3))
    wanted = [result.metrics for result in iter(whole.run_epoch, None)]
    first.run_epoch()
    first.save(tmp_path)
    second.load(tmp_path)
    assert [result.metrics for result in iter(second.run_epoch, None)] == [
        pytest.approx(metrics, rel=1e-9) for metrics in wanted[1:]
    ]


def test_one_device_of_a_production_training_does_the_same_and_goes_on_within_an_epoch(tmp_path: Path) -> None:
    def parallel(request: Any = "") -> TorchParallel:
        return TorchParallel(solo(), ParallelSettings(BATCH), OneRank(), request=lambda: request)

    alone = solo()
    wanted = [result.metrics for result in iter(alone.run_epoch, None)]
    first, second = parallel("checkpoint"), parallel()
    first.advance()
    assert 0 < first.step < 7
    first.save(tmp_path)
    second.load(tmp_path)
    found = [progress.result.metrics for progress in iter(second.advance, None) if progress.result is not None]
    assert found == [pytest.approx(metrics, rel=1e-9) for metrics in wanted]
    assert difference(second.solo.model.state_dict(), alone.model.state_dict()) <= EXACT
    with pytest.raises(ValueError, match="accumulate: several optimizers take turns with whole batches"):
        TorchParallel(solo(), ParallelSettings(BATCH, 2), OneRank()).advance()


class Contrast(Gan):
    """The generator's loss compares the samples of a batch with each other."""

    def training_step(self, model: Any, inputs: Any, targets: Any, hp: Mapping[str, Any]) -> Iterator[Any]:
        fake = model.generator(noise(inputs))
        yield "discriminator", discriminator_loss(model, inputs, fake)
        yield "generator", (fake.mean(0) - inputs.mean(0)).square().sum()


def of_two_devices(kind: type[Gan], accumulate: int = 1) -> list[str]:
    config = TrainConfig(
        experiment="a:b",
        metric="real",
        hyperparameters=HP,
        epochs=1,
        workers=2,
        accumulate=accumulate,  # type: ignore[arg-type]
    )
    plan = spread(config, 2, few().num_train)
    return list(checked(config, plan, 2, Source("torch", "a:b", "/"), kind(), few()).lines)


def test_what_several_devices_cannot_share_is_refused_in_a_line() -> None:
    assert not [line for line in of_two_devices(Critic) if "loss" in line]
    with pytest.raises(BadInput, match=r"accumulate: read 2; a:b has several optimizers, .*: leave it out"):
        of_two_devices(Critic, accumulate=2)
    with pytest.raises(BadInput, match=r"loss is no mean over samples"):
        of_two_devices(Contrast)


def test_in_fp16_each_turn_has_its_own_step() -> None:
    training = solo(precision="fp16")
    plain = solo()
    for one, other in zip(iter(training.run_epoch, None), iter(plain.run_epoch, None), strict=True):
        assert one.metrics == pytest.approx(other.metrics, rel=1e-9)  # doubles, and no gradient overflows


class Alone(Gan):
    def training_step(self, model: Any, inputs: Any, targets: Any, hp: Mapping[str, Any]) -> Any:
        return softplus(-model(inputs)).mean()


class OneOptimizer(Gan):
    def optimizer(self, model: Any, hp: Mapping[str, Any]) -> Any:
        return torch.optim.SGD(model.parameters(), 0.1)


class Shared(Gan):
    def optimizer(self, model: Any, hp: Mapping[str, Any]) -> Any:
        return {"discriminator": torch.optim.SGD(model.parameters(), 0.1),
                "generator": torch.optim.SGD(model.generator.parameters(), 0.1)}  # fmt: skip


class Misnamed(Gan):
    def training_step(self, model: Any, inputs: Any, targets: Any, hp: Mapping[str, Any]) -> Iterator[Any]:
        yield "critic", softplus(-model(inputs)).mean()


class NoPair(Gan):
    def training_step(self, model: Any, inputs: Any, targets: Any, hp: Mapping[str, Any]) -> Iterator[Any]:
        yield softplus(-model(inputs)).mean()


class Empty(Gan):
    def optimizer(self, model: Any, hp: Mapping[str, Any]) -> Any:
        return {}


class Swapped(Gan):
    def training_step(self, model: Any, inputs: Any, targets: Any, hp: Mapping[str, Any]) -> Iterator[Any]:
        yield "generator", softplus(-model(inputs)).mean()


class Silent(Gan):
    def training_step(self, model: Any, inputs: Any, targets: Any, hp: Mapping[str, Any]) -> Iterator[Any]:
        yield from ()


@pytest.mark.parametrize(
    ("kind", "hp", "line"),
    [
        (Alone, {}, "training_step() one loss; it has to yield a pair"),
        (OneOptimizer, {}, "training_step() yields losses, and optimizer() returned no dict"),
        (Shared, {}, "discriminator and generator have a parameter of shape (16, 4) in common"),
        (Misnamed, {}, "training_step() yielded 'critic'; optimizer() has: discriminator, generator"),
        (NoPair, {}, "training_step() yielded no pair (name, loss)"),
        (Empty, {}, "returned an empty dict"),
        (Swapped, {}, "training_step() yielded for 'generator' depends on none of its parameters"),
        (Silent, {}, "training_step() yielded no loss"),
        (Gan, {"micro_batch_size": 8}, "micro_batch_size: optimizers that take turns take whole batches"),
    ],
)
def test_a_fault_is_a_line_before_anything_starts(kind: type[Gan], hp: dict[str, Any], line: str) -> None:
    with pytest.raises((TypeError, ValueError)) as raised:
        first_result(kind(), few(), HP | hp)
    assert line in str(raised.value)


def test_the_first_step_reads_and_tells_what_a_training_does() -> None:
    result, names, *_ = first_result(Gan(), few(), HP)
    assert {"train/generator_loss", "train/discriminator_loss", "validation/real"} <= {*result.metrics}
    assert "lr" in names


def test_what_a_trial_reads_is_known_and_it_is_not_fused() -> None:
    trials = [Trial(f"t000{i}", i, HP | {"lr": 0.01 * (i + 1)}) for i in range(2)]
    assert "lr" not in names_read(Gan(), trials[0], few()), "it shapes no program"
    (group,) = TorchGrouper(Gan(), few()).groups(trials)
    assert group.reason == OWN_OPTIMIZER

    with pytest.raises(NotAsAlone, match=r"optimizer\(\)"):
        TorchArray(Gan(), few(), [Trial("t0000", 1, HP)], Settings(1, 1, "float32", Path()), device=DEVICE)
