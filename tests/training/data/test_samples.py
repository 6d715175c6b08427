"""What a sample of a data set is: its random numbers, its form, and the cache of what was decoded."""

from __future__ import annotations

import os
import pickle
import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from raygpu import dataset_splits
from raygpu.training.data import dataset_inspection
from raygpu.training.data.columns import reading_notes
from raygpu.training.data.fields import SampleError
from raygpu.training.data.samples import _with_epochs
from tests.training.data.rows import OwnGenerator, Rows, numbers, samples_of


class Noise(Rows):
    def __getitem__(self, row: int) -> Any:
        drawn = [float(torch.rand(())), float(np.random.rand()), random.random()]
        return np.array([row, *drawn]), row % 3


def test_random_numbers_depend_on_the_sample_and_the_epoch_alone() -> None:
    samples = samples_of(dataset_splits(Noise(), Rows(9)))
    assert samples.is_random
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    one, other = samples.batch([3, 8, 5], 2)[0][""], samples.batch([5, 3], 2)[0][""]
    assert np.array_equal(one[[2, 0]], other)
    assert not np.array_equal(one, samples.batch([3, 8, 5], 3)[0][""])
    assert len(np.unique(one[:, 1:])) == 9
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before


def test_samples_that_set_epoch_may_change_are_in_no_cache() -> None:
    class Staged(Rows):
        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __getitem__(self, row: int) -> Any:
            return np.array([row, self.epoch]), row % 3

    samples = samples_of(dataset_splits(Staged(), 0.2))
    assert [samples.batch([2], epoch)[0][""][0, 1] for epoch in (1, 3, 2, 1)] == [1, 3, 2, 1]
    assert [pickle.loads(pickle.dumps(samples)).batch([2], epoch)[0][""][0, 1] for epoch in (3, 1)] == [3, 1]
    rows = torch.utils.data.Subset(Staged(), range(20)), torch.utils.data.Subset(Staged(), range(20, 30))
    rows[1].dataset = rows[0].dataset
    parts = dataset_splits(*rows)
    train, validation = samples_of(parts), samples_of(parts, "validation")
    read = [(each, epoch) for epoch in (1, 2, 3) for each in (train, validation)]
    assert [each.batch([2], epoch if each is train else 1)[0][""][0, 1] for each, epoch in read] == [1, 1, 2, 1, 3, 1]
    joined = samples_of(dataset_splits(torch.utils.data.ConcatDataset([Staged(), Staged()]), 0.2))
    assert [joined.batch([31], epoch)[0][""][0, 1] for epoch in (1, 3)] == [1, 3]
    for stacked in (torch.utils.data.StackDataset(Staged()), torch.utils.data.StackDataset(image=Staged())):
        assert len(_with_epochs(stacked)) == 1
    assert "_raygpu_epoch" not in vars(rows[0].dataset)
    with pytest.raises(ValueError, match=r"cache: read True; train samples cannot be kept: set_epoch\(\)"):
        dataset_splits(Staged(), 0.2, cache=True)


def test_what_another_thread_draws_makes_no_sample_random() -> None:
    """As the thread in which Ray starts draws a port."""
    draws = iter([True])

    class Beside(Rows):
        def __getitem__(self, row: int) -> Any:
            if next(draws, False):
                thread = threading.Thread(target=random.random)
                thread.start()
                thread.join()
            return super().__getitem__(row)

    samples = samples_of(dataset_splits(Beside(), 0.2))
    assert next(draws, None) is None
    assert not samples.is_random


def test_a_generator_that_is_not_seeded_is_told() -> None:
    note = reading_notes(dataset_splits(OwnGenerator(), Rows(9), cache=False))[0]
    assert "train samples differ when they are read again" in note


class Augmented(Rows):
    """Rows that a function changes. count: their number."""

    def __init__(self, augment: Any, count: int = 30) -> None:
        super().__init__(count)
        self.augment = augment

    def __getitem__(self, row: int) -> Any:
        return torch.full((2,), float(self.augment(row))), row % 3


