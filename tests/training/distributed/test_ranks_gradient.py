"""Gradients are those of the whole batch wherever they come from, and whatever the loss is a mean of."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from raygpu.training.distributed.ranks import OneRank, ParallelSettings, Ranks
from raygpu.training.hyperparameters import OptimizerSettings
from tests.ranks import on_ranks
from tests.training.distributed.parallel_cases import CASES, Masked, Plain
from tests.training.distributed.parts import parameters, sharded, training

HP = {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01, "batch_size": 30}
CLIPPED = ("Masked", "Tied", "Sparse")
"""Cases of which `make test` has a clipped norm, too: a mean in two parts, one parameter in two layers, sparse
gradients."""


def trained(
    ranks: Ranks, parallel: ParallelSettings, clipped: Sequence[str] = CLIPPED, names: Sequence[str] = (*CASES,)
) -> dict[Any, tuple[list[torch.Tensor], list[float]]]:
    """By case: the parameters after two epochs in float64, without and with a clipped norm, and the epochs' losses."""
    found = {}
    for name in names:
        kind = CASES[name]
        for clip in (None, 0.05) if name in clipped else (None,):
            experiment = kind()
            own = training(experiment, experiment.data(), HP | {"clip_norm": clip}, parallel, ranks,
                           dtype=torch.float64)  # fmt: skip
            losses = []
            while (progress := own.advance()) is not None:
                losses += [progress.result.metrics["train/loss"]] if progress.result else []
            found[name, clip] = parameters(own), losses
            own.close()
    return found


