"""An entry of the zoo: a small experiment, its members, and whether raygpu has to train it as it trains one alone.

    class Gelu(Vectors):
        def model(self, hp):
            return nn.Sequential(nn.Linear(WIDTH, 8), nn.GELU(), nn.Linear(8, CLASSES))

That is all: the class is an entry from then on. `fused` and `production` say where it may be
refused, and by which words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from raygpu import Splits, TorchExperiment
from raygpu.search.trials import Trial

NUM_TRAIN, NUM_VALIDATION = 40, 12
"""40 samples are batches of 16, 16 and 8."""
BATCH = 16
CLASSES = 4
WIDTH = 12
"""Features of a vector."""
LENGTH, CHANNELS = 9, 6
"""Steps of a series, and features of each."""
VOCABULARY = 20
STATE = r"(changes|is set) while it trains|keeps .* between|attribute|closure|global"
"""How raygpu says that a model keeps state in Python."""
ZOO: dict[str, type[Entry]] = {}
"""The entries by name, in the order in which they are defined."""


class Entry(TorchExperiment):
    """An experiment of the zoo. A subclass is an entry, unless it is defined with `base=True`."""

    own: ClassVar[Sequence[Mapping[str, Any]]] = (
        {"lr": 0.05},
        {"lr": 0.1, "momentum": 0.9},
        {"lr": 0.02, "momentum": 0.5, "weight_decay": 1e-2, "clip_norm": 0.5},
    )
    """Hyper-parameters of each member."""
    epochs: ClassVar[int] = 2
    alone: ClassVar[str | None] = None
    """A pattern of the error that it raises wherever it is trained; None: it trains."""
    fused: ClassVar[str | None] = None
    """A pattern of the reason for which it may be trained alone; None: it has to be fused."""
    production: ClassVar[str | None] = None
    """A pattern of the note or error by which raygpu says that several parts of a batch are not the whole one; None:
    they have to be."""
    random: ClassVar[bool] = False
    """Whether a training step draws random numbers of torch: ranks draw their own then."""
    tolerance: ClassVar[float] = 1e-9
    """The relative norm of a difference of parameters and buffers, in float64, that rounding explains."""
    dtype: ClassVar[torch.dtype | None] = torch.float64
    """In which it is compared; None: as the model and the data are."""
    repeats: ClassVar[bool] = True
    """Whether two trainings of one trial in one process are the same: no state of its own outlives the first."""
    again: ClassVar[str | None] = None
    """A pattern of the error of a second training in one process; None: it trains."""
    unsaved: ClassVar[str | None] = None
    """A pattern of the line on what a checkpoint does not hold; None: from it the trial goes on to the bit."""
    known: ClassVar[Mapping[str, str]] = {}
    """Faults of raygpu that are not mended yet: by test (`test_fused`, `test_one_rank` ...), what is wrong."""
    compiled: ClassVar[bool | str] = False
    """Whether its compiled step is tried as well, which takes seconds; a pattern of the compiler's error where it is
    known to fail: raygpu steps eagerly then."""

    def __init_subclass__(cls, base: bool = False, **options: Any) -> None:
        super().__init_subclass__(**options)
        if base:
            return
        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", cls.__name__).lower()
        assert name not in ZOO, f"two entries have the name {name}"
        ZOO[name] = cls

    def trials(self) -> list[Trial]:
        return [Trial(Trial.name(i), 31 + i, {"batch_size": BATCH, **own}) for i, own in enumerate(self.own)]

    def data(self) -> Splits:
        generator = np.random.default_rng(7)
        return Splits(*self.part(generator, NUM_TRAIN), *self.part(generator, NUM_VALIDATION))

    def part(self, generator: np.random.Generator, count: int) -> tuple[Any, Any]:
        """Inputs and targets of so many samples."""
        raise NotImplementedError


def cases(test: str, names: Iterable[str]) -> list[Any]:
    """The entries' names as the parameters of a test; where a fault is known, the test has to fail."""

    def case(name: str) -> Any:
        why = ZOO[name].known.get(test)
        return pytest.param(name, marks=pytest.mark.xfail(strict=True, reason=why)) if why else name

    return [case(name) for name in names]


def normal(generator: np.random.Generator, *shape: int) -> np.ndarray:
    return generator.standard_normal(shape).astype(np.float32)


def classes(generator: np.random.Generator, *shape: int, number: int = CLASSES) -> np.ndarray:
    return generator.integers(0, number, shape)


class Vectors(Entry, base=True):
    """Vectors, of which each is of one class."""

    def part(self, generator: np.random.Generator, count: int) -> tuple[Any, Any]:
        return normal(generator, count, WIDTH), classes(generator, count)


class Images(Entry, base=True):
    """Images of 3 x 8 x 8."""

    def part(self, generator: np.random.Generator, count: int) -> tuple[Any, Any]:
        return normal(generator, count, 3, 8, 8), classes(generator, count)


class Volumes(Entry, base=True):
    """Volumes of 2 x 4 x 4 x 4."""

    def part(self, generator: np.random.Generator, count: int) -> tuple[Any, Any]:
        return normal(generator, count, 2, 4, 4, 4), classes(generator, count)


class Series(Entry, base=True):
    """Series of 9 steps with 6 features each."""

    def part(self, generator: np.random.Generator, count: int) -> tuple[Any, Any]:
        return normal(generator, count, LENGTH, CHANNELS), classes(generator, count)


class Tokens(Entry, base=True):
    """Texts of 9 tokens, of which each is of one class."""

    def part(self, generator: np.random.Generator, count: int) -> tuple[Any, Any]:
        return classes(generator, count, LENGTH, number=VOCABULARY), classes(generator, count)


class Texts(Tokens, base=True):
    """Texts of 9 tokens, to be continued: the targets are the next tokens."""

    def part(self, generator: np.random.Generator, count: int) -> tuple[Any, Any]:
        whole = classes(generator, count, LENGTH + 1, number=VOCABULARY)
        return np.ascontiguousarray(whole[:, :-1]), np.ascontiguousarray(whole[:, 1:])

    def loss(self, outputs: Any, targets: Any) -> Any:
        return nn.functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())


class Numbers(Vectors, base=True):
    """Vectors, of which each has two numbers to be found."""

    def part(self, generator: np.random.Generator, count: int) -> tuple[Any, Any]:
        return normal(generator, count, WIDTH), normal(generator, count, 2)

    def loss(self, outputs: Any, targets: Any) -> Any:
        return nn.functional.mse_loss(outputs, targets)

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        return {"error": (outputs - targets).abs().mean()}


class Call(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


def mlp(*middle: nn.Module, features: int = 8, before: int = 8) -> nn.Sequential:
    """Layers for vectors, with `middle` between a linear layer of `before` outputs and one of `features` inputs."""
    return nn.Sequential(nn.Linear(WIDTH, before), *middle, nn.Flatten(), nn.Linear(features, CLASSES))


def ended(*layers: nn.Module, features: int) -> nn.Sequential:
    """Layers, and a linear one of `features` inputs that tells the classes."""
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(features, CLASSES))


class Inside(nn.Module):
    """Linear layers with a part in between that a subclass gives."""

    def __init__(self, hp: Any = None) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, 8), nn.Linear(8, CLASSES)
        self.hp = hp

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.inside(torch.relu(self.first(x))))

    def inside(self, x: torch.Tensor) -> torch.Tensor:
        return x
