"""The contract that a user implements.

    class Mlp(TorchExperiment):
        def data(self) -> Splits: ...
        def model(self, hp) -> nn.Module: ...

The parts of the contract that belong to a framework are beside its trainings: `training/torch/experiment.py`,
`training/keras/experiment.py`. Any function `train(config)` that calls `raygpu.report(...)` is an experiment too.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Arrays = np.ndarray | Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Splits:
    """Training and validation data in host memory, and test data if there is any.

    Inputs and targets are each one array, or several by name (`{"user": ..., "item": ...}`). The first axis of every
    array counts the samples. One array reaches the model as `model(x)`; named inputs reach a torch model as keyword
    arguments, `model(user=..., item=...)`, and a Keras model as a dict. Lists, tensors and data frames are converted to
    arrays. Raises ValueError for data that makes no array, or arrays of different lengths.
    """

    train_inputs: Arrays
    train_targets: Arrays
    validation_inputs: Arrays
    validation_targets: Arrays
    test_inputs: Arrays | None = None
    """Inputs that no trial sees: the winner of a sweep and a production model are scored on them, once. None for no
    test data."""
    test_targets: Arrays | None = None
    per_epoch: int | None = field(default=None, kw_only=True)
    """Training samples of an epoch, as `data.samples_per_epoch` sets them; None for all."""

    def __post_init__(self) -> None:
        if (self.test_inputs is None) != (self.test_targets is None):
            raise ValueError("test_inputs and test_targets: one of both is missing")
        parts = ("train", "validation", *(["test"] if self.test_inputs is not None else []))
        for part in parts:
            sizes = set[int]()
            for name in (f"{part}_inputs", f"{part}_targets"):
                object.__setattr__(self, name, as_arrays(getattr(self, name), name))
                sizes |= {len(array) for array in named(getattr(self, name)).values()}
            if len(sizes) != 1 or sizes == {0}:
                raise ValueError(
                    f"the {part} split holds arrays of {sorted(sizes)} samples; all need the same number, at least 1"
                )

    @classmethod
    def of(
        cls, inputs: Arrays, targets: Arrays, *, validation: float = 0.2, test: float | None = None, seed: int = 0
    ) -> Splits:
        """Split arrays at random into training and validation data, stratified by class where `targets` are whole
        numbers.

        validation: share of the samples, 0 to 1, that is kept for validation. test: share of the samples that the
        search never sees; by default none. Raises ValueError for arrays of unequal length, and parts without a sample.
        """
        inputs, targets = as_arrays(inputs, "inputs"), as_arrays(targets, "targets")
        sizes = [len(array) for arrays in (inputs, targets) for array in named(arrays).values()]
        if len(set(sizes)) != 1 or 0 in sizes:
            raise ValueError(f"inputs and targets have {sizes} samples; all need the same number, at least 1")
        parts = split_rows(targets, num_samples(inputs), validation, test, seed)
        return cls(*(take(part, chosen) for chosen in parts for part in (inputs, targets)))

    @property
    def num_train(self) -> int:
        """Number of training samples."""
        return num_samples(self.train_inputs)

    @property
    def samples_per_epoch(self) -> int:
        """Number of training samples of an epoch: of the data, or as many as were set."""
        return self.per_epoch or self.num_train

    def first(self, count: int) -> Splits:
        """Return the first `count` samples of the training data and of the validation data, without the test data."""
        parts = (self.train_inputs, self.train_targets, self.validation_inputs, self.validation_targets)
        return Splits(*(take(part, slice(0, count)) for part in parts))

    def part(self, fraction: float, seed: int) -> Splits:
        """Return a seeded, stratified part of the training data, with the whole validation data, without the test data.

        fraction: share of the training samples, above 0 and at most 1.
        """
        if fraction >= 1.0 and self.test_inputs is None:
            return self
        rows = slice(None) if fraction >= 1.0 else part_rows(self.train_targets, fraction, seed)
        inputs, targets = subset(self.train_inputs, rows), subset(self.train_targets, rows)
        return Splits(inputs, targets, self.validation_inputs, self.validation_targets)

    def for_test(self) -> Splits | None:
        """Return the test data in place of the validation data, beside a few training samples; None without test data.

        A training that evaluates on it scores its model on the test data.
        """
        if self.test_inputs is None or self.test_targets is None:
            return None
        inputs, targets = (subset(part, slice(0, 2)) for part in (self.train_inputs, self.train_targets))
        return Splits(inputs, targets, self.test_inputs, self.test_targets)


def as_arrays(data: Any, name: str) -> Arrays:
    """Return data as an array, or as named arrays if it is a mapping; floats of a list become float32.

    name: what the data is, for the ValueError that is raised if it makes no array of numbers.
    """
    if isinstance(data, np.ndarray) or is_read_later(data):
        if np.ma.is_masked(data):
            raise ValueError(f"{name}: an array with masked values, which a model would take as numbers: fill them")
        return data
    if isinstance(data, Mapping):
        return {key: as_arrays(value, f"{name}[{key!r}]") for key, value in data.items()}  # type: ignore[misc]
    if hasattr(data, "detach"):  # a torch tensor
        data = data.detach().cpu()
    try:
        array: np.ndarray = data.to_numpy() if hasattr(data, "to_numpy") else np.asarray(data)
    except ValueError as error:  # rows of different lengths
        raise ValueError(f"{name}: makes no array: {error}") from error
    array = _frame_array(data, array) if array.dtype == object else array
    if array.dtype == object:
        raise ValueError(f"{name}: {_without_numbers(data, array.shape)}")
    return array.astype(np.float32) if isinstance(data, list | tuple) and array.dtype == np.float64 else array


def _frame_array(frame: Any, array: np.ndarray) -> np.ndarray:
    """Return the numbers of a data frame or series of pandas, of the type that holds those of all its columns; missing
    ones as NaN.

    array: what pandas makes of it, of objects. Returns that where a column holds other things than numbers.
    """
    types = [_number_type(kind) for _, kind in _columns(frame)]
    numbers = [kind for kind in types if kind is not None]
    if not types or len(numbers) < len(types):
        return array
    wanted = np.result_type(*numbers)
    if wanted.kind != "f" and bool(np.any(frame.isna().to_numpy())):
        wanted = np.dtype(np.float64)
    missing = {"na_value": np.nan} if wanted.kind == "f" else {}
    converted: np.ndarray = frame.to_numpy(dtype=wanted, **missing)
    return converted


def _without_numbers(data: Any, shape: tuple[int, ...]) -> str:
    """Return in words what data is that holds other things than numbers; of a data frame with the names of these
    columns."""
    others = [f"{name!r} ({kind})" for name, kind in _columns(data) if _number_type(kind) is None]
    columns = f": {', '.join(others)}" if hasattr(data, "columns") else ""
    return f"a {type(data).__name__} of {shape} that holds other things than numbers{columns}"


def _columns(frame: Any) -> list[tuple[Any, Any]]:
    """Return the name and the type of each column, of a series the one; nothing for other data."""
    if not type(frame).__module__.startswith("pandas") or not hasattr(frame, "dtype" if frame.ndim == 1 else "dtypes"):
        return []
    return [("", frame.dtype)] if frame.ndim == 1 else [*frame.dtypes.items()]


def _number_type(kind: Any) -> np.dtype | None:
    """Return the type of NumPy that holds a column's numbers, as int64 for Int64; None for other things."""
    numbers = getattr(kind, "numpy_dtype", kind)
    return numbers if isinstance(numbers, np.dtype) and numbers.kind in "biuf" else None


