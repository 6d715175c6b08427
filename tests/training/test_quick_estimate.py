"""A look at a few steps: which ways it tells of, and that it leaves the process as it was."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from raygpu.config.source import locate
from raygpu.search.trials import Trial
from raygpu.training.quick_estimate import QuickEstimate
from tests.models import NUM_TRAIN, few

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
