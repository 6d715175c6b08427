"""Problems to search on: data, a space, and the same training for every searcher.

digits_mlp, digits_cnn   scikit-learn's handwritten digits; the score is the share of wrong digits
cancer_mlp               its breast cancer data; the score is the Brier score, the mean squared error of the probability
diabetes_boosting        its diabetes data, by gradient boosting, a function that cannot be fused; the score is the
                         mean squared error over the variance of the targets
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from raygpu.search.space import Space, parse

VALIDATION, TEST = 0.2, 0.2
"""Shares of the samples."""
SEED_VARIABLE = "SEARCH_SEED"
"""Variable with the seed that cuts the data, for experiments, whose `data` takes no arguments."""


@dataclass(frozen=True, slots=True)
class Score:
    """Validation score and test error of a model: both are better the smaller they are."""

    validation: float
    test: float


@dataclass(frozen=True, slots=True)
class Parts:
    """Inputs and targets of the three parts of the data."""

    train: tuple[np.ndarray, np.ndarray]
    validation: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem. epochs: of a training to its end. space: as in a configuration. experiment: of raygpu."""

    name: str
    epochs: int
    table: Mapping[str, Any]
    experiment: str
    train: Callable[[Mapping[str, Any], int, int], Iterator[Score]]
    """Trains with hyper-parameters, a seed and a number of epochs; yields a score after each epoch."""
    fused: bool = True
    """Whether raygpu can fuse it."""

    @property
    def space(self) -> Space:
        """The parsed search space."""
        return parse(self.table)


def split(inputs: np.ndarray, targets: np.ndarray, seed: int) -> Parts:
    """Cut data at random into training, validation and test data, stratified by class."""
    from sklearn.model_selection import train_test_split

    classes = targets if np.issubdtype(targets.dtype, np.integer) else None
    rows = np.arange(len(targets))
    rest, test = train_test_split(rows, test_size=TEST, random_state=seed, stratify=classes)
    again = None if classes is None else classes[rest]
    train, held = train_test_split(rest, test_size=VALIDATION / (1 - TEST), random_state=seed, stratify=again)
    return Parts(*((inputs[part], targets[part]) for part in (train, held, test)))


def digits(seed: int) -> Parts:
    """Pixels 0 to 1, float32 (n, 64), against the digit, int64 (n,)."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    return split((pixels / 16).astype(np.float32), labels.astype(np.int64), seed)


def cancer(seed: int) -> Parts:
    """Standardised measurements, float32 (n, 30), against the diagnosis, int64 (n,)."""
    from sklearn.datasets import load_breast_cancer

    values, labels = load_breast_cancer(return_X_y=True)
    scaled = (values - values.mean(axis=0)) / values.std(axis=0)
    return split(scaled.astype(np.float32), labels.astype(np.int64), seed)


def diabetes(seed: int) -> Parts:
    """Ten measurements against the progress of the disease, divided by its deviation."""
    from sklearn.datasets import load_diabetes

    values, progress = load_diabetes(return_X_y=True)
    return split(values, progress / progress.std(), seed)


def data_seed() -> int:
    """Return the seed of the data that the environment names."""
    return int(os.environ.get(SEED_VARIABLE, "0"))


def boosted(hp: Mapping[str, Any], seed: int, epochs: int) -> Iterator[Score]:
    """Boost trees, `per_epoch` in each epoch."""
    from sklearn.ensemble import GradientBoostingRegressor

    parts = diabetes(int(hp.get("data_seed", data_seed())))
    model = GradientBoostingRegressor(
        learning_rate=hp["learning_rate"],
        max_depth=hp["max_depth"],
        subsample=hp["subsample"],
        min_samples_leaf=hp["min_samples_leaf"],
        max_features=hp["max_features"],
        random_state=seed,
        warm_start=True,
    )
    for epoch in range(1, epochs + 1):
        model.set_params(n_estimators=epoch * TREES_PER_EPOCH).fit(*parts.train)
        errors = [float(((model.predict(x) - y) ** 2).mean()) for x, y in (parts.validation, parts.test)]
        yield Score(*errors)


TREES_PER_EPOCH = 10


def _mlp(hp: Mapping[str, Any], seed: int, epochs: int) -> Iterator[Score]:
    from experiments.benchmarks.search_quality import networks

    return networks.trained(networks.DigitsMlp(), hp, seed, epochs)


def _cnn(hp: Mapping[str, Any], seed: int, epochs: int) -> Iterator[Score]:
    from experiments.benchmarks.search_quality import networks

    return networks.trained(networks.DigitsCnn(), hp, seed, epochs)


def _cancer(hp: Mapping[str, Any], seed: int, epochs: int) -> Iterator[Score]:
    from experiments.benchmarks.search_quality import networks

    return networks.trained(networks.CancerMlp(), hp, seed, epochs)


NETWORKS = "experiments.benchmarks.search_quality.networks"
SGD = {"lr": {"loguniform": [1e-3, 1.0]}, "momentum": {"uniform": [0.0, 0.99]}}
PROBLEMS = {
    each.name: each
    for each in (
        Problem(
            "digits_mlp",
            30,
            {**SGD, "weight_decay": {"loguniform": [1e-6, 1e-1]}, "hidden": {"choice": [64, 256]}, "batch_size": 32},
            f"{NETWORKS}:DigitsMlp",
            _mlp,
        ),
        Problem(
            "digits_cnn",
            20,
            {**SGD, "weight_decay": {"loguniform": [1e-6, 1e-1]}, "channels": {"choice": [8, 16]}, "batch_size": 32},
            f"{NETWORKS}:DigitsCnn",
            _cnn,
        ),
        Problem(
            "cancer_mlp",
            40,
            {**SGD, "weight_decay": {"loguniform": [1e-6, 1e-1]}, "hidden": {"choice": [16, 64]}, "batch_size": 32},
            f"{NETWORKS}:CancerMlp",
            _cancer,
        ),
        Problem(
            "diabetes_boosting",
            20,
            {
                "learning_rate": {"loguniform": [1e-3, 0.5]},
                "max_depth": {"choice": [1, 2, 3, 5]},
                "subsample": {"uniform": [0.3, 1.0]},
                "min_samples_leaf": {"choice": [1, 3, 10, 30]},
                "max_features": {"uniform": [0.2, 1.0]},
            },
            f"{NETWORKS}:boosting",
            boosted,
            fused=False,
        ),
    )
}
