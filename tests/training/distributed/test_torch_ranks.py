"""A torch model trained by several ranks is the one that a single process trains on whole batches."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from raygpu import dataset_splits
from raygpu.config import TrainConfig
from raygpu.experiment import Splits
from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from raygpu.training.distributed.batch_split import spread
from raygpu.training.distributed.ranks import OneRank, ParallelSettings, Ranks
from raygpu.training.distributed.torch_ranks import TorchParallel
from raygpu.training.hyperparameters import OptimizerSettings
from raygpu.training.torch.solo import TorchSolo
from tests.models import Cnn, Mlp, few
from tests.ranks import on_ranks
from tests.training.distributed.parts import gradient, parameters, sharded, training
from tests.training.torch.overflowing import OverflowingSamples
from tests.training.torch.test_micro_batches import Collated

HP = {"hidden": 16, "lr": 0.05, "momentum": 0.9, "batch_size": 32, "clip_norm": 1.0}


def distance(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> float:
    """The L2 norm of the difference over that of what is wanted."""
    difference = sum(float((a - b).double().square().sum()) for a, b in zip(found, wanted, strict=True))
    return float((difference / sum(float(b.double().square().sum()) for b in wanted)) ** 0.5)


class TwoHeads(Mlp):
    """Its second head is not used, and gets no gradient."""

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return _TwoHeads(hp["hidden"])


class _TwoHeads(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.body = nn.Linear(64, hidden)
        self.used, self.unused = nn.Linear(hidden, 10), nn.Linear(hidden, 10)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.used(torch.relu(self.body(pixels)))  # type: ignore[no-any-return]


def run(whole: TorchParallel) -> TorchParallel:
    while whole.advance() is not None:
        pass
    return whole


def trained(ranks: Ranks, experiment: Any, hp: Mapping[str, Any], parallel: ParallelSettings, num_train: int) -> Any:
    own = run(training(experiment, few(num_train), hp, parallel, ranks, dtype=torch.float64))
    return parameters(own), own.notes


def first_gradient(ranks: Ranks, parallel: ParallelSettings, dtype: torch.dtype) -> list[torch.Tensor]:
    return gradient(training(Mlp(), few(), HP, parallel, ranks, dtype=dtype))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ratios", "accumulate", "num_train"),
    [((3.0, 2.0), 1, 200), ((5.0, 3.0, 2.0), 3, 167), ((), 4, 171)],
    ids=["two ranks", "three ranks, accumulated", "a last batch of fewer samples than parts"],
)
def test_ranks_train_as_one_process_does(ratios: tuple[float, ...], accumulate: int, num_train: int) -> None:
    """167 = 3 x 50 + 17, and 171 = 3 x 56 + 3."""
    batch = {3: 50, 2: 50}.get(len(ratios), 56)
    found = on_ranks(len(ratios) or 2, trained, Mlp(), HP, ParallelSettings(batch, accumulate, ratios), num_train)
    alone, _ = trained(OneRank(), Mlp(), HP, ParallelSettings(batch), num_train)
    assert all(notes == [] for _, notes in found)
    assert max(distance(own, alone) for own, _ in found) <= 1e-12


def left_out(ranks: Ranks, make: Any) -> Any:
    """A training in double precision, which torch.autocast leaves as it is: the steps alone are those of fp16."""
    parallel = ParallelSettings(8, ratios=(3.0, 2.0) if ranks.world > 1 and make is training else ())
    own = make(OverflowingSamples(), few(), HP, parallel, ranks, epochs=1, dtype=torch.float64, precision="fp16")
    run(own)
    states = own.states()
    return states["model"], states["loss_scale"], states["optimizer"]["num_steps"], own.coordinator.noise.scale()


@pytest.mark.parametrize("make", [training, sharded])
def test_all_ranks_leave_out_a_step_of_fp16_that_overflows_on_one(make: Any) -> None:
    found = on_ranks(2, left_out, make)
    model, scale, num_steps, _ = left_out(OneRank(), training)
    for own, own_scale, own_steps, noise in found:
        assert (own_scale, own_steps) == (scale, num_steps)
        assert noise is None or np.isfinite(noise)
        if own:  # the model of shards is gathered on rank 0
            assert distance([own[name] for name in model], [*model.values()]) <= 1e-12
    assert scale["scale"] == 2.0 ** (16 - 25 + num_steps)
    assert 5 < num_steps < 20


@pytest.mark.slow
def test_gradients_in_float32() -> None:
    alone = first_gradient(OneRank(), ParallelSettings(50), torch.float32)
    weighted, other = on_ranks(2, first_gradient, ParallelSettings(50, ratios=(4.0, 1.0)), torch.float32)
    assert distance(weighted, alone) <= 1e-6
    assert distance(other, alone) <= 1e-6


@pytest.mark.slow
def test_parameters_without_a_gradient() -> None:
    found = on_ranks(2, trained, TwoHeads(), HP, ParallelSettings(50), 200)
    alone, _ = trained(OneRank(), TwoHeads(), HP, ParallelSettings(50), 200)
    assert distance(found[0][0], alone) <= 1e-12


def saved_and_gone_on(ranks: Ranks, folder: str) -> Any:
    hp = {"channels": 4, "blocks": 1, "lr": 0.05, "momentum": 0.9}
    parallel = ParallelSettings(20, 2, (3.0, 2.0))
    whole = run(training(Cnn(), few(), hp, parallel, ranks, epochs=3))
    first = training(Cnn(), few(), hp, parallel, ranks, epochs=3, request=lambda: "checkpoint")
    first.advance()  # ends within the first epoch
    assert 0 < first.step < 10
    first.save(Path(folder))
    ranks.gather([None])
    again = training(Cnn(), few(), hp, parallel, ranks, epochs=3)
    again.load(Path(folder))
    torch.rand(7)  # what another process would have drawn
    again.load(Path(folder))
    run(again)
    return parameters(whole), parameters(again), again.notes


@pytest.mark.slow
def test_a_training_goes_on_within_an_epoch_as_if_nothing_had_been(tmp_path: Path) -> None:
    for whole, again, notes in on_ranks(2, saved_and_gone_on, str(tmp_path)):
        assert distance(again, whole) == 0
        assert any("BatchNorm" in note for note in notes)


def test_one_rank_trains_as_a_trial_does() -> None:
    hp = {**HP, "schedule": "cosine", "warmup_epochs": 1.0}
    trial = Trial("t0000", 3, hp)
    settings = Settings(epochs=2, threads=1, precision="float32", folder=Path())
    solo = TorchSolo(Mlp(), few(), trial, settings)
    own = training(Mlp(), few(), hp, ParallelSettings(32))
    for _ in range(2):
        alone, result = solo.run_epoch(), None
        while result is None:
            progress = own.advance()
            assert progress is not None
            result = progress.result
        assert alone is not None
        assert result.metrics == pytest.approx(alone.metrics)
    assert own.advance() is None
    assert distance(parameters(own), [p.detach() for p in solo.model.parameters()]) == 0


def test_a_scaled_learning_rate_rises_from_its_warm_up() -> None:
    hp = {**HP, "schedule": "constant"}
    own = training(Mlp(), few(), hp, ParallelSettings(50, optimizer_settings=OptimizerSettings.of(hp).scaled(4.0, 1.0)))
    rates = []
    while (progress := own.advance()) is not None:
        rates.append((progress.epoch, progress.step, round(progress.lr, 6)))
    assert rates[:2] == [(1, 3, 0.15), (1, 4, 0.2)], "four steps an epoch, to 4 x 0.05"
    assert {lr for _, _, lr in rates[1:]} == {0.2}


class Drawing(Mlp):
    """Draws from the global generators of Python, NumPy and torch."""

    def augment(self, inputs: Any, hp: Mapping[str, Any]) -> Any:
        return inputs + 0.1 * random.random() + 0.1 * np.random.rand() + 0.1 * torch.rand(())


def test_all_generators_go_on_within_an_epoch(tmp_path: Path) -> None:
    whole = parameters(run(training(Drawing(), few(), HP, ParallelSettings(20))))
    first = training(Drawing(), few(), HP, ParallelSettings(20))
    first.advance()
    assert first.step
    first.save(tmp_path)
    random.seed(1)
    np.random.seed(1)
    again = training(Drawing(), few(), HP, ParallelSettings(20))
    again.load(tmp_path)
    assert distance(parameters(run(again)), whole) == 0


class Noisy(Mlp):
    """Its samples are read while it trains, with noise of their own."""

    def data(self) -> Splits:
        return dataset_splits(WithNoise(few()), few_samples(), num_workers=0)


class Read(Mlp):
    """Its samples are read while it trains."""

    def data(self) -> Splits:
        samples = few_samples()
        return dataset_splits(samples, samples[:8], num_workers=0)


def read(ranks: Ranks) -> list[torch.Tensor]:
    parallel = ParallelSettings(20, ratios=(3.0, 2.0) if ranks.world > 1 else ())
    return parameters(run(training(Read(), Read().data(), HP, parallel, ranks, dtype=torch.float64)))


def test_two_ranks_read_what_one_reads() -> None:
    alone = read(OneRank())
    assert max(distance(own, alone) for own in on_ranks(2, read)) <= 1e-12


class WithNoise:
    def __init__(self, splits: Splits) -> None:
        self.inputs, self.targets = np.asarray(splits.train_inputs), np.asarray(splits.train_targets)

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, row: int) -> Any:
        return self.inputs[row] + np.float32(random.random()), int(self.targets[row])


def few_samples() -> list[Any]:
    splits = few()
    return list(zip(np.asarray(splits.validation_inputs), np.asarray(splits.validation_targets), strict=True))


class Counting(Mlp):
    """Counts its losses."""

    count = 0

    def loss(self, outputs: Any, targets: Any) -> Any:
        self.count += 1
        return super().loss(outputs, targets) / self.count


def test_a_counter_in_python_is_told_where_a_training_goes_on(tmp_path: Path) -> None:
    first, again = (training(Counting(), few(), HP, ParallelSettings(40)) for _ in range(2))
    first.advance()
    first.save(tmp_path)
    again.load(tmp_path)
    assert any(note.startswith("Counting.count changes while it trains, and a checkpoint") for note in again.notes)


def test_samples_that_are_read_go_on_within_an_epoch(tmp_path: Path) -> None:
    whole = run(training(Noisy(), Noisy().data(), HP, ParallelSettings(20), epochs=2))
    first = training(Noisy(), Noisy().data(), HP, ParallelSettings(20), epochs=2)
    first.advance()
    assert 0 < first.step < 10
    first.save(tmp_path)
    again = training(Noisy(), Noisy().data(), HP, ParallelSettings(20), epochs=2)
    again.load(tmp_path)
    assert distance(parameters(run(again)), parameters(whole)) == 0


def moved(ranks: Ranks) -> Any:
    """Parameters after an epoch in which the split of the batches moves after the first exchange."""
    own = training(Noisy(), Noisy().data(), HP, ParallelSettings(20, ratios=(3.0, 2.0)), ranks, epochs=1)
    own.advance()
    assert 0 < own.step < 10
    before = own.coordinator.shares
    own.coordinator.balancer.ratios = [1.0, 4.0]
    assert own.coordinator.shares != before
    return parameters(run(own))


def test_samples_that_are_read_follow_a_split_that_moves() -> None:
    whole = run(training(Noisy(), Noisy().data(), HP, ParallelSettings(20), epochs=1))
    for found in on_ranks(2, moved):
        assert distance(found, parameters(whole)) < 1e-5


def test_another_batch_is_refused_within_an_epoch(tmp_path: Path) -> None:
    own = training(Mlp(), few(), HP, ParallelSettings(20))
    own.advance()
    assert own.step
    own.save(tmp_path)
    with pytest.raises(ValueError, match="trained with batches of 20, not of 40"):
        training(Mlp(), few(), HP, ParallelSettings(40)).load(tmp_path)


@pytest.mark.parametrize("num_train", [40, 300])
def test_an_epoch_begins_anew_with_another_number_of_samples(num_train: int, tmp_path: Path) -> None:
    own = training(Mlp(), few(), HP, ParallelSettings(20))
    while own.step < 3:
        own.advance()
    own.save(tmp_path)
    again = training(Mlp(), few(num_train), HP, ParallelSettings(20))
    again.load(tmp_path)
    assert again.step == 0
    assert (
        f"within epoch 1 of 200 training samples, and there are {num_train}: the epoch begins anew" in again.notes[-1]
    )
    steps = 0
    while (progress := again.advance()) is not None and progress.result is None:
        steps += 1
        assert steps < 100
    assert (progress.epoch, progress.step) == (1, num_train // 20)
    assert math.isfinite(progress.result.metrics["train/loss"])


def test_a_warm_start_takes_the_parameters_alone(tmp_path: Path) -> None:
    own = training(Mlp(), few(), HP, ParallelSettings(20))
    own.advance()
    own.save(tmp_path)
    warm = training(Mlp(), few(), HP, ParallelSettings(40))
    warm.load_parameters(tmp_path)
    assert distance(parameters(warm), parameters(own)) == 0
    assert (warm.epoch, warm.step) == (0, 0)


def test_compiled_steps_are_the_same() -> None:
    splits: Splits = few(100)
    alone = parameters(run(training(Mlp(), splits, HP, ParallelSettings(40), epochs=1, dtype=torch.float64)))
    own = run(training(Mlp(), splits, HP, ParallelSettings(40, compile=True), epochs=1, dtype=torch.float64))
    assert distance(parameters(own), alone) <= 1e-12


class Extrapolated(torch.optim.Optimizer):
    """Steps by g + (g - h) / 2, where h is the gradient of the step before, kept as it is (as in Adan)."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                before = self.state[parameter].get("before", parameter.grad)
                parameter.sub_(1.5 * parameter.grad - 0.5 * before, alpha=group["lr"])
                self.state[parameter]["before"] = parameter.grad


