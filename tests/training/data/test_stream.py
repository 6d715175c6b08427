"""Iterable data sets: a sample is the one at its place of an epoch, however it is asked for."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from raygpu import dataset_splits
from raygpu.training.data.columns import columns_of
from raygpu.training.data.samples import SampleError, Samples
from raygpu.training.data.stream import Stream
from raygpu.training.torch.loader import BatchRequest, Loader


class Counting:
    """Yields the number of the epoch and of the sample, and a random number; `begun` counts its iterations."""

    def __init__(self, count: int = 20) -> None:
        self.count, self.epoch, self.begun = count, 0, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        self.begun += 1
        for i in range(self.count):
            yield np.array([self.epoch, i, random.random()], np.float32), i % 2


def stream(dataset: Any, count: int = 20) -> Samples:
    splits = dataset_splits(dataset, [(np.zeros(3, np.float32), 0)] * 4, num_samples={"train": count})
    return columns_of(splits.train_inputs)[0].samples


def test_samples_in_turn_cost_one_pass() -> None:
    dataset = Counting()
    samples = stream(dataset)
    assert isinstance(samples, Stream)
    dataset.begun = 0
    found = [samples.batch(range(start, start + 5), 3)[0][""] for start in range(0, 20, 5)]
    assert dataset.begun == 1
    assert np.concatenate(found)[:, :2].tolist() == [[3, i] for i in range(20)]
    samples.batch([2], 3)
    assert dataset.begun == 2


def test_a_rank_drops_what_is_another_s_and_gets_the_same() -> None:
    whole = stream(Counting()).batch(range(20), 2)[0][""]
    own = stream(Counting())
    parts = [own.batch(rows, 2)[0][""] for rows in ([3, 4], [8, 9], [13, 14, 15])]
    assert np.array_equal(np.concatenate(parts), whole[[3, 4, 8, 9, 13, 14, 15]])
    arrived = pickle.loads(pickle.dumps(own))
    assert np.array_equal(arrived.batch([16], 2)[0][""], whole[[16]])


def test_a_process_beside_the_training_reads_the_same() -> None:
    samples, here = pickle.loads(pickle.dumps(stream(Counting()))), stream(Counting())
    wanted = [here.batch(range(start, start + 4), 1)[0][""] for start in range(0, 20, 4)]
    loader = Loader({"train": samples}, torch.device("cpu"), threads=4)
    assert loader.num_workers == 1
    requests = (BatchRequest("train", np.arange(start, start + 4), 1) for start in range(0, 20, 4))
    found = [inputs[""] for inputs, _ in loader.batches("train", requests)]
    assert all(np.array_equal(one, other) for one, other in zip(found, wanted, strict=True))
    loader.close()


def test_a_stream_that_ends_early_is_told() -> None:
    samples = stream(Counting(20), count=30)
    with pytest.raises(SampleError, match=r"^the train data has ended after 20 samples, and 30 were told$"):
        samples.batch([25], 1)
    assert samples.batch([5], 1)[0][""][0, 1] == 5
