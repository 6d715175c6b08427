"""Rows of Ray Data as a data set, in the process that made them, in workers of Ray, and where Ray is out of reach."""

from __future__ import annotations

import pickle
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raygpu import RayRows, dataset_splits

TABLE = {"image": np.arange(60, dtype=np.float32).reshape(20, 3), "label": np.arange(20) % 2}


def rows() -> RayRows:
    import ray.data

    items = [{name: values[number] for name, values in TABLE.items()} for number in range(20)]
    return RayRows(ray.data.from_items(items, override_num_blocks=3))


@pytest.mark.slow
def test_rows_are_read_by_number_and_columns_by_name(ray_address: str) -> None:
    import ray
    import ray.data

    with ray.init(ray_address, log_to_driver=False, logging_level="ERROR"):
        ray.data.DataContext.get_current().enable_progress_bars = False
        found = rows()
        assert len(found) == 20
        assert found.column_names == ["image", "label"]
        for number in (0, 7, 19):
            row = found[number]
            np.testing.assert_array_equal(row["image"], TABLE["image"][number])
            assert row["label"] == number % 2
        with pytest.raises(IndexError):
            found[20]
        np.testing.assert_array_equal(found["label"], TABLE["label"])
        splits = dataset_splits(found, validation=0.2, targets="label")
        assert (len(splits.train_targets), len(splits.validation_targets)) == (16, 4)
        assert np.asarray(splits.validation_targets).sum() == 2, "stratified, by the column"
        np.testing.assert_array_equal(splits.validation_inputs[:1] % 3, [[0, 1, 2]])

        @ray.remote(num_cpus=0)
        def read(pickled: bytes) -> float:
            """Read in a worker what this process holds."""
            return float(pickle.loads(pickled)[19]["image"].sum())

        assert ray.get(read.remote(pickle.dumps(found))) == TABLE["image"][19].sum()
        with pytest.raises(TypeError, match=r"a MaterializedDataset of Ray Data; wanted: its rows, as raygpu\.RayRows"):
            dataset_splits(ray.data.from_items([{"x": 1, "y": 2}]), targets="y")
    with pytest.raises(RuntimeError, match="in another process than the training's: give num_workers=0"):
        found[1]


def test_rows_have_the_order_of_the_dataset_however_long_each_takes(ray_address: str, tmp_path: Path) -> None:
    import ray
    import ray.data

    def last_first(batch: dict[str, Any]) -> dict[str, Any]:
        """Return a batch; the first one waits until the last one has been made, 20 s at most."""
        (number,) = batch["id"]
        for _ in range(400):
            if number > 0 or (tmp_path / "7").exists():
                break
            time.sleep(0.05)
        (tmp_path / str(number)).touch()
        return batch

    with ray.init(ray_address, log_to_driver=False, logging_level="ERROR"):
        ray.data.DataContext.get_current().enable_progress_bars = False
        dataset = ray.data.range(8, override_num_blocks=8).map_batches(last_first)
        np.testing.assert_array_equal(RayRows(dataset)["id"], np.arange(8))
        assert not dataset.context.execution_options.preserve_order, "the user's own setting stays"


def test_what_is_no_dataset_of_ray_data_is_refused() -> None:
    with pytest.raises(TypeError, match=r"RayRows: a list; wanted: a ray\.data\.Dataset"):
        RayRows([1, 2])


def test_a_row_is_found_in_its_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a Ray: its references are the blocks themselves, one of which is empty."""
    monkeypatch.setattr("ray.get", lambda block: block)
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    found = RayRows.__new__(RayRows)
    found._blocks, found._ends = [{"x": np.arange(a, b)} for a, b in ((0, 3), (3, 3), (3, 5))], [3, 3, 5]
    found.column_names = ["x"]
    found._begin()
    assert [found[number] for number in range(len(found))] == [{"x": number} for number in range(5)]
    np.testing.assert_array_equal(found["x"], np.arange(5))
    for number in (-1, 5):
        with pytest.raises(IndexError):
            found[number]
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    with pytest.raises(RuntimeError, match="in another process than the training's: give num_workers=0"):
        found[1]


def test_a_loader_starts_no_processes_for_them(tmp_path: Path) -> None:
    import torch

    from raygpu.training.torch.loader import Loader

    class Rows:
        needs_training_process = True

        def __len__(self) -> int:
            return 8

        def __getitem__(self, row: int) -> tuple[float, int]:
            return float(row), row % 2

    splits = dataset_splits(Rows(), validation=0.5, num_workers=4)
    samples = splits.train_inputs.samples  # type: ignore[union-attr]
    assert Loader({"train": samples}, torch.device("cpu"), threads=4).num_workers == 0