def distance(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> float:
    """The L2 norm of the difference over that of what is wanted."""
    square = sum(float((a - b).abs().double().square().sum()) for a, b in zip(found, wanted, strict=True))
    return float((square / sum(float(b.abs().double().square().sum()) for b in wanted)) ** 0.5)


@pytest.fixture(scope="module")
def alone() -> Any:
    return trained(OneRank(), ParallelSettings(30))


def compare(found: list[Any], alone: Any) -> None:
    for key, (wanted, losses) in alone.items():
        assert all(distance(own[key][0], wanted) <= 1e-12 for own in found), key
        assert all(own[key][1] == pytest.approx(losses, rel=1e-9) for own in found), key


def test_two_ranks(alone: Any) -> None:
    compare(on_ranks(2, trained, ParallelSettings(30, ratios=(4.0, 1.0))), alone)


def test_one_rank_in_parts(alone: Any) -> None:
    compare([trained(OneRank(), ParallelSettings(30, accumulate=4))], alone)


def test_two_ranks_in_parts_of_their_own_number(alone: Any) -> None:
    """Of 27 + 3 samples, seven parts and three."""
    settings = OptimizerSettings.of(HP | {"micro_batch_size": 4})
    parallel = ParallelSettings(30, ratios=(9.0, 1.0), optimizer_settings=settings)
    names = ("Penalty", "Sparse", "Summed", "Masked", "Dice")
    found = on_ranks(2, trained, parallel, (), names)
    compare(found, {(name, None): alone[name, None] for name in names})


def parts_and_notes(ranks: Ranks, make: Any) -> tuple[int, list[str]]:
    """The largest part of a batch that a rank takes, and the training's lines."""
    settings = OptimizerSettings.of(HP | {"micro_batch_size": 4})
    parallel = ParallelSettings(16, ratios=(15.0, 1.0), optimizer_settings=settings)
    own = make(Plain(), Plain().data(), HP, parallel, ranks)
    own.take_steps(1)
    return own._since.part, own.notes


def test_no_device_takes_more_samples_at_once_than_asked_for_without_a_line() -> None:
    assert on_ranks(2, parts_and_notes, training) == [(4, []), (1, [])]
    (largest, lines), _ = on_ranks(2, parts_and_notes, sharded)
    assert largest == 15
    assert any(line.startswith("a device takes up to 15 samples at once") for line in lines)


@pytest.mark.slow
def test_three_ranks_in_parts() -> None:
    parallel = ParallelSettings(30, accumulate=2, ratios=(5.0, 3.0, 2.0))
    compare(on_ranks(3, trained, parallel, [*CASES]), trained(OneRank(), ParallelSettings(30), [*CASES]))


def gone_on(ranks: Ranks, folder: str) -> Any:
    """A training with a masked loss, whole, and saved within its first epoch and gone on with: losses, noise scales."""

    def losses(own: Any) -> tuple[list[float], Any]:
        found, progress = [], None
        while (progress := own.advance()) is not None:
            found += [progress.result.metrics["train/loss"]] if progress.result else []
        return found, own.coordinator.noise.scale()

    def made() -> Any:
        experiment = Masked()
        return training(experiment, experiment.data(), HP, ParallelSettings(6, ratios=(2.0, 1.0)), ranks)

    whole, first, again = made(), made(), made()
    first.advance()
    assert 0 < first.step < 15
    first.save(Path(folder))
    ranks.gather([None])
    again.load(Path(folder))
    return losses(whole), losses(again)


def test_a_mean_in_two_parts_goes_on_within_an_epoch_and_has_no_noise_scale(tmp_path: Path) -> None:
    for whole, again in on_ranks(2, gone_on, str(tmp_path)):
        assert again[0] == pytest.approx(whole[0], rel=1e-12)
        assert whole[1] is None


def squares(ranks: Ranks) -> tuple[float, float]:
    """|g|^2 of this rank's samples of the first batch, as reported for the noise scale, and by a pass of its own."""
    experiment, splits = Plain(), Plain().data()
    own = training(experiment, splits, HP, ParallelSettings(30, ratios=(2.0, 1.0)), ranks, dtype=torch.float64)
    model = copy.deepcopy(own.solo.model)
    own.take_steps(1)
    rows = own._order[:20] if ranks.rank == 0 else own._order[20:30]
    inputs, targets = (torch.as_tensor(np.asarray(each))[rows] for each in (splits.train_inputs, splits.train_targets))
    experiment.loss(model(inputs.double()), targets).backward()
    wanted = sum(float(parameter.grad.square().sum()) for parameter in model.parameters() if parameter.grad is not None)
    return own._report("")[0][0].squares[0], wanted


def test_a_rank_reports_the_square_of_its_own_mean_gradient() -> None:
    for reported, wanted in on_ranks(2, squares):
        assert reported == pytest.approx(wanted, rel=1e-6)


class Changing(Plain):
    """Some losses are means in two parts and others plain numbers."""

    def loss(self, outputs: Any, targets: Any) -> Any:
        found = Masked.loss(self, outputs, targets)  # type: ignore[arg-type]
        return found if float(found.weight) else 0.0 * outputs.sum()


def test_a_loss_of_two_kinds_is_refused() -> None:
    experiment = Changing()
    own = training(experiment, experiment.data(), HP, ParallelSettings(6, accumulate=3))
    with pytest.raises(TypeError, match="it has to be the same for every batch"):
        own.take_steps(15)


class _Moving(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(64, 10)
        self.register_buffer("mean", torch.zeros(64))

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean.lerp_(pixels.detach().mean(0), 0.5)  # type: ignore[operator]
        return self.last(pixels - self.mean)  # type: ignore[no-any-return]


class Moving(Plain):
    """A buffer that training changes, and reads."""

    def model(self, hp: Any) -> nn.Module:
        return _Moving()


def buffers_before_steps(ranks: Ranks) -> list[torch.Tensor]:
    experiment, seen = Moving(), []
    own = training(experiment, experiment.data(), HP, ParallelSettings(30), ranks)
    forward = own.solo.model.forward
    own.solo.model.forward = lambda pixels: (seen.append(own.solo.model.mean.clone()), forward(pixels))[1]  # type: ignore[method-assign]
    own.advance()
    return seen[:3]


class _MovingLate(_Moving):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        self.count += int(self.training)  # type: ignore[operator,assignment]
        if self.count <= 2:
            return self.last(pixels)  # type: ignore[no-any-return]
        return super().forward(pixels)


class MovingLate(Plain):
    """A buffer that begins to change in the third step."""

    def model(self, hp: Any) -> nn.Module:
        return _MovingLate()


def late_buffers(ranks: Ranks) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The moving buffer before each forward pass, and the parameters at the end."""
    experiment, seen = MovingLate(), []
    own = training(experiment, experiment.data(), HP, ParallelSettings(30), ranks)
    forward = own.solo.model.forward
    own.solo.model.forward = lambda pixels: (seen.append(own.solo.model.mean.clone()), forward(pixels))[1]  # type: ignore[method-assign]
    own.coordinator.next_step = 100
    own.take_steps(3)
    own.step = 0
    own.take_steps(3)
    return seen, parameters(own)


def test_a_buffer_that_begins_to_change_later_is_that_of_the_first_rank_from_then_on() -> None:
    (seen, own), (others, other) = on_ranks(2, late_buffers)
    assert len(seen) == 6
    assert all(torch.equal(a, b) for a, b in zip(seen, others, strict=True))
    assert not torch.equal(seen[3], seen[4])
    assert all(torch.equal(a, b) for a, b in zip(own, other, strict=True))


def test_every_step_begins_with_the_buffers_of_the_first_rank() -> None:
    one, other = on_ranks(2, buffers_before_steps)
    assert len(one) == 3
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert not torch.equal(one[0], one[1])
