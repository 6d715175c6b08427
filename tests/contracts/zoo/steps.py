"""Training steps of an experiment's own: losses that need more than the outputs of a model."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional

from raygpu.experiment import Mean, Sum
from tests.contracts.zoo.entry import CLASSES, WIDTH, Vectors, normal
from tests.contracts.zoo.losses import NO_MEAN, Perceptron


class SmoothedInStep(Perceptron):
    """Label smoothing is a hyper-parameter; the validation loss has none."""

    own = (
        {"lr": 0.05, "smoothing": 0.1},
        {"lr": 0.1, "momentum": 0.9, "smoothing": 0.1},
        {"lr": 0.02, "momentum": 0.5, "weight_decay": 1e-2, "clip_norm": 0.5, "smoothing": 0.1},
    )
    compiled = True

    def training_step(self, model: nn.Module, inputs: Any, targets: Any, hp: Any) -> Any:
        return functional.cross_entropy(model(inputs), targets, label_smoothing=hp["smoothing"])


class PenaltyOnActivations(Vectors):
    """Calls modules of the model one after the other, and adds a penalty on what is between them."""

    def model(self, hp: Any) -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, CLASSES))

    def training_step(self, model: Any, inputs: Any, targets: Any, hp: Any) -> Any:
        features = model[1](model[0](inputs))
        return functional.cross_entropy(model[2](features), targets) + 0.1 * features.abs().mean()


class PenaltyOnParameters(Perceptron):
    """Reads the model's parameters."""

    def training_step(self, model: nn.Module, inputs: Any, targets: Any, hp: Any) -> Any:
        penalty = sum(parameter.abs().sum() for parameter in model.parameters())
        return functional.cross_entropy(model(inputs), targets) + 1e-3 * penalty


class MixupInStep(Perceptron):
    """Mixes each sample with the one before it in the batch, by a weight drawn for each batch."""

    random = True
    production = NO_MEAN + r"|changes from call to call"

    def training_step(self, model: nn.Module, inputs: Any, targets: Any, hp: Any) -> Any:
        weight = torch.rand((), dtype=inputs.dtype, device=inputs.device)
        outputs = model(weight * inputs + (1 - weight) * inputs.roll(1, 0))
        one, other = functional.cross_entropy(outputs, targets), functional.cross_entropy(outputs, targets.roll(1, 0))
        return weight * one + (1 - weight) * other


class ContrastiveStep(Vectors):
    """Two noisy views of each sample, told from those of the others of the batch; its classes are a probe's."""

    random = True
    production = NO_MEAN + r"|changes from call to call"

    def model(self, hp: Any) -> nn.Module:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.encoder = nn.Sequential(nn.Linear(WIDTH, 8), nn.ReLU(), nn.Linear(8, 4))
                self.probe = nn.Linear(4, CLASSES)

            def forward(self, inputs: torch.Tensor) -> torch.Tensor:
                return self.probe(self.encoder(inputs).detach())

        return Model()

    def training_step(self, model: Any, inputs: Any, targets: Any, hp: Any) -> Any:
        one, other = (functional.normalize(model.encoder(inputs + 0.1 * torch.randn_like(inputs)), dim=1)
                      for _ in range(2))  # fmt: skip
        own = torch.arange(len(one), device=one.device)
        return functional.cross_entropy(one @ other.T / 0.5, own) + functional.cross_entropy(model(inputs), targets)


class DistilledInStep(Vectors):
    """A teacher that does not train is a part of the model, and its outputs are targets."""

    def model(self, hp: Any) -> nn.Module:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.student = nn.Linear(WIDTH, CLASSES)
                self.teacher = nn.Sequential(nn.Linear(WIDTH, 16), nn.ReLU(), nn.Linear(16, CLASSES))
                self.teacher.requires_grad_(False)

            def forward(self, inputs: torch.Tensor) -> torch.Tensor:
                return self.student(inputs)

        return Model()

    def training_step(self, model: Any, inputs: Any, targets: Any, hp: Any) -> Any:
        outputs = model(inputs)
        wanted = model.teacher(inputs).softmax(1)
        return functional.cross_entropy(outputs, targets) + functional.cross_entropy(outputs, wanted)


class MovingTeacher(Vectors):
    """The teacher is a moving average of the student, in buffers that the step itself changes."""

    production = r"buffers that training changes"

    def model(self, hp: Any) -> nn.Module:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.student = nn.Linear(WIDTH, CLASSES)
                self.register_buffer("weight", self.student.weight.detach().clone())

            def forward(self, inputs: torch.Tensor) -> torch.Tensor:
                return self.student(inputs)

        return Model()

    def training_step(self, model: Any, inputs: Any, targets: Any, hp: Any) -> Any:
        model.weight = 0.9 * model.weight + 0.1 * model.student.weight.detach()
        outputs = model(inputs)
        return functional.cross_entropy(outputs, targets) + (outputs - inputs @ model.weight.T).square().mean()


class NormalisedInStep(Vectors):
    """BatchNorm sees the samples twice in one step."""

    production = r"BatchNorm|depend|no mean"

    def model(self, hp: Any) -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, CLASSES))

    def training_step(self, model: nn.Module, inputs: Any, targets: Any, hp: Any) -> Any:
        model(inputs.flip(1))
        return functional.cross_entropy(model(inputs), targets)


