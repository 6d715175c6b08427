"""Models and augmentations that draw random numbers of torch, in Python's ways and in torch's."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import nn

from tests.contracts.zoo.entry import WIDTH, Images, Inside, Series, Vectors, ended, mlp


class RRelu(Vectors):
    random = True
    fused = r"aten::rrelu\w* (runs as a slow loop|has no rule)"

    def model(self, hp: Any) -> nn.Module:
        return mlp(nn.RReLU())


class Dropout(Vectors):
    random = True
    compiled = True

    def model(self, hp: Any) -> nn.Module:
        return mlp(nn.ReLU(), nn.Dropout(0.4))


class DropoutOfChannels(Images):
    random = True

    def model(self, hp: Any) -> nn.Module:
        return ended(nn.Conv2d(3, 4, 3), nn.Dropout2d(0.5), nn.Flatten(2), nn.Dropout1d(0.2), features=144)


class AlphaDropout(Vectors):
    random = True

    def model(self, hp: Any) -> nn.Module:
        return mlp(nn.SELU(), nn.AlphaDropout(0.3))


class FeatureAlphaDropout(Images):
    random = True

    def model(self, hp: Any) -> nn.Module:
        return ended(nn.Conv2d(3, 4, 3), nn.FeatureAlphaDropout(0.3), features=144)


class TransformerWithDropout(Series):
    random = True

    def model(self, hp: Any) -> nn.Module:
        return ended(nn.TransformerEncoderLayer(6, 2, 8, dropout=0.2, batch_first=True), features=54)


class NoiseInForward(Vectors):
    random = True

    def model(self, hp: Any) -> nn.Module:
        class Model(Inside):
            def inside(self, x: torch.Tensor) -> torch.Tensor:
                return x + 0.1 * torch.randn_like(x) if self.training else x

        return Model()


class GumbelSoftmax(Vectors):
    random = True
    compiled = True

    def model(self, hp: Any) -> nn.Module:
        class Model(Inside):
            def inside(self, x: torch.Tensor) -> torch.Tensor:
                return nn.functional.gumbel_softmax(x, tau=0.7) if self.training else x.softmax(-1)

        return Model()


class StochasticDepth(Images):
    """Each sample goes past the block by chance, as in torchvision."""

    random = True

    def model(self, hp: Any) -> nn.Module:
        class Block(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inside = nn.Conv2d(3, 3, 3, padding=1)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                if not self.training:
                    return x + self.inside(x)
                kept = torch.empty(len(x), 1, 1, 1, dtype=x.dtype, device=x.device).bernoulli_(0.8) / 0.8
                return x + kept * self.inside(x)

        return ended(Block(), nn.ReLU(), Block(), features=192)


class LayerDropByTorch(Vectors):
    """A Python `if` on a random number of torch."""

    random = True
    fused = r"data-dependent"

    def model(self, hp: Any) -> nn.Module:
        class Model(Inside):
            def inside(self, x: torch.Tensor) -> torch.Tensor:
                return x if self.training and torch.rand(()) < 0.5 else torch.tanh(2 * x)

        return Model()


class LayerDropByPython(Vectors):
    """A Python `if` on a random number of Python, which the trial's seed has to decide as well."""

    random = True
    fused = r"random"
    production = r"random"

    def model(self, hp: Any) -> nn.Module:
        class Model(Inside):
            def inside(self, x: torch.Tensor) -> torch.Tensor:
                return x if self.training and random.random() < 0.5 else torch.tanh(2 * x)

        return Model()


class RandomFlips(Images):
    """Each image is flipped by chance."""

    random = True
    compiled = True

    def model(self, hp: Any) -> nn.Module:
        return ended(nn.Conv2d(3, 4, 3), nn.ReLU(), features=144)

    def augment(self, inputs: Any, hp: Any) -> Any:
        flipped = torch.rand(len(inputs), 1, 1, 1, device=inputs.device) < 0.5
        return torch.where(flipped, inputs.flip(3), inputs)


