"""Trainings on samples that are read: the same by processes, in this one, from a cache, in arrays."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import random
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from raygpu import Splits, TorchExperiment, dataset_splits
from raygpu.errors import BadInput
from raygpu.search.trials import EpochResult, Trial
from raygpu.training.base import Settings
from raygpu.training.data.columns import columns_of
from raygpu.training.data.samples import SampleError
from raygpu.training.fused.model_array import TorchArray
from raygpu.training.torch import read_data
from raygpu.training.torch.loader import BatchRequest, Loader
from raygpu.training.torch.read_data import ReadData
from raygpu.training.torch.solo import TorchSolo

CPU = torch.device("cpu")
TRIAL = Trial("t0000", 5, {"lr": 0.1, "batch_size": 8})


class Vectors:
    """Vectors of four, with noise that is drawn at each read; `slow_s` seconds for one."""

    def __init__(self, count: int, noise: float = 0.0, slow_s: float = 0.0) -> None:
        generator = np.random.default_rng(count)
        self.inputs = generator.standard_normal((count, 4)).astype(np.float32)
        self.targets = generator.integers(0, 3, count)
        self.noise, self.slow_s = noise, slow_s

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, row: int) -> Any:
        time.sleep(self.slow_s)
        drawn = random.random() + torch.rand(4) if self.noise else 0.0
        return self.inputs[row] + self.noise * np.asarray(drawn, np.float32), self.targets[row]


OPENED: dict[Path, Any] = {}
"""Files that this process has opened."""


class Opened:
    """Numbers in a file, which each process opens at its first read."""

    def __init__(self, path: Path, count: int) -> None:
        self.path, self.count = path, count
        np.arange(count).tofile(path)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, row: int) -> Any:
        if self.path not in OPENED:
            OPENED[self.path] = self.path.open("rb", buffering=0)
        OPENED[self.path].seek(8 * row)
        time.sleep(0.001)  # meanwhile another process seeks
        return np.frombuffer(OPENED[self.path].read(8), np.int64), row


class Linear(TorchExperiment):
    def __init__(self, noise: float = 0.0, **options: Any) -> None:
        self.noise, self.options = noise, options

    def data(self) -> Splits:
        return dataset_splits(Vectors(40, self.noise), Vectors(12), **self.options)

    def model(self, hp: Any) -> nn.Module:
        return nn.Sequential(nn.Dropout(0.2), nn.Linear(4, 3))


def settings(threads: int = 1) -> Settings:
    return Settings(3, threads, "float32", Path())


def arrived(splits: Splits) -> Splits:
    """Return the data as a worker gets it, which has read none of it."""
    unpickled: Splits = pickle.loads(pickle.dumps(splits))
    return unpickled


def trained(experiment: Linear, threads: int = 1) -> tuple[list[EpochResult], dict[str, torch.Tensor]]:
    solo = TorchSolo(experiment, arrived(experiment.data()), TRIAL, settings(threads), CPU)
    results = list(iter(solo.run_epoch, None))
    state = {name: tensor.clone() for name, tensor in solo.model.state_dict().items()}
    solo.close()
    return results, state


def numbers(results: list[EpochResult]) -> list[Any]:
    return [result.metrics for result in results]


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_processes_that_read_change_nothing(noise: float) -> None:
    wanted, parameters = trained(Linear(noise))
    found, others = trained(Linear(noise, num_workers=2), threads=3)
    torch.set_num_threads(1)
    assert numbers(found) == numbers(wanted)
    assert all(torch.equal(others[name], value) for name, value in parameters.items())
    assert all(result.waited_s is not None and 0 <= result.waited_s <= result.train_s for result in found)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU that torch can use")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_samples_reach_a_gpu_as_they_are(num_workers: int) -> None:
    """Through pinned memory, while the device still computes."""
    splits, trial = (
        arrived(Linear(0.5, num_workers=num_workers).data()),
        replace(TRIAL, hyperparameters={"batch_size": 4}),
    )
    on_gpu, here = (
        TorchSolo(Linear(0.5), splits, trial, settings(2), torch.device(device)).data for device in ("cuda", "cpu")
    )
    chosen = list(on_gpu.order(trial, 1).split(4))
    pairs = zip(on_gpu.train_batches(1, chosen), here.train_batches(1, chosen), strict=True)
    for (inputs, targets), (wanted, expected) in pairs:
        assert inputs.device.type == targets.device.type == "cuda"  # type: ignore[union-attr]
        assert torch.equal(inputs.cpu(), wanted)  # type: ignore[union-attr,arg-type]
        assert torch.equal(targets.cpu(), expected)  # type: ignore[union-attr,arg-type]
    on_gpu.close()
    here.close()


def test_a_cache_changes_nothing() -> None:
    assert numbers(trained(Linear(cache=True))[0]) == numbers(trained(Linear(cache=False))[0])


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_a_training_goes_on_with_the_same_samples(noise: float, tmp_path: Path) -> None:
    wanted, _ = trained(Linear(noise))
    experiment = Linear(noise)
    first = TorchSolo(experiment, experiment.data(), TRIAL, settings(), CPU)
    first.run_epoch()
    first.save(tmp_path)
    second = TorchSolo(experiment, experiment.data(), TRIAL, settings(), CPU)
    second.load(tmp_path)
    assert numbers(list(iter(second.run_epoch, None))) == numbers(wanted[1:])


def test_members_of_an_array_share_each_batch() -> None:
    reads: list[int] = []

    class Counted(Vectors):
        def __getitem__(self, row: int) -> Any:
            reads.append(row)
            return super().__getitem__(row)

    trials = [replace(TRIAL, trial_id=f"t{i:04d}", seed=i) for i in range(4)]
    splits = dataset_splits(Counted(40, 0.5), Vectors(12))
    array = TorchArray(Linear(0.5), splits, trials, settings(), width=4, device=CPU)
    array.audits = False
    reads.clear()
    results = array.run_epoch()
    assert sorted(reads) == list(range(40))
    assert results is not None
    wanted = trained(Linear(0.5))[0][0].metrics
    alone = array.experiment
    solo = TorchSolo(alone, splits, trials[2], settings(), CPU)
    assert solo.run_epoch().metrics == pytest.approx(results["t0002"].metrics, rel=1e-5)  # type: ignore[union-attr]
    assert results["t0002"].metrics != wanted  # of another seed


def test_an_iteration_that_another_one_has_overtaken_goes_on_with_its_own_samples() -> None:
    splits = arrived(Linear(num_workers=1).data())
    samples = {"train": columns_of(splits.train_inputs)[0].samples}
    loader = Loader(samples, CPU, threads=2)
    rows = [np.arange(start, start + 4) for start in range(0, 40, 4)]
    one = loader.batches("train", (BatchRequest("train", each, 1) for each in rows))
    first = [next(one), next(one)]
    other = list(loader.batches("train", (BatchRequest("train", each, 1) for each in reversed(rows))))
    found = [*first, *one]
    wanted = [samples["train"].batch(each, 1)[0][""] for each in rows]
    assert [np.array_equal(batch[0][""], each) for batch, each in zip(found, wanted, strict=True)] == [True] * 10
    assert np.array_equal(other[0][0][""], wanted[-1])
    loader.close()


@pytest.mark.parametrize("is_sent", [True, False])
def test_no_two_processes_share_a_file_that_is_opened_at_the_first_read(is_sent: bool, tmp_path: Path) -> None:
    """A batch is read before the processes are forked: for an array, or after a checkpoint. Data that is not sent to a
    worker has been read by this process already."""
    splits = dataset_splits(Opened(tmp_path / "train", 160), Opened(tmp_path / "held", 40), cache=False, num_workers=2)
    if is_sent:
        splits = arrived(splits)
        OPENED.clear()
    data = ReadData(splits, CPU, None, 3)
    data.train_batch(1, torch.arange(4))
    numbers = [inputs[:, 0] for inputs, _ in data.train_batches(1, torch.arange(160).split(4))]  # type: ignore[index]
    held = [inputs[:, 0] for inputs, _ in data.validation_batches([slice(0, 20), slice(20, 40)])]  # type: ignore[index]
    data.close()
    assert int((torch.cat([*numbers, *held]) != torch.cat([torch.arange(160), torch.arange(40)])).sum()) == 0
    assert bool(OPENED) != is_sent
    OPENED.clear()


class Broken(Vectors):
    def __getitem__(self, row: int) -> Any:
        if row == 17:
            raise OSError("image-17.png is cut off")
        return super().__getitem__(row)


class Ending(Vectors):
    def __getitem__(self, row: int) -> Any:
        if row == 17:
            os._exit(3)
        return super().__getitem__(row)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_sample_that_cannot_be_read_is_named(num_workers: int) -> None:
    splits = arrived(dataset_splits(Broken(40), Vectors(12), num_workers=num_workers))
    solo = TorchSolo(Linear(), splits, TRIAL, settings(2), CPU)
    with pytest.raises(SampleError, match=r"^sample 17 of the train data cannot be read: .*image-17\.png is cut off$"):
        solo.run_epoch()
    solo.close()


def test_a_process_that_ends_by_itself_ends_the_training() -> None:
    splits = arrived(dataset_splits(Ending(40), Vectors(12), num_workers=1))
    solo = TorchSolo(Linear(), splits, TRIAL, settings(2), CPU)
    with pytest.raises(SampleError, match=r"^the processes that read samples have failed: "):
        solo.run_epoch()
    solo.close()


class Collecting(Vectors):
    """Collects garbage in the process that reads."""

    def __getitem__(self, row: int) -> Any:
        gc.collect()
        return super().__getitem__(row)


class Garbage:
    """Refers to itself, and to a tensor of a GPU if there is one; says where it was freed."""

    def __init__(self, freed_in: Path) -> None:
        self.me, self.freed_in, self.pid = self, freed_in, os.getpid()
        self.tensor = torch.ones(3, device="cuda" if torch.cuda.is_available() else "cpu")

    def __del__(self) -> None:
        self.freed_in.write_text("here" if os.getpid() == self.pid else "in a process that reads")


def test_a_process_that_reads_frees_nothing_of_its_parent(tmp_path: Path) -> None:
    """A forked one ends if it frees a tensor of a GPU."""
    splits = arrived(dataset_splits(Collecting(8), Vectors(8), num_workers=1, cache=False))
    samples = columns_of(splits.train_inputs)[0].samples
    reading = Loader({"train": samples}, CPU, threads=2)
    gc.disable()
    try:
        Garbage(tmp_path / "freed")
        batches = list(reading.batches("train", iter([BatchRequest("train", np.arange(4), 1)])))
        reading.close()
        assert len(batches) == 1
        assert not (tmp_path / "freed").exists()
    finally:
        gc.enable()
    gc.collect()
    assert (tmp_path / "freed").read_text() == "here"


def test_the_time_that_a_training_waits_is_measured() -> None:
    splits = dataset_splits(Vectors(40, slow_s=0.002), Vectors(12), cache=False)
    result = TorchSolo(Linear(), splits, TRIAL, settings(), CPU).run_epoch()
    assert result is not None
    assert result.waited_s is not None
    assert 0.08 <= result.waited_s <= result.train_s  # type: ignore[operator] # 40 sleeps of 2 ms at the least


def test_workers_are_within_the_cpus_of_the_training() -> None:
    def workers(device: str, threads: int, **options: Any) -> int:
        samples = columns_of(arrived(Linear(**options).data()).train_inputs)[0].samples
        return Loader({"train": samples}, torch.device(device), threads).num_workers

    assert [workers("cpu", threads) for threads in (1, 2, 4)] == [0, 1, 3]
    assert [workers("cuda", threads) for threads in (1, 2, 4)] == [1, 2, 4]
    assert workers("cuda", 4, num_workers=2) == 2
    assert workers("cuda", 2, num_workers=8) == 2
    assert workers("cuda", 2, num_workers=0) == 0


def test_steps_are_timed_on_samples_that_are_in_the_cache() -> None:
    reads: list[int] = []

    class Counted(Vectors):
        def __getitem__(self, row: int) -> Any:
            reads.append(row)
            return super().__getitem__(row)

    solo = TorchSolo(Linear(), dataset_splits(Counted(120), Vectors(12), cache=True), TRIAL, settings(), CPU)
    steps = solo.trial_steps()
    assert next(steps) == 8
    read = len(reads)
    assert [next(steps) for _ in range(40)] == [8] * 40
    assert len(reads) == read
    solo.close()


def test_an_evaluation_in_pieces_is_the_whole_one(monkeypatch: pytest.MonkeyPatch) -> None:
    splits = dataset_splits(Vectors(40), Vectors(33))
    whole = ReadData(splits, CPU, None, 1)
    wanted = list(whole.validation_batches([slice(0, 20), slice(20, 33)]))
    monkeypatch.setattr(read_data, "PIECE_BYTES", 100)
    found = list(ReadData(splits, CPU, None, 1).validation_batches([slice(0, 20), slice(20, 33)]))
    for one, other in zip(found, wanted, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))  # type: ignore[arg-type]


@pytest.mark.parametrize("referred", [False, True])
def test_closing_ends_the_processes_of_an_iteration_that_is_under_way(referred: bool) -> None:
    """Also where something else, a cycle of references say, still refers to torch's loader."""
    others = set(multiprocessing.active_children())
    splits = arrived(dataset_splits(Vectors(400), Vectors(12), num_workers=1))
    data = ReadData(splits, CPU, None, 2)
    batches = data.train_batches(1, torch.arange(400).split(4))
    next(batches)
    readers = set(multiprocessing.active_children()) - others
    assert readers
    references = list[Any]()
    if referred:
        references.append(data._loader._torchs)
    data.close()
    assert not [process for process in readers if process.is_alive()]
    assert next(batches, None) is None


