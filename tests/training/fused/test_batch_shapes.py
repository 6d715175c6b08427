"""A compiled step takes batches of the shapes that it was compiled for; those of other lengths step eagerly."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from raygpu import TorchExperiment, dataset_splits
from raygpu.config.source import Source
from raygpu.experiment import Splits
from raygpu.records.array_store import ArrayStore
from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from raygpu.training.fused import model_array, width
from raygpu.training.fused.array_cache import ArrayCache
from raygpu.training.fused.array_key import array_key
from raygpu.training.fused.cuda_graph import GraphedStep
from raygpu.training.fused.model_array import TorchArray
from raygpu.training.fused.program import Program, shapes_of
from raygpu.training.fused.tile import Tile
from raygpu.training.fused.width import settle

SETTINGS = Settings(2, 1, "float32", Path())
TRIALS = [Trial(f"t{i:04d}", i, {"batch_size": 8, "lr": 0.05 * (1 + i)}) for i in range(3)]


class Series(Dataset[Any]):
    """Series of six numbers; each so many-th is twice as long."""

    def __init__(self, count: int, rare: int) -> None:
        generator = np.random.default_rng(count)
        self.series = [generator.standard_normal((12 if i % rare == 0 else 6, 3)) for i in range(count)]
        self.labels = generator.integers(0, 4, count)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> Any:
        return {"series": torch.from_numpy(self.series[row]).float(), "label": int(self.labels[row])}


def padded(samples: list[Any]) -> Any:
    series = nn.utils.rnn.pad_sequence([each["series"] for each in samples], batch_first=True)
    return {"series": series, "label": torch.tensor([each["label"] for each in samples])}


class Padded(TorchExperiment):
    """Adds up a series, of which some numbers are left out."""

    rare = 6

    def data(self) -> Splits:
        return dataset_splits(Series(48, self.rare), Series(16, self.rare), targets="label", collate_fn=padded)

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.first, self.drop, self.last = nn.Linear(3, 6), nn.Dropout(0.2), nn.Linear(6, 4)

            def forward(self, series: torch.Tensor) -> torch.Tensor:
                return self.last(self.drop(torch.tanh(self.first(series))).sum(1))

        return Model()


class AllLong(Padded):
    rare = 1


def array(experiment: Padded | None = None) -> TorchArray:
    experiment = experiment or Padded()
    return TorchArray(experiment, experiment.data(), TRIALS, SETTINGS, width=3, device=torch.device("cpu"))


def losses(own: TorchArray) -> list[float]:
    found = own.run_epoch()
    assert found is not None
    return [result.metrics["train/loss"] for result in found.values()]


@pytest.mark.parametrize("given", [True, False])
def test_a_compiled_step_gets_batches_of_its_shapes_alone(given: bool) -> None:
    compiled, seen = array(), []

    def step(parameters: Any, fixed: Any, buffers: Any, optimizer_state: Any, *batch: Any) -> torch.Tensor:
        seen.append(shapes_of(*batch[:2]))
        tile = Tile([], [], parameters, fixed, buffers, optimizer_state)
        return compiled.program.eager_step(tile, *batch)

    first = shapes_of(*compiled.data.train_batch(1, compiled.data.order(TRIALS[0], 1)[:8].expand(3, -1)))
    compiled.program.use(3, 8, step, first if given else None)
    assert losses(compiled) == pytest.approx(losses(array()), rel=1e-6)
    assert 0 < len(seen) < 6
    assert set(seen) == {first}


def test_a_recorded_step_is_replayed_for_batches_of_its_shapes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Recorded(GraphedStep):
        """Takes the step where a graph would be replayed."""

        def __init__(self, program: Program, tile: Tile, copy: Tile, inputs: Any, targets: Any, numbers: Any) -> None:
            self._shapes, self.program, self.tile = shapes_of(inputs, targets), program, tile

        def __call__(self, inputs: Any, targets: Any, numbers: torch.Tensor, drawn: Any) -> torch.Tensor:
            seen.append(shapes_of(inputs, targets))
            return self.program.supplied_step(self.tile, inputs, targets, numbers, drawn)

    monkeypatch.setattr(model_array, "GraphedStep", Recorded)
    seen: list[Any] = []
    own = array()
    own.graphs, own.audits = True, False
    assert losses(own) == pytest.approx(losses(array()), rel=1e-6)
    assert 0 < len(seen) < 6
    assert len(set(seen)) == 1


def test_the_random_numbers_of_each_length_have_its_shape() -> None:
    own = array()
    tile = own.tiles[0]
    tile.streams = own.streams(tile)
    lengths = []
    for rows in ([0, 1], [1, 2]):
        inputs, targets = own.data.train_batch(1, torch.tensor(rows).expand(3, -1))
        with own.program.training():
            (mask,) = own.program.drawn(tile, inputs, targets)
        assert isinstance(inputs, torch.Tensor)
        assert mask.shape[:3] == inputs.shape[:3]
        lengths.append(mask.shape[2])
    assert lengths == [12, 6]


def test_a_step_of_batches_that_a_collate_fn_makes_is_neither_compiled_nor_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(width, "compiling", lambda *_, **__: "now")
    own = array()
    kept = ArrayCache(ArrayStore(tmp_path), own, Source("torch", "here", os.getcwd()), os.environ)
    assert not kept.keeps
    for each in (None, kept):
        assert "step not compiled: a collate_fn makes the batches, whose shapes may differ" in settle(own, kept=each)
    assert not own.compiled_s


def test_the_shapes_of_a_batch_are_in_the_key() -> None:
    assert array_key(array()) == array_key(array())
    assert array_key(array(AllLong())) != array_key(array())
