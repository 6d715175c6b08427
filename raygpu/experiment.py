"""The contract that a user implements, and how a configuration's name becomes the user's code.

    class Mlp(TorchExperiment):
        def data(self) -> Splits: ...
        def model(self, hp) -> nn.Module: ...

Any function `train(config)` that calls `raygpu.report(...)` is an experiment too: `resolve("train.py:train")`.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from raygpu.errors import BadInput, one_line
from raygpu.storage import BEGUN_IN

Arrays = np.ndarray | Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Splits:
    """Training and validation data in host memory.

    Inputs and targets are each one array, or several by name (`{"user": ..., "item": ...}`). The first axis of every
    array counts the samples. One array reaches the model as `model(x)`; named inputs reach a torch model as keyword
    arguments, `model(user=..., item=...)`, and a Keras model as a dict.
    """

    train_inputs: Arrays
    train_targets: Arrays
    validation_inputs: Arrays
    validation_targets: Arrays

    def __post_init__(self) -> None:
        for part in ("train", "validation"):
            sizes = {
                len(array)
                for field in ("inputs", "targets")
                for array in named(getattr(self, f"{part}_{field}")).values()
            }
            if len(sizes) != 1 or sizes == {0}:
                raise ValueError(
                    f"the {part} split holds arrays of {sorted(sizes)} samples; all need the same number, at least 1"
                )

    def first(self, count: int) -> Splits:
        """The first `count` samples of both parts."""
        some = slice(0, count)
        return Splits(
            take(self.train_inputs, some),
            take(self.train_targets, some),
            take(self.validation_inputs, some),
            take(self.validation_targets, some),
        )

    @classmethod
    def of(cls, inputs: Arrays, targets: Arrays, *, validation: float = 0.2, seed: int = 0) -> Splits:
        """Split arrays by chance, in the same proportion in each class where `targets` are whole numbers.

        validation: the share of the samples, 0 to 1, that is kept for validation.
        """
        from sklearn.model_selection import train_test_split

        count = num_samples(inputs)

        def split(classes: np.ndarray | None) -> list[np.ndarray]:
            return train_test_split(np.arange(count), test_size=validation, random_state=seed, stratify=classes)

        try:
            train, held = split(_classes(targets))
        except ValueError:  # more classes than one of the parts has samples
            train, held = split(None)
        return cls(take(inputs, train), take(targets, train), take(inputs, held), take(targets, held))

    @property
    def num_train(self) -> int:
        return num_samples(self.train_inputs)

    def part(self, fraction: float, seed: int) -> Splits:
        """The same validation data with a seeded, stratified part of the training data (0 < fraction <= 1)."""
        if fraction >= 1.0:
            return self
        from sklearn.utils import resample

        count = max(1, round(self.num_train * fraction))
        classes = _classes(self.train_targets)
        chosen = resample(
            np.arange(self.num_train), replace=False, n_samples=count, stratify=classes, random_state=seed
        )
        chosen = np.sort(np.asarray(chosen))
        return Splits(
            take(self.train_inputs, chosen),
            take(self.train_targets, chosen),
            self.validation_inputs,
            self.validation_targets,
        )


def named(arrays: Arrays) -> Mapping[str, np.ndarray]:
    """One array under the empty name, or the named arrays as they are."""
    return arrays if isinstance(arrays, Mapping) else {"": arrays}


def num_samples(arrays: Arrays) -> int:
    return len(next(iter(named(arrays).values())))


def take(arrays: Arrays, rows: np.ndarray | slice) -> Arrays:
    """The chosen samples of one array or of each named one."""
    if isinstance(arrays, Mapping):
        return {name: array[rows] for name, array in arrays.items()}
    return arrays[rows]


def _classes(targets: Arrays) -> np.ndarray | None:
    """The targets if they can be stratified: one array of whole numbers with at least two samples of each."""
    if isinstance(targets, Mapping) or targets.ndim != 1 or not np.issubdtype(targets.dtype, np.integer):
        return None
    return targets if np.unique(targets, return_counts=True)[1].min() >= 2 else None


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean in two parts, `total / weight`: what `loss` and `metrics` return where samples do not count alike.

    A batch may be cut into parts, for several devices or for less memory. The mean of the whole batch is then
    `sum(totals) / sum(weights)`, which the parts' own means do not tell: masked targets, `ignore_index`, class weights.

        def loss(self, outputs, targets):
            losses = cross_entropy(outputs, targets, ignore_index=-100, reduction="sum")
            return raygpu.Mean(losses, (targets != -100).sum())

    total: a scalar tensor. weight: a scalar tensor or a number, at least 0; the mean is 0 where it is 0.
    """

    total: Any
    weight: Any


