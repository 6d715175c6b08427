"""Training, validation and test data of map-style data sets, in place of arrays in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from raygpu.errors import one_line
from raygpu.experiment import Arrays, Splits, split_rows
from raygpu.training.data.columns import Column
from raygpu.training.data.dataset_inspection import inspect_dataset, read_again
from raygpu.training.data.fields import Batch, unnamed
from raygpu.training.data.samples import ReadOptions, Samples
from raygpu.training.data.stream import Stream

LOADER_OPTIONS = (
    "num_workers",
    "prefetch_factor",
    "pin_memory",
    "multiprocessing_context",
    "worker_init_fn",
    "timeout",
)
"""Options of `torch.utils.data.DataLoader` that are handed to it; order and batches are raygpu's."""
NO_NUMBERS: Mapping[str, int] = {}
SPLIT_SEED = 0
"""Seed of the samples that are taken out of the training data."""
VERIFIED = 8
"""Number of samples whose targets are compared with the data set's list of all targets."""


def dataset_splits(
    train: Any,
    validation: Any = 0.2,
    test: Any = None,
    *,
    targets: str | Sequence[str] = (),
    transform: Callable[[Any], Any] | None = None,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    cache: bool | None = None,
    num_samples: Mapping[str, int] = NO_NUMBERS,
    **loader: Any,
) -> Splits:
    """Return the data of data sets whose samples are read while they are trained on.

        def data(self):
            train = ImageFolder("flowers/train", transform=to_tensor)
            return raygpu.dataset_splits(train, ImageFolder("flowers/val", transform=to_tensor), num_workers=4)

    train, validation, test: objects with `__len__` and `__getitem__`, as torch's and Hugging Face's, or streams, with
    `__iter__`. A sample is a pair `(inputs, targets)` or a mapping; each of both is a tensor, an image, an array or a
    number, or a mapping of these. A share, as 0.2, takes the validation or test samples out of `train` at random, the
    same ones each time, stratified where it lists its classes as `targets`.

    targets: names of the targets, for samples that are mappings. transform: function of a training sample's inputs,
    torch tensors, for random augmentations. collate_fn: as of a DataLoader, for training and validation samples.

    cache: whether a sample, once read, is kept on each node's disk, for later epochs and for all trials there; by
    default if reading one takes long, its form is always the same, and nothing about it is random. `transform` comes
    after the cache.

    num_samples: samples of an epoch of each stream without a length (torch's `IterableDataset`, a Hugging Face
    stream), by "train", "validation" and "test". They come in the stream's own order.

    loader: options of a torch `DataLoader`: `num_workers`, `prefetch_factor`, `pin_memory`, `multiprocessing_context`,
    `worker_init_fn`, `timeout`. Workers come out of a trial's CPUs; by default as many as those of a training on a GPU,
    and one fewer on a CPU.

    Every trial sees the samples in the same order, by the epoch alone, and a sample's random numbers depend on its
    number and the epoch: members of an array share each batch. Raises TypeError and ValueError for what is no such
    data set, is empty, or has samples of different forms.
    """
    if cache not in (None, True, False):
        raise TypeError(
            f"cache: read {cache!r}; allowed: True, False, or None to decide by what reading a sample costs"
        )
    if unknown := sorted(set(loader) - set(LOADER_OPTIONS)):
        raise TypeError(f"{unknown[0]}: no option of dataset_splits; allowed: {', '.join(LOADER_OPTIONS)}")
    if loader:
        _require_valid(loader)
    if transform is not None and collate_fn is not None:
        raise ValueError("transform and collate_fn: one of both is possible; collate_fn gets whole samples")
    names = (targets,) if isinstance(targets, str) else tuple(targets)
    plain = ReadOptions(names, None, collate_fn, cache, loader)
    evaluation_data = {"validation": validation, "test": test}
    _require_of_datasets(num_samples, evaluation_data)
    samples, seen = inspect_dataset(train, "train", replace(plain, transform=transform), num_samples.get("train"))
    rows = _cut(samples, seen, _shares(evaluation_data))
    parts, planned = {"train": _columns(samples, seen, rows.get("train"))}, samples.cache_bytes(samples.decoded)
    for part, other in evaluation_data.items():
        if part in rows:
            part_samples = samples.sharing(plain, part)
            parts[part] = _columns(part_samples, part_samples.learn(part_samples.batch(rows[part][:2], 1)), rows[part])
        elif other is not None:
            part_samples, seen = inspect_dataset(
                samples if other is train else other, part, plain, num_samples.get(part), planned
            )
            parts[part] = _columns(part_samples, seen, None)
            planned += 0 if other is train else part_samples.cache_bytes(part_samples.decoded)
    return Splits(*parts["train"], *parts["validation"], *parts.get("test", (None, None)))


def _shares(given: Mapping[str, Any]) -> dict[str, float]:
    """Return the parts that are given as a share of the training data. Raises ValueError for a bad one, and without
    validation data."""
    shares = {part: float(value) for part, value in given.items() if isinstance(value, float | int | np.number)}
    for part, share in shares.items():
        if not 0 < share < 1:
            raise ValueError(f"{part}: read {share:g}; allowed: a data set, or a share of train above 0 and below 1")
    if given["validation"] is None:
        raise ValueError("validation: read None; allowed: a data set, or a share of train above 0 and below 1")
    return shares