class FlipsByIf(Images):
    """The whole batch is flipped by chance, by a Python `if`."""

    random = True
    fused = r"data-dependent"

    def model(self, hp: Any) -> nn.Module:
        return ended(nn.Conv2d(3, 4, 3), nn.ReLU(), features=144)

    def augment(self, inputs: Any, hp: Any) -> Any:
        return inputs.flip(3) if torch.rand(()) < 0.5 else inputs


class RandomShift(Images):
    """The batch is moved by a random number of pixels."""

    random = True
    fused = r"data-dependent|item|a number"

    def model(self, hp: Any) -> nn.Module:
        return ended(nn.Conv2d(3, 4, 3), nn.ReLU(), features=144)

    def augment(self, inputs: Any, hp: Any) -> Any:
        return inputs.roll(int(torch.randint(0, 3, ())), dims=3)


class Mixup(Vectors):
    """Samples are mixed with others of the batch, in a random order."""

    random = True
    production = r"augment\(\) makes a sample of others"

    def model(self, hp: Any) -> nn.Module:
        return mlp(nn.ReLU())

    def augment(self, inputs: Any, hp: Any) -> Any:
        order = torch.randperm(len(inputs))
        return 0.8 * inputs + 0.2 * inputs[order]


class NoisyLoss(Vectors):
    """The loss draws random numbers."""

    random = True
    compiled = True
    production = r"changes from call to call"

    def model(self, hp: Any) -> nn.Module:
        return mlp(nn.ReLU())

    def loss(self, outputs: Any, targets: Any) -> Any:
        return super().loss(outputs + 0.1 * torch.randn_like(outputs), targets)


class SampledUnits(Vectors):
    """Which units pass follows from their values, so the numbers cannot be drawn before the step."""

    random = True
    compiled = r"bernoulli draws random numbers that depend on a tensor's values"

    def model(self, hp: Any) -> nn.Module:
        class Sampled(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                chance = x.sigmoid()
                return x * (torch.bernoulli(chance.detach()) + chance - chance.detach())

        return mlp(Sampled())


class VariationalAutoencoder(Vectors):
    """Its code is drawn, in evaluation as well."""

    random = True

    def model(self, hp: Any) -> nn.Module:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.encoder, self.decoder = nn.Linear(WIDTH, 6), nn.Linear(3, WIDTH)

            def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
                mean, log_variance = self.encoder(x).chunk(2, dim=1)
                code = mean + torch.exp(log_variance / 2) * torch.randn_like(mean) if self.training else mean
                return {"x": x, "again": self.decoder(code), "mean": mean, "log_variance": log_variance}

        return Model()

    def loss(self, outputs: Any, targets: Any) -> Any:
        mean, log_variance = outputs["mean"], outputs["log_variance"]
        divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(1)
        return ((outputs["again"] - outputs["x"]).square().sum(1) + divergence).mean()

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        return {"error": (outputs["again"] - outputs["x"]).square().mean()}


class DropsInEvaluation(Vectors):
    """Dropout that is on in evaluation as well, as Monte Carlo dropout is: it draws where others do not."""

    random = True

    def model(self, hp: Any) -> nn.Module:
        class Model(Inside):
            def inside(self, x: torch.Tensor) -> torch.Tensor:
                return nn.functional.dropout(x, 0.3, training=True)

        return Model()


class RandomInitialisationInForward(Vectors):
    """Draws constants of the same seed in each forward pass, by a fork of the random state."""

    fused = r"generator|random|seed|differs"

    def model(self, hp: Any) -> nn.Module:
        class Model(Inside):
            def inside(self, x: torch.Tensor) -> torch.Tensor:
                with torch.random.fork_rng(devices=[]):
                    torch.manual_seed(1)
                    return x @ torch.randn(8, 8, dtype=x.dtype, device=x.device)

        return Model()


class RandomConstants(Vectors):
    """A random projection that is neither a parameter nor a buffer, from the trial's seed."""

    fused = r"projection|attribute|does not read|differs"

    def model(self, hp: Any) -> nn.Module:
        class Model(Inside):
            def __init__(self) -> None:
                super().__init__()
                self.projection = torch.randn(8, 8)

            def inside(self, x: torch.Tensor) -> torch.Tensor:
                return x @ self.projection.to(x)

        return Model()