def test_samples_that_seldom_differ_are_not_kept_and_no_share_is_taken_of_them() -> None:
    generator = random.Random(0)
    flips = Augmented(lambda row: row if generator.random() < 0.8 else -row)
    with pytest.raises(ValueError, match="train samples cannot be kept: reading one again gives another one"):
        dataset_splits(flips, Rows(9), cache=True)
    with pytest.raises(ValueError, match=r"validation=0\.2: reading a sample of train draws random numbers"):
        dataset_splits(flips, 0.2, cache=False)


def test_samples_of_which_some_draw_random_numbers_are_not_kept() -> None:
    some = Augmented(lambda row: random.random() if row in (3, 7) else row)
    with pytest.raises(ValueError, match="reading one draws random numbers"):
        dataset_splits(some, Rows(9), cache=True)


def test_a_cache_has_each_sample_read_once_and_a_transform_comes_after_it() -> None:
    train = Rows(30)
    splits = dataset_splits(train, 0.2, transform=lambda inputs: inputs + torch.rand(()), cache=True)
    samples = samples_of(splits)
    first = samples.batch(range(10), 1)[0][""]
    train.reads.clear()
    again, later = (samples.batch(range(10), epoch)[0][""] for epoch in (1, 2))
    assert train.reads == []
    assert np.array_equal(first, again)
    assert not np.array_equal(first, later)
    assert np.array_equal(np.floor(first[:, 0]), np.arange(10))
    held = samples_of(splits, "validation")
    assert np.array_equal(held.batch([4, 5], 1)[0][""], [[4, 4], [5, 5]])
    train.reads.clear()
    held.batch([1, 2], 7)
    assert train.reads == []
    assert "once read, they are kept" in reading_notes(splits)[0]


def test_samples_that_are_quick_to_read_or_random_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset_inspection, "QUICK_S", 10.0)
    assert samples_of(dataset_splits(Rows(), Rows(9))).decoded is None
    with pytest.raises(ValueError, match="cache: read True; train samples cannot be kept: reading one draws random"):
        dataset_splits(Noise(), Rows(9), cache=True)
    with pytest.raises(ValueError, match=r"validation=0\.2: reading a sample of train draws random numbers"):
        dataset_splits(Noise(), 0.2)


def test_a_worker_unpickles_the_data_set_at_its_first_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data.txt").write_text("7 8 9")

    class OnDisk(Rows):
        def __getitem__(self, row: int) -> Any:
            return np.array([int(Path("data.txt").read_text().split()[row])]), row

    splits = dataset_splits(OnDisk(3), OnDisk(3))
    monkeypatch.chdir("/")
    arrived = pickle.loads(pickle.dumps(splits))
    assert np.asarray(arrived.train_inputs).tolist() == [[7], [8], [9]]  # by the relative path, from another folder
    assert os.getcwd() == "/"


class Rarely(Rows):
    """A few samples draw random numbers, none of those of the first look."""

    def __getitem__(self, row: int) -> Any:
        return np.array([row + (random.random() if row in (17, 24) else 0.0)]), row % 3


@pytest.mark.parametrize("cache", [None, True])
def test_random_numbers_that_the_first_samples_do_not_draw_are_those_of_the_sample(cache: bool | None) -> None:
    samples, others = (samples_of(dataset_splits(Rarely(), Rows(9), cache=cache)) for _ in range(2))
    whole = samples.batch(range(30), 2)[0][""]
    assert np.array_equal(whole[16:20], others.batch(range(16, 20), 2)[0][""])
    later = samples.batch(range(30), 3)[0][""]
    assert [row for row in range(30) if whole[row] != later[row]] == [17, 24]


class InAnotherOrder(Rows):
    def __getitem__(self, row: int) -> Any:
        small, large = np.float32(row), np.full(3, -row, np.int64)
        fields = {"a": small, "b": large} if row % 2 else {"b": large, "a": small}
        return {**fields, "label": row % 3}


def test_fields_are_kept_by_their_names() -> None:
    samples = samples_of(dataset_splits(InAnotherOrder(), InAnotherOrder(9), targets="label", cache=True))
    for _ in range(2):
        inputs = samples.batch(range(30), 1)[0]
        assert inputs["a"].tolist() == list(range(30))
        assert inputs["b"][:, 2].tolist() == [-row for row in range(30)]