def _require_of_datasets(num_samples: Mapping[str, int], given: Mapping[str, Any]) -> None:
    """Raise ValueError for a number of samples of what is no part of the data, or a share of `train`."""
    shares = _shares(given)
    allowed = ["train", *(part for part, other in given.items() if other is not None and part not in shares)]
    if unknown := sorted(set(num_samples) - set(allowed)):
        raise ValueError(f"num_samples: read {unknown[0]!r}; allowed: {', '.join(allowed)}, of the data sets given")


def _require_valid(loader: Mapping[str, Any]) -> None:
    """Raise ValueError for options that torch's DataLoader does not take."""
    from torch.utils.data import DataLoader

    if loader.get("num_workers") == 0:  # the other options are for processes, which a node with more CPUs may have
        loader = {**loader, "num_workers": 1}
    for option, kind in (("pin_memory", bool), ("num_workers", int)):
        if not isinstance(loader.get(option, kind()), kind):
            raise TypeError(f"{option}: read {loader[option]!r}; allowed: of type {kind.__name__}")
    if not callable(loader.get("worker_init_fn") or len):
        raise TypeError(f"worker_init_fn: read {loader['worker_init_fn']!r}; allowed: a function of a worker's number")
    try:
        DataLoader([0], **{"num_workers": 1, **loader})
    except (ValueError, TypeError) as error:
        options = ", ".join(f"{name}={value!r}" for name, value in loader.items())
        raise ValueError(f"dataset_splits({options}): {one_line(error)}") from error


def _cut(samples: Samples, seen: Batch, shares: Mapping[str, float]) -> dict[str, np.ndarray]:
    """Return the samples of each part that is a share of the training data, and of the rest. Raises ValueError."""
    if not shares:
        return {}
    name = ", ".join(f"{part}={share:g}" for part, share in shares.items())
    if isinstance(samples, Stream):
        raise ValueError(f"{name}: train is a stream, which is not cut: give the samples a data set of their own")
    is_new = samples.decoded is None  # a cache has had the look already
    if (is_new and read_again(samples)[0]) or samples.is_random:
        as_transform = "what is random as transform=, or " if samples.reading.collate_fn is None else ""
        raise ValueError(
            f"{name}: reading a sample of train draws random numbers, which are not for an evaluation: give"
            f" {as_transform}a data set without it in place of the share"
        )
    if _repeats(samples.dataset):
        raise ValueError(
            f"{name}: train has some samples twice, which would be in two parts: give each part a data set"
        )
    labels = _all_targets(samples, seen)
    if len(shares) == 1:
        ((part, share),) = shares.items()
        train, evaluation = split_rows(labels, samples.count, share, None, SPLIT_SEED)
        return {"train": train, part: evaluation}
    indices = split_rows(labels, samples.count, shares["validation"], shares["test"], SPLIT_SEED)
    return dict(zip(("train", "validation", "test"), indices, strict=True))


def _repeats(dataset: Any) -> bool:
    """Return whether a `torch.utils.data.Subset` or `ConcatDataset` has samples twice."""
    if hasattr(dataset, "indices") and hasattr(dataset, "dataset"):
        return len(set(map(int, dataset.indices))) < len(dataset.indices) or _repeats(dataset.dataset)
    parts = [id(part) for part in getattr(dataset, "datasets", ())]
    return len(set(parts)) < len(parts)


def _columns(samples: Samples, seen: Batch, rows: np.ndarray | None) -> tuple[Arrays, Arrays]:
    """Return inputs and targets that are read when they are taken. rows: the samples of this part; None for all."""
    inputs, targets = (
        {name: Column(samples, part, name, array, rows, listed) for name, array in seen[part].items()}
        for part, listed in ((0, None), (1, _all_targets(samples, seen)))
    )
    return unnamed(inputs), unnamed(targets)


def _all_targets(samples: Samples, seen: Batch) -> np.ndarray | None:
    """Return the targets of all samples if the data set lists them, as torchvision's `targets` do; else None.

    Some samples are read to verify the list.
    """
    if isinstance(samples, Stream) or list(seen[1]) != [""]:
        return None
    listed = _listed(samples.dataset, samples.reading.targets)
    if listed is None or len(listed) != samples.count or listed.ndim != 1:
        return None
    rows = np.unique(np.linspace(0, samples.count - 1, VERIFIED).astype(int))
    read = samples.batch_again(rows)[1][""]
    return listed.astype(read.dtype) if np.array_equal(read, listed[rows]) else None


def _listed(dataset: Any, names: Sequence[str]) -> np.ndarray | None:
    """Return a data set's own list of its targets; of a `torch.utils.data.Subset` that of its samples."""
    if names:
        listed = dataset[names[0]] if hasattr(dataset, "column_names") else None  # of Hugging Face
    elif hasattr(dataset, "indices") and hasattr(dataset, "dataset"):
        all_targets = _listed(dataset.dataset, names)
        return None if all_targets is None else all_targets[np.asarray(dataset.indices)]
    else:
        listed = getattr(dataset, "targets", None)
    if listed is None:
        return None
    try:
        array = np.asarray(listed)
    except ValueError:  # rows of different lengths
        return None
    return array if array.dtype.kind in "iuf" else None
