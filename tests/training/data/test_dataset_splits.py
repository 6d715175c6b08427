"""Data sets as the data of an experiment: which part a sample is in, what is read at first, and clear refusals."""

from __future__ import annotations

import random
import re
import threading
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, IterableDataset, Subset, default_collate

from raygpu import dataset_splits
from raygpu.experiment import class_labels, reads_later
from raygpu.training.data.columns import Column, reading_notes
from raygpu.training.data.fields import SampleError
from raygpu.training.data.sample_cache import SampleCache
from tests.training.data.rows import Listed, OwnGenerator, Rows, numbers, samples_of


class Noise(Rows):
    def __getitem__(self, row: int) -> Any:
        return np.array([row, random.random()]), row % 3


def test_nothing_but_a_few_samples_is_read_at_first() -> None:
    train, validation = Rows(1000), Rows(500)
    splits = dataset_splits(train, validation, cache=False)
    assert set(train.reads) == {0, 500, 999}
    assert set(validation.reads) == {0, 250, 499}
    assert splits.num_train == 1000
    assert reads_later(splits.train_inputs)
    assert splits.train_inputs[5].tolist() == [5, 5]
    assert splits.train_inputs[[7, 3]].tolist() == [[7, 7], [3, 3]]
    assert splits.train_targets[7:9].tolist() == [1, 2]
    assert splits.first(4).train_inputs.shape == (4, 2)
    assert not reads_later(splits.first(4).train_inputs)