class SometimesWhole(Rows):
    def __getitem__(self, row: int) -> Any:
        return np.zeros(2), row / 2 if row % 5 == 3 else row


def test_another_form_than_that_of_the_first_samples_is_no_sample() -> None:
    splits = dataset_splits(SometimesWhole(), Rows(9))
    with pytest.raises(
        SampleError, match=r"sample 3 of the train data is .*targets float32 \(\), and others are .*int64"
    ):
        samples_of(splits).batch([3], 1)

    def mixed(samples: list[Any]) -> Any:
        targets = torch.tensor([target for _, target in samples])
        return torch.stack([inputs for inputs, _ in samples]), targets if len(samples) != 4 else targets * 0.5

    collated = samples_of(dataset_splits(Rows(), Rows(9), collate_fn=mixed))
    collated.batch(range(5), 1)
    with pytest.raises(SampleError, match=r"collate_fn\(\) of 4 train samples has returned .*float32.* and at first"):
        collated.batch(range(4), 1)


class Photographs(Rows):
    """Pictures of which one side differs from the sample `different_from` on."""

    def __init__(self, different_from: int) -> None:
        super().__init__()
        self.different_from = different_from

    def __getitem__(self, row: int) -> Any:
        self.reads.append(row)
        return np.full((3, 8 + max(0, row - self.different_from + 1)), row, np.uint8), row % 3


def cropped(picture: torch.Tensor) -> torch.Tensor:
    return picture[:, :4]


@pytest.mark.parametrize("different_from", [1, 20])
def test_pictures_of_several_sizes_that_a_transform_brings_to_one_are_read(
    different_from: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset_inspection, "QUICK_S", 0.0)
    train, held = Photographs(different_from), Rows(9)
    splits = dataset_splits(train, held, transform=cropped)
    for _ in range(2):
        inputs = samples_of(splits).batch(range(30), 1)[0][""]
        assert inputs[:, 2, 3].tolist() == list(range(30))
    assert "data: train samples are read anew in each epoch: they have several forms" in reading_notes(splits)[0]
    with pytest.raises(
        ValueError, match=r"train samples cannot be kept: they have several forms, as inputs uint8 \(3, 8"
    ):
        dataset_splits(train, held, transform=cropped, cache=True)


def test_samples_of_another_form_than_those_that_were_looked_at_are_not_kept() -> None:
    class Late(Photographs):
        """All but two samples have one form."""

        def __getitem__(self, row: int) -> Any:
            picture, target = super().__getitem__(row)
            return (picture if row in (20, 23) else picture[:, :8]), target

    train = Late(20)
    samples = samples_of(dataset_splits(train, Rows(9), transform=cropped, cache=True))
    wanted = samples.batch(range(30), 1)[0][""]
    assert wanted[:, 2, 3].tolist() == list(range(30))
    train.reads.clear()
    assert np.array_equal(samples.batch(range(30), 1)[0][""], wanted)
    assert set(train.reads) == {20, 23}
    uneven = samples_of(dataset_splits(train, Rows(9), transform=lambda picture: picture, cache=False))
    with pytest.raises(SampleError, match=r"sample 20 of .*: bring them to one form in transform$"):
        uneven.batch(range(30), 1)


def test_what_is_done_to_samples_is_not_done_to_the_next_look_at_them() -> None:
    splits = dataset_splits(Rows(), Rows(9))
    splits.train_inputs[0:4][:] = 100  # type: ignore[index]
    assert numbers(splits.train_inputs[0:4]) == [0, 1, 2, 3]
    assert [int(row[0]) for row in splits.validation_inputs] == list(range(9))
    with pytest.raises(TypeError, match="chosen by one index"):
        splits.train_inputs[0, 1]


def test_parts_of_one_data_set_are_sent_once() -> None:
    class Large(Rows):
        def __init__(self) -> None:
            super().__init__()
            self.held = np.zeros(2**20, np.uint8)

    data = Large()
    assert len(pickle.dumps(dataset_splits(data, 0.2, test=0.2))) < 1.5 * 2**20
    assert len(pickle.dumps(dataset_splits(data, data))) < 1.5 * 2**20