@dataclass(frozen=True, slots=True)
class Sum:
    """A sum over samples, not divided by their number: what `loss` and `metrics` return instead of a mean.

    total: a scalar tensor. The sum of a whole batch is the sum over its parts.
    """

    total: Any


class MissingHyperparameter(KeyError):
    """The experiment read a hyper-parameter that the trial does not have."""

    def __init__(self, name: str, known: Mapping[str, Any]) -> None:
        super().__init__(f"no hyper-parameter {name!r}; this trial has: {', '.join(sorted(known)) or 'none'}")
        self.name = name

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError itself would show quotes within quotes


ALL_NAMES = "*"
"""In `names_read`: which hyper-parameters there are was asked, by a loop over them or their number."""


class Hyperparameters(Mapping[str, Any]):
    """A trial's hyper-parameters: read-only, and every name that is read is recorded in `names_read`.

    What `model()`, one `forward` and `augment()` read shapes the trial's program; the record tells it without a
    declaration. A subclass of `Mapping`, not of `dict`, because `**hp` and `.get` of a dict subclass record nothing.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)
        self.names_read: set[str] = set()

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Hyperparameters:
        """These, or themselves where they are such already, so that its record goes on."""
        return values if isinstance(values, cls) else cls(values)

    def __getitem__(self, name: str) -> Any:
        self.names_read.add(name)
        if name not in self._values:
            raise MissingHyperparameter(name, self._values)
        return self._values[name]

    def get(self, name: str, default: Any = None) -> Any:
        self.names_read.add(name)
        return self._values.get(name, default)

    def __contains__(self, name: object) -> bool:
        self.names_read.add(str(name))
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        self.names_read.add(ALL_NAMES)
        return iter(self._values)

    def __len__(self) -> int:
        self.names_read.add(ALL_NAMES)
        return len(self._values)

    def __repr__(self) -> str:
        return f"Hyperparameters({self._values!r})"


class Experiment(ABC):
    """The common part of torch and Keras experiments: the data, and a model made from hyper-parameters."""

    framework: str

    @abstractmethod
    def data(self) -> Splits:
        """The training and validation data. Called once per sweep, in the driver."""

    def synthetic(self) -> Splits:
        """Made-up data of `data()`'s shapes and types, for `--data.synthetic`. Optional."""
        raise NotImplementedError

    @abstractmethod
    def model(self, hp: Mapping[str, Any]) -> Any:
        """A new model for these hyper-parameters."""

    @abstractmethod
    def loss(self, outputs: Any, targets: Any) -> Any:
        """The loss of a batch: its mean over the samples, a scalar tensor. The default is cross entropy of logits
        against class indices. A loss that counts samples unequally returns `Mean`, one that adds them up `Sum`."""

    @abstractmethod
    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        """Means over the samples of a batch by name, next to the loss; `Mean` or `Sum` where they are no such means.
        The default is the accuracy of class logits."""

    def augment(self, inputs: Any, hp: Mapping[str, Any]) -> Any:
        """Training inputs, changed by chance: called on the device for each batch. The default changes nothing."""
        return inputs


class TorchExperiment(Experiment):
    """A training problem in PyTorch: raygpu supplies the optimizer, the loop, the device and the checkpoints."""

    framework = "torch"

    def loss(self, outputs: Any, targets: Any) -> Any:
        from torch.nn.functional import cross_entropy

        return cross_entropy(outputs, targets)

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        return {"accuracy": (outputs.argmax(dim=-1) == targets).float().mean()}