def named(arrays: Arrays) -> Mapping[str, np.ndarray]:
    """Return arrays by name; a single array has the empty name."""
    return arrays if isinstance(arrays, Mapping) else {"": arrays}


def num_samples(arrays: Arrays) -> int:
    """Return the number of samples: the length of the first axis."""
    return len(next(iter(named(arrays).values())))


def take(arrays: Arrays, rows: np.ndarray | slice) -> Arrays:
    """Select samples of one array, or of each named one, by indices or a slice."""
    return {name: array[rows] for name, array in arrays.items()} if isinstance(arrays, Mapping) else arrays[rows]


def subset(arrays: Arrays, rows: np.ndarray | slice) -> Arrays:
    """Select samples as `take` does, but without reading those of a data set."""
    if isinstance(arrays, Mapping):
        return {name: subset(array, rows) for name, array in arrays.items()}  # type: ignore[misc]
    return arrays.subset(rows) if is_read_later(arrays) else arrays[rows]  # type: ignore[attr-defined]


def is_read_later(array: Any) -> bool:
    """Return whether this is a field of a data set's samples, which are read when they are taken."""
    return hasattr(array, "subset")


def reads_later(arrays: Arrays) -> bool:
    """Return whether one of these arrays is a field of a data set's samples."""
    return any(map(is_read_later, named(arrays).values()))


