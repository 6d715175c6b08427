"""A plain function as an experiment: a linear classifier of the digits in scikit-learn, epoch by epoch.

python -m raygpu.sweep conf/sweep/digits_function.toml
"""

from __future__ import annotations

from typing import Any

import numpy as np

import raygpu


def train(config: dict[str, Any]) -> None:
    """Train for `config["epochs"]` passes, and go on where an earlier start of the same trial was stopped."""
    from sklearn.datasets import load_digits
    from sklearn.linear_model import SGDClassifier
    from sklearn.model_selection import train_test_split

    pixels, labels = load_digits(return_X_y=True)
    train_x, validation_x, train_y, validation_y = train_test_split(
        pixels / 16, labels, random_state=0, stratify=labels
    )
    model = SGDClassifier(
        loss="log_loss", alpha=config["alpha"], penalty=config["penalty"], random_state=config["seed"]
    )
    done, model = raygpu.load((0, model))
    for epoch in range(done, config["epochs"]):
        order = np.random.default_rng([config["seed"], epoch]).permutation(len(train_x))
        model.partial_fit(train_x[order], train_y[order], classes=np.arange(10))
        raygpu.checkpoint((epoch + 1, model))
        raygpu.report(accuracy=model.score(validation_x, validation_y))