class Kept(Mlp):
    def optimizer(self, model: nn.Module, hp: Mapping[str, Any]) -> torch.optim.Optimizer:
        return Extrapolated(model.parameters(), hp["lr"])


class KeptInTurns(Kept):
    """Each of two optimizers keeps gradients."""

    def optimizer(self, model: Any, hp: Mapping[str, Any]) -> Any:
        return {name: Extrapolated(model[place].parameters(), hp["lr"]) for name, place in (("one", 0), ("two", 2))}

    def training_step(self, model: nn.Module, inputs: Any, targets: Any, hp: Mapping[str, Any]) -> Any:
        for name in ("one", "two"):
            yield name, self.loss(model(inputs), targets)


@pytest.mark.parametrize("kind", [Kept, KeptInTurns])
def test_an_optimizer_may_keep_the_gradient_of_a_step(kind: type[Kept]) -> None:
    parallel = ParallelSettings(40, ratios=(3.0, 1.0))
    alone = trained(OneRank(), kind(), HP, ParallelSettings(40), 100)
    for found in on_ranks(2, trained, kind(), HP, parallel, 100):
        assert distance(found[0], alone[0]) < 1e-9


class Cut(Mlp):
    """Its numbers depend on the parts of a batch: normalised, and with noise of each part."""

    def data(self) -> Splits:
        return few(81)

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 10))


class CutAndMixed(Cut):
    """Its batches are mixed by a `collate_fn`, at random."""

    def data(self) -> Splits:
        return Collated().data()


@pytest.mark.parametrize("kind", [Cut, CutAndMixed])
def test_one_device_takes_the_parts_of_a_trial(kind: type[Cut]) -> None:
    """A last batch of 17 samples, or of 8, has fewer parts than the others."""
    hp = {**HP, "batch_size": 32, "micro_batch_size": 12}
    splits = kind().data()
    plan = spread(TrainConfig(experiment="a:B", epochs=2, hyperparameters=hp), 1, splits.samples_per_epoch)
    own = run(training(kind(), splits, hp, plan.parallel, dtype=torch.float64))
    settings = Settings(2, 1, "float32", Path())
    solo = TorchSolo(kind(), kind().data(), Trial("t0000", 3, hp), settings, dtype=torch.float64)
    while solo.run_epoch() is not None:
        pass
    assert distance(parameters(own), [each.detach() for each in solo.model.parameters()]) <= 1e-12