def class_labels(targets: Arrays | None) -> np.ndarray | None:
    """Return targets that are classes, one array of whole numbers; None for other targets, and for those of a data set
    that does not list them."""
    labels = targets.listed if is_read_later(targets) else targets  # type: ignore[union-attr]
    if not isinstance(labels, np.ndarray) or labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        return None
    return labels


def _strata(targets: Arrays | None) -> np.ndarray | None:
    """Return the targets if they can be stratified: classes with at least two samples each."""
    labels = class_labels(targets)
    return labels if labels is not None and np.unique(labels, return_counts=True)[1].min() >= 2 else None


def part_rows(targets: Arrays, fraction: float, seed: int) -> np.ndarray:
    """Return the samples of a seeded, stratified part, ascending. fraction: share of the samples, above 0, below 1."""
    from sklearn.utils import resample

    count = num_samples(targets)
    num_chosen = max(1, round(count * fraction))
    chosen = resample(
        np.arange(count), replace=False, n_samples=num_chosen, stratify=_strata(targets), random_state=seed
    )
    return np.sort(np.asarray(chosen))


def split_rows(
    targets: Arrays | None, count: int, validation: float, test: float | None, seed: int
) -> list[np.ndarray]:
    """Return the training and validation samples, and the test samples if there are any. See `Splits.of`.

    targets: of all samples; None if they are not known.
    """
    rows = np.arange(count)
    if test is None:
        if not 0 < validation < 1:
            raise ValueError(f"validation={validation:g}; allowed: a share of the samples, above 0 and below 1")
        return _cut(targets, rows, validation, seed)
    for_validation, for_test = (math.ceil(share * count) for share in (validation, test))
    if min(for_validation, for_test) < 1 or for_validation + for_test >= count:
        shares = f"validation={validation:g} and test={test:g} of {count} samples"
        raise ValueError(f"{shares} leave nothing for one of the parts; allowed: above 0, together below 1")
    rest, tested = _cut(targets, rows, for_test, seed)
    return [*_cut(targets, rest, for_validation, seed), tested]


