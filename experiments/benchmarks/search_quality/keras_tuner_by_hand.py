"""Keras Tuner by hand on the networks: Hyperband, its best known search. It needs `pip install keras-tuner
tensorboard`.

python -m experiments.benchmarks.search_quality.keras_tuner_by_hand --searcher keras_tuner ...
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from typing import Any

import keras
import keras_tuner

from experiments.benchmarks.search_quality.command_line import Search, read
from experiments.benchmarks.search_quality.problems import Parts, Score, cancer, digits


def network(name: str, hp: Mapping[str, Any]) -> Any:
    """Return the problem's network in Keras."""
    layers = keras.layers
    if name == "digits_mlp":
        return keras.Sequential([keras.Input((64,)), layers.Dense(hp["hidden"], "relu"), layers.Dense(10)])
    if name == "cancer_mlp":
        return keras.Sequential([keras.Input((30,)), layers.Dense(hp["hidden"], "relu"), layers.Dense(2)])
    maps = hp["channels"]
    return keras.Sequential(
        [
            keras.Input((64,)),
            layers.Reshape((8, 8, 1)),
            layers.Conv2D(maps, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(2),
            layers.Conv2D(2 * maps, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )


class Noted(keras.callbacks.Callback):
    """Note both errors after each epoch, and stop when the time is up."""

    def __init__(self, order: Search, parts: Parts) -> None:
        super().__init__()
        self.order, self.parts = order, parts
        self.training = 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Count the trainings."""
        self.training += 1

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Note the validation error that Keras has computed, beside the test error."""
        values = self.model.evaluate(*self.parts.test, batch_size=1024, verbose=0, return_dict=True)
        of_loss = self.order.problem.name == "cancer_mlp"
        held, test = (logs["val_loss"], values["loss"]) if of_loss else (1 - logs["val_acc"], 1 - values["acc"])
        self.order.notebook.add(str(self.training), Score(held, test))
        if time.time() > self.order.ends:
            raise SystemExit  # Keras Tuner takes any other exception for a failed trial

    def __deepcopy__(self, memo: Any) -> Noted:
        """Return this object itself: Keras Tuner copies callbacks, which must go on counting."""
        return self


def search(order: Search) -> None:
    """Search until the time is up."""
    parts = (cancer if order.problem.name == "cancer_mlp" else digits)(order.seed)
    table = order.problem.table

    def build(hp: Any) -> Any:
        """Return a compiled model of suggested hyper-parameters."""
        values = {
            name: hp.Choice(name, value["choice"])
            if "choice" in value
            else hp.Float(name, *next(iter(value.values())), sampling="log" if "loguniform" in value else "linear")
            for name, value in table.items()
            if isinstance(value, Mapping)
        }
        model = network(order.problem.name, values)
        optimizer = keras.optimizers.SGD(values["lr"], values["momentum"], weight_decay=values["weight_decay"])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer, loss, metrics=[keras.metrics.SparseCategoricalAccuracy(name="acc")])
        return model

    with tempfile.TemporaryDirectory() as folder:
        tuner = keras_tuner.Hyperband(
            build,
            objective=keras_tuner.Objective("val_loss" if order.problem.name == "cancer_mlp" else "val_acc", "min")
            if order.problem.name == "cancer_mlp"
            else keras_tuner.Objective("val_acc", "max"),
            max_epochs=order.problem.epochs,
            hyperband_iterations=1000,
            seed=order.seed,
            directory=folder,
        )
        tuner.search(
            *parts.train,
            validation_data=parts.validation,
            batch_size=table["batch_size"],
            callbacks=[Noted(order, parts)],
            verbose=0,
        )


if __name__ == "__main__":
    search(read())
