"""A look at a few steps: which ways it tells of, and that it leaves the process as it was."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from experiments.cifar import ResNet18
from raygpu.config.source import locate
from raygpu.planning.step_cost import ARRAY_SPEED, FLOP_PER_S, LAUNCH_S
from raygpu.search.trials import Trial
from raygpu.training.quick_estimate import QuickEstimate
from tests.models import NUM_TRAIN, Mlp, few

ROOT = Path(__file__).parents[2]


def glance(name: str, folder: Path = ROOT) -> QuickEstimate:
    source, code = locate(name, folder)
    return QuickEstimate(source, code, few(), "float32")


def trials(count: int, **hp: object) -> list[Trial]:
    return [Trial(Trial.name(i), i, {"hidden": 8, "batch_size": 64, "lr": 0.01, **hp}) for i in range(count)]


def test_the_ways_of_a_simulated_device() -> None:
    threads = torch.get_num_threads()
    points = glance("tests.models:Mlp").points(trials(4), num_cpus=3)
    assert [(point.way, point.n) for point in points] == [("process", 1), ("process", 3), ("fused", 4)]
    alone, packed, fused = points
    assert alone.samples_per_s is not None
    assert packed.samples_per_s == pytest.approx(3 * alone.samples_per_s)
    assert fused.gain == pytest.approx((fused.samples_per_s or 0.0) / alone.samples_per_s)
    assert None not in (alone.evaluation_s, fused.evaluation_s)
    assert torch.get_num_threads() == threads


def test_one_cpu_and_one_trial() -> None:
    (alone,) = glance("tests.models:Mlp").points(trials(1), num_cpus=1)
    assert (alone.way, alone.n, alone.gain) == ("process", 1, 1.0)


@pytest.mark.parametrize("batch_size", [8, 10 * NUM_TRAIN])
def test_the_speed_of_one(batch_size: int) -> None:
    assert glance("tests.models:Mlp").samples_per_s(trials(1, batch_size=batch_size)[0]) > 0


@pytest.mark.parametrize("values", [{"batch_size": 0}, {"hidden": -1}, {"lr": "fast"}])
def test_a_trial_that_fails_has_no_speed(values: dict[str, object]) -> None:
    assert glance("tests.models:Mlp").samples_per_s(trials(1, **values)[0]) == 0


def test_what_a_step_computes() -> None:
    """Two layers forward, and backward both again twice but for the gradient of the inputs."""
    estimate = glance("tests.models:Mlp")
    costs = [estimate.step_cost(trials(1, batch_size=size)[0]) for size in (16, 64, NUM_TRAIN)]
    assert [cost.flop for cost in costs if cost] == [2 * size * 8 * (64 * 2 + 10 * 3) for size in (16, 64, NUM_TRAIN)]
    assert len({cost.num_operators for cost in costs if cost}) == 1
    assert costs[0] is not None
    assert 10 <= costs[0].num_operators <= 40


def test_small_networks_are_launched_and_large_ones_compute() -> None:
    small = glance("tests.models:Cnn").step_cost(trials(1, blocks=2, channels=8, channels2=16, batch_size=32)[0])
    source, _ = locate("experiments.cifar:ResNet18", ROOT)
    experiment = ResNet18()
    large = QuickEstimate(source, experiment, experiment.synthetic().first(128), "float32").step_cost(
        trials(1, channels=64, batch_size=128)[0]
    )
    assert small is not None
    assert small.gain(8) == 8
    assert large is not None
    assert large.gain(8) == pytest.approx(ARRAY_SPEED)
    assert large.flop / FLOP_PER_S["float32"] > 1.5 * large.num_operators * LAUNCH_S


def test_attention_is_counted() -> None:
    """The operator of a CPU for all of it has no formula."""

    class Attending(Mlp):
        def model(self, hp: Mapping[str, Any]) -> nn.Module:
            layer = nn.TransformerEncoderLayer(8, 1, 16, batch_first=True, dropout=0.0)
            return nn.Sequential(nn.Unflatten(1, (8, 8)), layer, nn.Flatten(), nn.Linear(64, 10))

    source, _ = locate("tests.models:Mlp", ROOT)
    cost = QuickEstimate(source, Attending(), few(), "float32").step_cost(trials(1, batch_size=32)[0])
    assert cost is not None
    weights = 8 * 8 * 4 + 2 * 8 * 16  # of the projections and the two linear layers, for each of the 8 tokens
    products = 2 * 8 * 8 * 8  # queries and keys, and values, for each sample
    without = 8 * 8 * 8 * 3  # the inputs have no gradient
    assert cost.flop == 2 * 32 * (3 * (8 * weights + products + 640) - without)


def test_a_step_that_fails_has_no_cost() -> None:
    assert glance("tests.models:Mlp").step_cost(trials(1, hidden=-1)[0]) is None


def test_it_works_in_the_experiment_s_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "width.txt").write_text("8")
    (tmp_path / "own_network.py").write_text(
        "from pathlib import Path\n"
        "from tests.models import Mlp\n"
        "class Own(Mlp):\n"
        "    def model(self, hp):\n"
        "        return super().model({'hidden': int(Path('width.txt').read_text())})\n"
    )
    before = os.getcwd()
    assert glance("own_network:Own", tmp_path).samples_per_s(trials(1)[0]) > 0
    assert os.getcwd() == before