class WeightedInStep(Vectors):
    """Samples count by a weight among the inputs, as a `Mean`; the model does not see the weight."""

    def part(self, generator: np.random.Generator, count: int) -> tuple[Any, Any]:
        inputs, targets = super().part(generator, count)
        return {"x": inputs, "weight": np.abs(normal(generator, count))}, targets

    def model(self, hp: Any) -> nn.Module:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.last = nn.Linear(WIDTH, CLASSES)

            def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
                return self.last(x)

        return Model()

    def training_step(self, model: nn.Module, inputs: Any, targets: Any, hp: Any) -> Any:
        losses = functional.cross_entropy(model(**inputs), targets, reduction="none")
        return Mean((losses * inputs["weight"]).sum(), inputs["weight"].sum())


class SummedInStep(Perceptron):
    """A sum over samples, while the validation loss is a mean."""

    own = ({"lr": 0.005}, {"lr": 0.003, "momentum": 0.9}, {"lr": 0.002})

    def training_step(self, model: nn.Module, inputs: Any, targets: Any, hp: Any) -> Any:
        return Sum(functional.cross_entropy(model(inputs), targets, reduction="sum"))


class CopiedInStep(Perceptron):
    """Trains on the outputs of a copy of the model too, which is made in each step: not for arrays."""

    fused = r"."

    def training_step(self, model: nn.Module, inputs: Any, targets: Any, hp: Any) -> Any:
        with torch.no_grad():
            wanted = copy.deepcopy(model)(inputs).softmax(1)
        outputs = model(inputs)
        return functional.cross_entropy(outputs, targets) + functional.cross_entropy(outputs, wanted)


class CountsSteps(Perceptron):
    """Counts its steps in the experiment."""

    unsaved = "CountsSteps.count changes"
    fused = r"changes while it trains|keeps|is set"
    production = r"changes while it trains|state|call to call"
    repeats = False

    def __init__(self) -> None:
        self.count = 0

    def training_step(self, model: nn.Module, inputs: Any, targets: Any, hp: Any) -> Any:
        self.count += 1
        return functional.cross_entropy(model(inputs), targets) * (1 + 0.1 * self.count)


class PenaltyOnGradient(Vectors):
    """The norm of the gradient of its outputs by the inputs, as critics of GANs have it: a gradient within the loss."""

    fused = r"torch\.func\.grad"

    def model(self, hp: Any) -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, 8), nn.Softplus(), nn.Linear(8, CLASSES))

    def training_step(self, model: nn.Module, inputs: Any, targets: Any, hp: Any) -> Any:
        inputs = inputs.requires_grad_()
        outputs = model(inputs)
        (gradient,) = torch.autograd.grad(outputs.sum(), inputs, create_graph=True)
        return functional.cross_entropy(outputs, targets) + gradient.square().sum(1).mean()


class PenaltyOnGradientByFunc(PenaltyOnGradient):
    """The same by torch.func, which vmap knows."""

    fused = None

    def training_step(self, model: nn.Module, inputs: Any, targets: Any, hp: Any) -> Any:
        gradient = torch.func.grad(lambda given: model(given).sum())(inputs)
        return functional.cross_entropy(model(inputs), targets) + gradient.square().sum(1).mean()


class LearnsToLearn(Perceptron):
    """The loss of one half of a batch after a step on the other half, as MAML has it."""

    fused = r"torch\.func\.grad"
    production = r"no mean over samples"

    def training_step(self, model: nn.Module, inputs: Any, targets: Any, hp: Any) -> Any:
        half = len(inputs) // 2
        before = dict(model.named_parameters())
        gradients = self.gradients(model, before, inputs[:half], targets[:half])
        after = {name: value - 0.1 * gradients[name] for name, value in before.items()}
        return functional.cross_entropy(functional_call(model, after, (inputs[half:],)), targets[half:])

    def gradients(self, model: nn.Module, before: Any, inputs: Any, targets: Any) -> Any:
        loss = functional.cross_entropy(functional_call(model, before, (inputs,)), targets)
        return dict(zip(before, torch.autograd.grad(loss, before.values(), create_graph=True), strict=True))


class LearnsToLearnByFunc(LearnsToLearn):
    """The same by torch.func, which vmap knows."""

    fused = None

    def gradients(self, model: nn.Module, before: Any, inputs: Any, targets: Any) -> Any:
        def loss(parameters: Any) -> torch.Tensor:
            return functional.cross_entropy(functional_call(model, parameters, (inputs,)), targets)

        return torch.func.grad(loss)(before)


class SharpnessAware(Perceptron):
    """The loss at parameters a step uphill, as SAM has it."""

    production = r"no mean over samples"

    def training_step(self, model: nn.Module, inputs: Any, targets: Any, hp: Any) -> Any:
        def loss(parameters: Any) -> torch.Tensor:
            return functional.cross_entropy(functional_call(model, parameters, (inputs,)), targets)

        before = dict(model.named_parameters())
        uphill = torch.func.grad(loss)({name: value.detach() for name, value in before.items()})
        norm = torch.stack([each.square().sum() for each in uphill.values()]).sum().sqrt()
        return loss({name: value + 0.05 * uphill[name] / norm for name, value in before.items()})


class DropsGradientsInStep(Perceptron):
    """A step that begins as a loop by hand begins."""

    def training_step(self, model: nn.Module, inputs: Any, targets: Any, hp: Any) -> Any:
        model.zero_grad()
        return functional.cross_entropy(model(inputs), targets)


class CentredByTheBatch(Perceptron):
    """Samples without the mean of their batch, as `augment` has it."""

    production = r"augment\(\) makes a sample of others"

    def augment(self, inputs: Any, hp: Any) -> Any:
        return inputs - inputs.mean(0)


class MixedSamples(Perceptron):
    """Samples beside others of their batch."""

    random = True
    production = r"augment\(\) makes a sample of others"

    def augment(self, inputs: Any, hp: Any) -> Any:
        return 0.7 * inputs + 0.3 * inputs[torch.randperm(len(inputs))]
