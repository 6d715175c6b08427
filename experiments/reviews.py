"""Stars from the reviews of a user and of an item, by two towers joined at the end: the same model in torch and Keras.

    python -m raygpu.sweep conf/sweep/reviews.toml                       TwoTowers, on data/reviews.json.gz
    python -m raygpu.sweep conf/sweep/reviews.toml --data.synthetic      on made-up reviews with planted tastes

The file holds reviews of the public Amazon data sets (`review_texts.py` has the format); the variable REVIEWS names
another one. After L. Zheng, V. Noroozi, P. S. Yu: Joint Deep Modeling of Users and Items Using Reviews for
Recommendation (DeepCoNN), WSDM 2017; a dense layer joins the towers here, and no document contains the review that is
to be predicted.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments import review_texts
from raygpu import KerasExperiment, Splits, TorchExperiment

if TYPE_CHECKING:
    from collections.abc import Mapping

    import keras
    from torch import nn

SHAPE = review_texts.Shape(num_words=10_000, length=128)
FILE = "data/reviews.json.gz"
MIDDLE = 3.0
"""Stars that the untrained model predicts."""


class Reviews:
    """The data, real and made-up."""

    def data(self) -> Splits:
        path = Path(os.environ.get("REVIEWS") or FILE).expanduser()
        if not path.is_file():
            raise FileNotFoundError(
                f"no reviews at {path}: put a file of the Amazon reviews there, or name one in the variable REVIEWS; "
                "--data.synthetic goes without"
            )
        return review_texts.splits(review_texts.read(path), SHAPE)

    def synthetic(self) -> Splits:
        return review_texts.splits(review_texts.planted(6000), SHAPE)


class TwoTowers(Reviews, TorchExperiment):
    """Towers of an embedding of `embedding` numbers, `filters` convolutions of five words, tanh, the maximum over the
    document and a dense layer of `latent` units."""

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        from experiments.torch_networks import TwoTowers

        return TwoTowers(SHAPE.num_words, hp["embedding"], hp["filters"], hp["latent"], MIDDLE)

    def loss(self, outputs: Any, targets: Any) -> Any:
        return (outputs - targets).square().mean()

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        return {"mse": (outputs - targets).square().mean(), "mae": (outputs - targets).abs().mean()}


class KerasTwoTowers(Reviews, KerasExperiment):
    """The same towers in Keras."""

    def model(self, hp: Mapping[str, Any]) -> keras.Model:
        from experiments.keras_networks import two_towers

        return two_towers(SHAPE.num_words, hp["embedding"], hp["filters"], hp["latent"], MIDDLE)

    def loss(self, outputs: Any, targets: Any) -> Any:
        import keras

        return keras.ops.mean(keras.ops.square(outputs - targets))

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        import keras

        return {
            "mse": keras.ops.mean(keras.ops.square(outputs - targets)),
            "mae": keras.ops.mean(keras.ops.abs(outputs - targets)),
        }