class KerasExperiment(Experiment):
    """A training problem in Keras on TensorFlow: `model(hp)` returns a Keras model, raygpu trains it."""

    framework = "keras"

    def loss(self, outputs: Any, targets: Any) -> Any:
        import keras

        losses = keras.losses.sparse_categorical_crossentropy(targets, outputs, from_logits=True)
        return keras.ops.mean(losses)

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        import keras

        hits = keras.ops.equal(keras.ops.argmax(outputs, axis=-1), keras.ops.cast(targets, "int32"))
        return {"accuracy": keras.ops.mean(keras.ops.cast(hits, "float32"))}


@dataclass(frozen=True, slots=True)
class Source:
    """The origin of a trial's code: picklable, and resolved again in each worker.

    kind: "torch" and "keras" name an `Experiment`, "function" a function of one dict, "command" a script.
    name: `package.module:Name` or `path/to/file.py:name`, or the command line itself.
    folder: relative paths start here, and it is importable. Absolute, or relative to the working directory in which a
    worker begins: there it is absolute too.
    """

    kind: str
    name: str
    folder: str

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, (self.kind, self.name, self.folder)

    def resolve(self) -> Experiment | Callable[[dict[str, Any]], Any]:
        """The user's object: an `Experiment` instance or a function."""
        return resolve(self.name, Path(self.folder))


def _arrived(kind: str, name: str, folder: str) -> Source:
    return Source(kind, name, str(BEGUN_IN / folder))


def locate(name: str, folder: Path) -> tuple[Source, Experiment | Callable[[dict[str, Any]], Any]]:
    """The source that `name` stands for, and the user's object itself. Raises BadInput."""
    found = resolve(name, folder)
    kind = found.framework if isinstance(found, Experiment) else "function"
    return Source(kind=kind, name=name, folder=str(folder)), found


def resolve(name: str, folder: Path) -> Experiment | Callable[[dict[str, Any]], Any]:
    """Import what `module:Name` or `file.py:name` stands for; an experiment class is instantiated.

    folder: relative files start here, and modules are looked up here as well. Raises BadInput.
    """
    module_name, _, attribute = name.rpartition(":")
    if not module_name or not attribute:
        raise BadInput(f'experiment: read {name!r}; write "package.module:Name" or "path/to/file.py:name"')
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    if module_name.endswith(".py"):
        module = _import_file(folder / module_name, name)
    else:
        module = _import_module(module_name, name, folder)
    try:
        found = getattr(module, attribute)
    except AttributeError:
        raise BadInput(f"experiment: {module_name} has no {attribute!r}; it has: {_candidates(module)}") from None
    if isinstance(found, type) and issubclass(found, Experiment):
        try:
            return found()
        except Exception as error:  # the user's constructor: whatever it raises is the message
            raise BadInput(f"experiment: {name} cannot be constructed: {one_line(error)}") from error
    if isinstance(found, Experiment) or (callable(found) and not isinstance(found, type)):
        return found
    raise BadInput(f"experiment: {name} is neither a TorchExperiment, a KerasExperiment nor a function")


def _import_module(module_name: str, name: str, folder: Path) -> Any:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(error.name + ".")):
            raise BadInput(
                f"experiment: no module {module_name!r} (from {name!r}), looked in {folder} and the Python path"
            ) from error
        raise BadInput(f"experiment: {module_name} cannot be imported: {one_line(error)}") from error
    except (Exception, SystemExit) as error:  # the user's module: whatever it raises is the message
        raise BadInput(f"experiment: {module_name} cannot be imported: {one_line(error)}") from error


def _import_file(path: Path, name: str) -> Any:
    if not path.is_file():
        raise BadInput(f"experiment: {path}: no such file (from {name!r})")
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    module_name = f"_raygpu_file_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # the user's file: whatever it raises is the message
        raise BadInput(f"experiment: {path} cannot be imported: {one_line(error)}") from error
    return module


def _candidates(module: Any) -> str:
    """The names in a module that could be meant."""
    names = [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and callable(value) and getattr(value, "__module__", None) == module.__name__
    ]
    return ", ".join(sorted(names)[:8]) or "nothing callable"
