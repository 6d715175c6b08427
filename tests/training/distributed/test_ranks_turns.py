"""Several optimizers that take turns are those of a single process, with batches of several ranks' samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import softplus

from raygpu.training.distributed.ranks import OneRank, ParallelSettings, Ranks
from raygpu.training.distributed.torch_ranks import TorchParallel
from tests.models import few
from tests.ranks import on_ranks
from tests.training.distributed.parts import training
from tests.training.fused.alike import EXACT, difference
from tests.training.torch.test_several_optimizers import Critic, Freezing, Gan, Toggling, discriminator_loss, noise

HP = {"lr": 0.01}
KINDS = [(Gan, {"clip_norm": 0.05}), (Critic, {"ema_decay": 0.9}), (Freezing, {})]


def made(kind: type[Gan], ranks: Ranks, hp: Mapping[str, Any], **options: Any) -> TorchParallel:
    """A training with batches of 50 of 167 samples, in float64, of which the first rank has four in five."""
    parallel = ParallelSettings(50, ratios=(4.0, 1.0) if ranks.world > 1 else ())
    return training(kind(), few(167), HP | hp, parallel, ranks, dtype=torch.float64, **options)


def outcome(own: TorchParallel) -> tuple[dict[str, Any], list[dict[str, float]]]:
    """Train to the end; return the state of the model, and the metrics of each epoch."""
    results = [progress.result for progress in iter(own.advance, None)]
    own.ranks.gather([None])
    return own.states()["model"], [dict(result.metrics) for result in results if result is not None]


def trained(ranks: Ranks) -> list[Any]:
    return [outcome(made(kind, ranks, hp)) for kind, hp in KINDS]


def test_two_ranks_train_as_one_process_does() -> None:
    alone = trained(OneRank())
    first, second = on_ranks(2, trained)
    for (model, metrics), (wanted, by_epoch), (other, _) in zip(first, alone, second, strict=True):
        assert difference(model, wanted) <= EXACT
        assert difference(other, wanted) <= EXACT
        assert metrics == [pytest.approx(each, rel=1e-9) for each in by_epoch]
        assert "train/generator_loss" in metrics[0]


def gone_on(ranks: Ranks, folder: str) -> Any:
    whole = outcome(made(Critic, ranks, {}))
    first = made(Critic, ranks, {}, request=lambda: "checkpoint")
    first.advance()
    within = first.step
    first.save(Path(folder))
    ranks.gather([None])
    second = made(Critic, ranks, {})
    second.load(Path(folder))
    return within, whole, outcome(second)


def test_a_training_goes_on_within_an_epoch(tmp_path: Path) -> None:
    (within, whole, again), _ = on_ranks(2, gone_on, str(tmp_path))
    assert 0 < within < 4
    assert difference(again[0], whole[0]) <= EXACT
    assert again[1] == [pytest.approx(each, rel=1e-9) for each in whole[1]]


class Branching(Gan):
    """Leaves the generator's turn out where there are few samples, as on the second rank."""

    def training_step(self, model: Any, inputs: Any, targets: Any, hp: Mapping[str, Any]) -> Iterator[Any]:
        fake = model.generator(noise(inputs))
        yield "discriminator", discriminator_loss(model, inputs, fake)
        if len(inputs) > 20:
            yield "generator", softplus(-model(fake)).mean()


def refusal(ranks: Ranks, kind: type[Gan]) -> str:
    own = made(kind, ranks, {})
    try:
        own.advance()
    except ValueError as error:
        return str(error)
    finally:
        own.close()
    return ""


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        (Branching, "training_step() yielded 'generator' on rank 0, no more losses on rank 1: the turns have to be"),
        (Toggling, "a parameter was frozen when the training began, and now requires a gradient"),
    ],
)
def test_what_ranks_cannot_share_is_a_line_on_all(kind: type[Gan], line: str) -> None:
    for found in on_ranks(2, refusal, kind):
        assert line in found