def test_columns_are_what_they_are_taken_for() -> None:
    class Autoencoder(Linear):
        """Its targets are the inputs, which have a name of their own."""

        def data(self) -> Splits:
            own = super().data()
            return Splits(
                {"pixels": own.train_inputs},
                own.train_inputs,
                {"pixels": own.validation_inputs},
                own.validation_inputs,
            )

    experiment = Autoencoder(cache=False)
    read = ReadData(experiment.data(), CPU, None, 1)
    inputs, targets = read.train_batch(1, torch.tensor([3, 1]))
    assert isinstance(inputs, dict)
    assert torch.equal(inputs["pixels"], torch.from_numpy(Vectors(40).inputs[[3, 1]]))
    assert torch.equal(inputs["pixels"], targets)


def test_columns_that_cannot_be_read_together_are_refused() -> None:
    one, other = Linear().data(), Linear().data()
    array = np.zeros((4, 4), np.float32)
    few, others = one.train_inputs.subset(np.arange(3)), one.train_targets.subset(np.arange(1, 4))
    for inputs, targets, held, wanted, fault in (
        (one.train_inputs, other.train_targets, one.validation_inputs, one.validation_targets, "train columns"),
        (few, others, one.validation_inputs, one.validation_targets, "train columns are of different"),
        (one.train_inputs, one.train_targets, array, array[:, 0], "train of dataset_splits, and validation of arrays"),
        (array, array, one.validation_inputs, one.validation_targets, "validation of dataset_splits, and train of"),
        (one.train_inputs, one.train_targets, np.zeros((12, 4)), one.validation_targets, "validation targets"),
    ):
        with pytest.raises(BadInput, match=fault):
            read_data.training_data(Splits(inputs, targets, held, wanted), CPU, None, [TRIAL], 1)
    part = one.part(0.5, seed=0)
    assert read_data.training_data(part, CPU, None, [TRIAL], 1).samples_per_epoch == 20