@pytest.mark.parametrize("collate_fn", [None, default_collate])
def test_shares_have_no_sample_in_common_and_are_stratified_by_listed_classes(collate_fn: Any) -> None:
    splits = dataset_splits(Listed(60), 0.2, test=0.1, collate_fn=collate_fn)
    parts = [numbers(part) for part in (splits.train_inputs, splits.validation_inputs, splits.test_inputs)]
    assert [len(part) for part in parts] == [42, 12, 6]
    assert sorted(row for part in parts for row in part) == list(range(60))
    for part, targets in zip(
        parts, (splits.train_targets, splits.validation_targets, splits.test_targets), strict=True
    ):
        assert class_labels(targets).tolist() == [row % 3 for row in part]
        assert np.unique(targets, return_counts=True)[1].tolist() == [len(part) // 3] * 3


def test_a_part_of_the_data_is_chosen_without_reading_it() -> None:
    train = Listed(60)
    splits = dataset_splits(train, Rows(9))
    train.reads.clear()
    half = splits.part(0.5, seed=1)
    assert train.reads == []
    assert half.num_train == 30
    assert class_labels(half.train_targets).tolist() == [row % 3 for row in numbers(half.train_inputs)]


def test_what_a_collate_fn_draws_for_the_validation_samples_too_is_told() -> None:
    def masked(samples: list[Any]) -> Any:
        inputs, targets = default_collate(samples)
        return inputs * (torch.rand(inputs.shape) < 0.5), targets

    splits = dataset_splits(Rows(), 0.2, collate_fn=masked)
    told = "data: collate_fn draws random numbers, and makes the validation and test samples too"
    assert any(note.startswith(told) for note in reading_notes(splits))
    held = samples_of(splits, "validation")
    assert np.array_equal(held.batch([3, 5], 1)[0][""], held.batch([3, 5], 1)[0][""])
    plain = dataset_splits(Rows(), 0.2, collate_fn=default_collate)
    assert not any(note.startswith(told) for note in reading_notes(plain)), "others tell of slow reading"


def test_a_list_that_is_not_what_the_samples_have_is_not_believed() -> None:
    wrong = Listed(30)
    wrong.targets = [0] * 30
    splits = dataset_splits(wrong, Rows(9))
    assert class_labels(splits.train_targets) is None
    assert np.asarray(splits.train_targets).tolist() == [row % 3 for row in range(30)]


def test_a_list_is_never_trained_on() -> None:
    nearly = Listed(30)
    nearly.targets[7] = 2  # none of the samples that are compared
    splits = dataset_splits(nearly, Rows(9))
    assert class_labels(splits.train_targets)[7] == 2
    assert splits.train_targets[7] == 1


def test_a_mask_and_negative_numbers_choose_as_of_an_array() -> None:
    splits = dataset_splits(Rows(6), Rows(3))
    assert numbers(splits.train_inputs[np.array([True, False, True, False, False, False])]) == [0, 2]
    assert numbers(splits.train_inputs[[-1, 2]]) == [5, 2]
    assert numbers(splits.part(0.5, 0).train_inputs[-2:]) == numbers(splits.part(0.5, 0).train_inputs)[-2:]


def test_a_subset_lists_the_classes_of_its_own_samples() -> None:
    splits = dataset_splits(Subset(Listed(30), [4, 8, 12]), Rows(9))
    assert class_labels(splits.train_targets).tolist() == [1, 2, 0]


def test_a_cache_is_planned_once_for_two_parts_of_one_data_set(monkeypatch: pytest.MonkeyPatch) -> None:
    data = Rows(100)
    wanted = 100 * (2 * 4 + 8)  # two float32 and an int64
    monkeypatch.setattr(SampleCache, "free_bytes", lambda: 2 * wanted)
    splits = dataset_splits(data, data, cache=True)
    assert len(reading_notes(splits)) == 1
    assert samples_of(splits).name == samples_of(splits, "validation").name
    monkeypatch.setattr(SampleCache, "free_bytes", lambda: 2 * wanted - 1)
    with pytest.raises(ValueError, match="train samples cannot be kept: they need"):
        dataset_splits(data, data, cache=True)


class Dictionaries(Rows):
    def __getitem__(self, row: int) -> Any:
        return {"image": np.full((2, 2), row, np.uint8), "size": row * 0.5, "label": row % 3, "box": [row, row + 1]}


def test_fields_of_mappings_are_inputs_but_for_those_that_are_named() -> None:
    splits = dataset_splits(Dictionaries(), 0.2, targets=["label", "box"])
    assert sorted(splits.train_inputs) == ["image", "size"]
    assert splits.train_inputs["size"].dtype == np.float32
    assert splits.train_targets["box"].shape == (24, 2)
    single = dataset_splits(Dictionaries(), 0.2, targets="label")
    assert isinstance(single.train_targets, Column)
    with pytest.raises(SampleError, match=r"has the fields image, size, label, box.*targets=\['lable'\]: name those"):
        dataset_splits(Dictionaries(), 0.2, targets="lable")


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        yield 1, 2


class Growing(Rows):
    def __getitem__(self, row: int) -> Any:
        return np.zeros((row + 1, 2)), row


class Triples(Rows):
    def __getitem__(self, row: int) -> Any:
        return 1, 2, 3


class Words(Rows):
    def __getitem__(self, row: int) -> Any:
        return "word", row


class Locked(Rows):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


class Halves(Rows):
    def __getitem__(self, row: int) -> Any:
        return torch.zeros(2, dtype=torch.bfloat16), row


SAME = Rows()


class Broken(Rows):
    def __getitem__(self, row: int) -> Any:
        raise FileNotFoundError(f"image-{row}.png")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: dataset_splits(Rows(0), Rows(9)), "train: a Rows without a sample"),
        (lambda: dataset_splits(Rows(), DataLoader(Rows())), r"validation: a DataLoader; give its data set"),  # type: ignore[arg-type]
        (
            lambda: dataset_splits(Stream(), Rows(9)),
            r"train: a Stream has no length; .* num_samples=\{'train': 10_000\}",
        ),
        (lambda: dataset_splits(iter([1]), Rows(9)), "train: a list_iterator can be read once"),
        (lambda: dataset_splits(object(), Rows(9)), "train: a object; wanted: a data set with __getitem__ and"),
        (
            lambda: dataset_splits(Stream(), 0.2, num_samples={"train": 1}),
            "validation=0.2: train is a stream, which is not",
        ),
        (
            lambda: dataset_splits(Rows(), Rows(9), num_samples={"train": 4}),
            "num_samples: read 4 of train; a Rows has a length of its own",
        ),
        (
            lambda: dataset_splits(Stream(), Rows(9), num_samples={"train": 1, "val": 4}),
            "num_samples: read 'val'; allowed: train, validation, of the data sets given",
        ),
        (
            lambda: dataset_splits(Rows(), 0.2, num_samples={"validation": 4}),
            "num_samples: read 'validation'; allowed: train, of the data sets given",
        ),
        (
            lambda: dataset_splits(Stream(), Rows(9), num_samples={"train": 2}),
            "the train data has ended after 1 samples",
        ),
        (
            lambda: dataset_splits(Stream(), Rows(9), num_samples={"train": 1}, cache=True),
            "a stream is read anew in each",
        ),
        (lambda: dataset_splits(Growing(), Rows(9)), r"sample 15 of the train data is inputs float64 \(16, 2\)"),
        (lambda: dataset_splits(Triples(), Rows(9)), "sample 0 of the train data is a tuple of 3"),
        (
            lambda: dataset_splits(Words(), Rows(9)),
            "sample 0 of the train data is a str of <U4, which torch does not have: convert it",
        ),
        (lambda: dataset_splits(Broken(), Rows(9)), "sample 0 of the train data cannot be read: .*image-0.png"),
        (
            lambda: dataset_splits(OwnGenerator(), Rows(9), cache=True),
            "train samples cannot be kept: reading one again",
        ),
        (lambda: dataset_splits(OwnGenerator(), 0.2), "validation=0.2: reading a sample of train draws random numbers"),
        (
            lambda: dataset_splits(Noise(), 0.2, collate_fn=default_collate),
            "which are not for an evaluation: give a data set without it in place of the share$",
        ),
        (
            lambda: dataset_splits(OwnGenerator(), 0.2, collate_fn=default_collate),
            "draws random numbers, which are not",
        ),
        (lambda: dataset_splits(Subset(Rows(), [1, 2, 2, 5]), 0.5), "train has some samples twice"),
        (lambda: dataset_splits(ConcatDataset([SAME, SAME]), 0.5), "train has some samples twice"),
        (
            lambda: dataset_splits(Locked(), Rows(9)),
            "train: a Locked cannot be sent to workers, as pickle does: TypeError",
        ),
        (lambda: dataset_splits(Rows(), Rows(9), targets="label"), r"targets=\['label'\] names fields of a mapping"),
        (lambda: dataset_splits(Halves(), Rows(9)), "sample 0 of the train data makes no array: .*BFloat16"),
        (lambda: dataset_splits(Rows(), None), "validation: read None; allowed: a data set, or a share"),
        (lambda: dataset_splits(Rows(), 10), "validation: read 10; allowed: a data set, or a share"),
        (lambda: dataset_splits(Rows(), Rows(9), cache="yes"), "cache: read 'yes'; allowed: True, False, or None"),  # type: ignore[arg-type]
        (lambda: dataset_splits(Rows(), Rows(9), num_workers="4"), "num_workers: read '4'; allowed: of type int"),
        (lambda: dataset_splits(Rows(), Rows(9), pin_memory="x"), "pin_memory: read 'x'; allowed: of type bool"),
        (lambda: dataset_splits(Rows(), Rows(9), worker_init_fn=3), "worker_init_fn: read 3; allowed: a function"),
        (lambda: dataset_splits(Rows(), Rows(9), prefetch_factor=-3), "prefetch_factor option"),
        (lambda: dataset_splits(Rows(), 1.5), "validation: read 1.5; allowed: a data set, or a share of train above 0"),
        (lambda: dataset_splits(Rows(), 0.0), "validation: read 0; allowed: a data set, or a share of train above 0"),
        (lambda: dataset_splits(Rows(), Rows(9), shuffle=True), "shuffle: no option of dataset_splits; allowed: num"),
        (
            lambda: dataset_splits(Rows(), Rows(9), num_workers=-1),
            r"dataset_splits\(num_workers=-1\): .*non-negative",
        ),
        (lambda: dataset_splits(Rows(), Rows(9), num_workers=2, timeout=-1), "timeout option should be non-negative"),
        (lambda: dataset_splits(Rows(), Rows(9), multiprocessing_context="no"), "multiprocessing_context option"),
        (lambda: dataset_splits(Rows(), Rows(9), transform=len, collate_fn=len), "one of both is possible"),
        (
            lambda: dataset_splits(Rows(), Rows(9), collate_fn=lambda _: 5),
            r"collate_fn\(\) of 3 train samples is a int",
        ),
        (lambda: dataset_splits(Rows(), Rows(9), transform=lambda _: None), r"transform\(\) of sample 0 of the train"),
        (lambda: dataset_splits(Rows(), 0.6, test=0.6), "leave nothing for one of the parts"),
    ],
)
def test_what_cannot_be_read_is_one_clear_line(make: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError)) as raised:
        make()
    assert re.search(message, str(raised.value))
    assert "\n" not in str(raised.value)