def _cut(targets: Arrays | None, rows: np.ndarray, held: float, seed: int) -> list[np.ndarray]:
    """Cut samples in two, stratified where that is possible. held: share, or number, of those in the second part."""
    from sklearn.model_selection import train_test_split

    strata = None if targets is None else _strata(subset(targets, rows))
    try:
        return list(train_test_split(rows, test_size=held, random_state=seed, stratify=strata))
    except ValueError:  # more classes than one of the parts has samples
        return list(train_test_split(rows, test_size=held, random_state=seed))


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean in two parts, `total / weight`: the result of `loss` and `metrics` where samples do not count alike.

    A batch may be cut into parts, for several devices or for less memory. The mean of the whole batch is then
    `sum(totals) / sum(weights)`, which the parts' own means do not tell: masked targets, `ignore_index`, class weights.

        def loss(self, outputs, targets):
            losses = cross_entropy(outputs, targets, ignore_index=-100, reduction="sum")
            return raygpu.Mean(losses, (targets != -100).sum())

    total: a scalar tensor. weight: a scalar tensor or a number, at least 0; a weight of 0 counts as 1: a mean
    over nothing is `total`, 0 as a rule.
    """

    total: Any
    weight: Any


@dataclass(frozen=True, slots=True)
class Sum:
    """A sum over samples, not divided by their number: the result of `loss` and `metrics` in place of a mean.

    total: a scalar tensor. The sum of a whole batch is the sum over its parts.
    """

    total: Any


class Experiment(ABC):
    """Base of torch and Keras experiments: a user's data, model, loss and metrics.

    One instance serves many trials: methods keep no state on it. Before anything is trained, raygpu also calls them on
    the CPU with a few samples; checks of torch experiments use float64 where the code takes it.
    """

    framework: str

    @abstractmethod
    def data(self) -> Splits:
        """Load the training and validation data into host memory.

        Called once per command, in the driver, with the experiment's folder as the working directory; workers get the
        arrays through Ray, read-only. With `--data.synthetic`, `synthetic` is called instead. Shapes and dtypes reach
        the model unchanged: (samples, ...), as a rule float32 inputs and int64 class indices.
        """

    def synthetic(self) -> Splits:
        """Make up data with the shapes and dtypes of `data()`, for `--data.synthetic`. Optional.

        Called once per command, in the driver, in place of `data`.
        """
        raise NotImplementedError

    @abstractmethod
    def model(self, hp: Mapping[str, Any]) -> Any:
        """Return a new, untrained model for these hyper-parameters.

        Called for each training of a trial, and for raygpu's checks, after torch's or TensorFlow's, NumPy's and
        Python's random generators were seeded with the trial's seed. A torch model is made on the CPU and then moved to
        the device, a Keras model on the device that TensorFlow chooses. Each call has to make new parameters. A part in
        which nothing trains keeps the evaluation mode that it is left in, as a frozen teacher of a torch model.

        The model gets inputs of shape (batch, ...) with the dtype of `data()`: `batch_size` samples of one training
        step, fewer in an epoch's last batch or where a batch is cut into parts, and at most 1024 in an evaluation.

        hp: read-only. The names read here, in one `forward` and in `augment` are recorded: only trials that agree in
        them share an array. In fused mode `forward` runs under `torch.vmap`: see `TorchExperiment` for what that
        forbids.
        """

    @abstractmethod
    def loss(self, outputs: Any, targets: Any) -> Any:
        """Return the loss of a batch, a scalar tensor: the mean over its samples.

        Called on the training's device for each training batch, or each part of one, and for each validation batch.
        outputs: of the model, as a rule (batch, ...); with `bf16` or `fp16`, a torch model's may be of half precision.
        targets: (batch, ...) with the dtype of `data()`, or a dict of such tensors; a copy.

        A loss that counts samples unequally returns `Mean`, one that adds them up `Sum`; the kind has to be the same
        for every batch. In fused mode it runs under `torch.vmap`: see `TorchExperiment` for what that forbids.
        """

    @abstractmethod
    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        """Return the metrics of a validation batch by name, each a scalar tensor: the mean over its samples.

        Called on the training's device after `loss`, with the same arguments, for each validation batch of at most 1024
        samples; no gradient is recorded. Reported as `validation/<name>`, next to `validation/loss`. `Mean` and `Sum`
        are exact over batches; any other number is averaged over the batches by their sizes.

        In fused mode they run under `torch.vmap`: see `TorchExperiment`. Metrics that vmap cannot map are computed for
        one member after the other.
        """

    def augment(self, inputs: Any, hp: Mapping[str, Any]) -> Any:
        """Return a batch of training inputs, changed at random. The default changes nothing.

        Called on the training's device before each forward pass of a training, never for validation data. inputs:
        (batch, ...) with the dtype of `data()`, or a dict of such tensors; a copy, which may be changed in place. Draw
        from torch's or Keras' random numbers only: they are seeded for each epoch with the trial's seed.

        hp: as in `model`; the names read are recorded. In fused mode it runs under `torch.vmap`: see `TorchExperiment`.
        """
        return inputs
