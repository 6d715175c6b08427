"""Models that handle by hand what torch or raygpu expects to handle: memory, hyper-parameters, what is frozen."""

from __future__ import annotations

import warnings
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import nn

from raygpu.experiment import Mean, Sum
from tests.contracts.zoo.entry import CLASSES, WIDTH, Call, Inside, Vectors, mlp


class BufferThatViewsAParameter(Vectors):
    """A buffer in the memory of a weight: each step changes both, as long as both are where they were made."""

    fused = "same memory"
    dtype, tolerance = None, 1e-4

    def model(self, hp: Any) -> nn.Module:
        class Model(Inside):
            def __init__(self) -> None:
                super().__init__()
                self.middle = nn.Linear(8, 8)
                self.register_buffer("view", self.middle.weight.data[:4])

            def inside(self, x: torch.Tensor) -> torch.Tensor:
                return torch.relu(self.middle(x)) + (x @ self.view.t()).repeat(1, 2)

        return Model()


class InterleavedBuffers(Vectors):
    """Two buffers of one memory that share no element, as views of complex numbers are."""

    def model(self, hp: Any) -> nn.Module:
        class Model(Inside):
            def __init__(self) -> None:
                super().__init__()
                cosine, sine = torch.view_as_real(torch.randn(8, dtype=torch.complex64)).unbind(-1)
                self.register_buffer("cosine", cosine)
                self.register_buffer("sine", sine)

            def inside(self, x: torch.Tensor) -> torch.Tensor:
                return x * self.cosine + x.roll(1, 1) * self.sine

        return Model()


class TiedByData(Vectors):
    """Two parameters in one memory, which takes the steps of both."""

    fused = "same memory"
    dtype, tolerance = None, 1e-4

    def model(self, hp: Any) -> nn.Module:
        one, other = nn.Linear(8, 8), nn.Linear(8, 8)
        other.weight.data = one.weight.data
        return mlp(one, nn.ReLU(), other)


class ModelThatChangesAList(Vectors):
    """A list of hyper-parameters that `model` fills up with the sizes of the ends."""

    own = tuple({"lr": 0.05 * (1 + place), "hidden": [8, 6]} for place in range(3))

    def model(self, hp: Any) -> nn.Module:
        sizes = hp["hidden"]
        sizes.insert(0, WIDTH)
        sizes.append(CLASSES)
        return nn.Sequential(*(nn.Sequential(nn.Linear(a, b), nn.Tanh()) for a, b in pairwise(sizes)))


class UnfrozenLater(Vectors):
    """A layer that is frozen at first, and that a step unfreezes."""

    alone = fused = r"was frozen when the training began"

    def model(self, hp: Any) -> nn.Module:
        model = mlp(nn.ReLU())
        model[0].requires_grad_(False)
        return model

    def training_step(self, model: nn.Module, inputs: Any, targets: Any, hp: Any) -> Any:
        loss = super().training_step(model, inputs, targets, hp)
        model.requires_grad_()
        return loss


class InitialisedByTheFirstBatch(Vectors):
    """A scale that the first batch sets; a flag in Python says that it is set."""

    fused = "`.data` of a tensor|mutating directly"
    production = "changes while it trains"
    unsaved = "scale changes"

    def model(self, hp: Any) -> nn.Module:
        class Model(Inside):
            done = False

            def __init__(self) -> None:
                super().__init__()
                self.scale = nn.Parameter(torch.ones(8))

            def inside(self, x: torch.Tensor) -> torch.Tensor:
                if not self.done:
                    self.scale.data = 1 / (x.detach().std(0) + 1e-3)
                    self.done = True
                return x * self.scale

        return Model()


class BufferThatIsNotSaved(Vectors):
    """A moving average in a buffer that no checkpoint holds."""

    fused = "differ from the same steps"
    production = "buffers that training changes"
    unsaved = "average changes"

    def model(self, hp: Any) -> nn.Module:
        class Model(Inside):
            def __init__(self) -> None:
                super().__init__()
                self.register_buffer("average", torch.zeros(8), persistent=False)

            def inside(self, x: torch.Tensor) -> torch.Tensor:
                if self.training:
                    self.average.mul_(0.8).add_(0.2 * x.detach().mean(0))
                return x - self.average

        return Model()


class ReversedData(Vectors):
    """Arrays that are views of others, from their ends."""

    def model(self, hp: Any) -> nn.Module:
        return mlp(nn.ReLU())

    def part(self, generator: np.random.Generator, count: int) -> tuple[Any, Any]:
        inputs, targets = super().part(generator, count)
        return inputs[::-1], targets[::-1]


class Scripted(Vectors):
    """A model that torch.jit has made, whose parameters are new objects at each look."""

    fused = "no parameter of a copy"

    def model(self, hp: Any) -> nn.Module:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            return torch.jit.script(mlp(nn.ReLU()))


class CentredWhileItTrains(Vectors):
    """Takes the mean of a batch away while it trains, and nothing when it is evaluated."""

    production = "looks at the whole batch while it trains"

    def model(self, hp: Any) -> nn.Module:
        class Model(Inside):
            def inside(self, x: torch.Tensor) -> torch.Tensor:
                return x - x.mean(0) if self.training else x

        return Model()


class MeansOfCounts(Vectors):
    """Metrics of whole numbers over weights that are none."""

    def model(self, hp: Any) -> nn.Module:
        return mlp(nn.ReLU())

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        hits = outputs.argmax(-1) == targets
        return {
            "hits": Mean(hits.sum(), outputs.softmax(-1).sum() * 0.3),
            "any": Mean(hits.any(), 2.5),
            "half": Mean(hits.sum().bfloat16(), 257),
            "all": Sum(hits.sum()),
        }


class InHalfPrecision(Vectors):
    """Parameters, outputs and loss in bfloat16, whose rounding is no fault of the loss."""

    fused = "must have the same dtype"
    dtype, tolerance = None, 0.1

    def model(self, hp: Any) -> nn.Module:
        return nn.Sequential(Call(lambda x: x.to(torch.bfloat16)), mlp(nn.Tanh()).bfloat16())
