"""The problems as experiments of raygpu, and the same training as a plain loop, for the other searchers.

The validation data hold the test data as well, marked; metrics named test_error count the marked samples alone, all
others the rest. The search never looks at test_error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import raygpu
from experiments.benchmarks.search_quality.problems import PROBLEMS, Parts, Score, boosted, cancer, data_seed, digits
from raygpu import Mean, Splits, TorchExperiment


class _Network(TorchExperiment):
    """A network for classes. parts: data by seed."""

    parts: Callable[[int], Parts]

    def data(self) -> Splits:
        parts = type(self).parts(data_seed())
        held = {
            "label": np.concatenate([parts.validation[1], parts.test[1]]),
            "is_test": np.repeat(np.array([0, 1], np.float32), [len(parts.validation[1]), len(parts.test[1])]),
        }
        train = {"label": parts.train[1], "is_test": np.zeros(len(parts.train[1]), np.float32)}
        return Splits(parts.train[0], train, np.concatenate([parts.validation[0], parts.test[0]]), held)

    def loss(self, outputs: Any, targets: Any) -> Any:
        return cross_entropy(outputs, targets["label"])

    def errors(self, outputs: Any, labels: Any) -> Any:
        """Return the error of each sample."""
        return (outputs.argmax(dim=-1) != labels).float()

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        errors, is_test = self.errors(outputs, targets["label"]), targets["is_test"]
        return {
            "search_error": Mean((errors * (1 - is_test)).sum(), (1 - is_test).sum()),
            "test_error": Mean((errors * is_test).sum(), is_test.sum()),
        }


class DigitsMlp(_Network):
    """One hidden layer of `hidden` units."""

    parts = staticmethod(digits)

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(nn.Linear(64, hp["hidden"]), nn.ReLU(), nn.Linear(hp["hidden"], 10))


class DigitsCnn(_Network):
    """Two convolutions of `channels` and twice as many maps, each halved by a maximum, then a linear layer."""

    parts = staticmethod(digits)

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        maps = hp["channels"]
        return nn.Sequential(
            nn.Unflatten(1, (1, 8, 8)),
            nn.Conv2d(1, maps, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(maps, 2 * maps, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(8 * maps, 10),
        )


class CancerMlp(_Network):
    """One hidden layer of `hidden` units, trained by the cross entropy and scored by the Brier score.

    The smallest cross entropy of 114 samples is that of a model which is too sure of itself.
    """

    parts = staticmethod(cancer)

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(nn.Linear(30, hp["hidden"]), nn.ReLU(), nn.Linear(hp["hidden"], 2))

    def errors(self, outputs: Any, labels: Any) -> Any:
        return (outputs.softmax(dim=-1)[..., 1] - labels).square()


def boosting(hp: Mapping[str, Any]) -> None:
    """Boost trees, with a report after each epoch."""
    for score in boosted(hp, hp["seed"], PROBLEMS["diabetes_boosting"].epochs):
        raygpu.report(search_error=score.validation, test_error=score.test)


def trained(
    network: _Network, hp: Mapping[str, Any], seed: int, epochs: int, state: dict[str, Any] | None = None
) -> Iterator[Score]:
    """Train with torch.optim.SGD, a loop over batches, on one thread; yield the score after each epoch.

    state: gets the model and the optimizer, of searchers that copy or change them.
    """
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    torch.manual_seed(seed)
    parts = type(network).parts(data_seed())
    x, y = map(torch.from_numpy, parts.train)
    held = [tuple(map(torch.from_numpy, part)) for part in (parts.validation, parts.test)]
    model = network.model(hp)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=hp["lr"], momentum=hp["momentum"], weight_decay=hp["weight_decay"]
    )
    if state is not None:
        state.update(model=model, optimizer=optimizer)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(hp["batch_size"]):
            optimizer.zero_grad()
            cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
        with torch.no_grad():
            score = Score(*(network.errors(model(inputs), labels).mean().item() for inputs, labels in held))
        yield score  # not inside: whoever prunes this training would go on without gradients
