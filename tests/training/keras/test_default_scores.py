"""The default loss and accuracy of a Keras experiment, for the shapes of targets that they take."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from raygpu import KerasExperiment


@pytest.fixture(autouse=True)
def needs_keras() -> None:
    """Not imported with this module: TensorFlow takes seconds, in a process that may run none of these tests."""
    pytest.importorskip("keras")


class Defaults(KerasExperiment):
    def data(self) -> Any:
        raise NotImplementedError

    def model(self, hp: Any) -> Any:
        raise NotImplementedError


def test_targets_in_a_column_count_as_a_row() -> None:
    logits = np.random.default_rng(0).normal(size=(12, 5)).astype(np.float32)
    for labels, outputs in ((np.arange(12) % 5, logits), (np.arange(12).reshape(6, 2) % 5, logits.reshape(6, 2, 5))):
        accuracy = (outputs.argmax(-1) == labels).mean()
        losses = [float(Defaults().loss(outputs, each)) for each in (labels, labels[..., None])]
        assert losses[0] == losses[1]
        for targets in (labels, labels[..., None], labels[..., None].astype(np.uint8)):
            assert float(Defaults().metrics(outputs, targets)["accuracy"]) == pytest.approx(accuracy)


@pytest.mark.parametrize("shape", [(12, 1), (12,), (12, 5, 1)])
def test_one_output_has_no_cross_entropy(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"^one output: the cross entropy of a single class is 0; override loss\(\)$"):
        Defaults().loss(np.zeros(shape, np.float32), np.zeros(shape, np.float32))


class OwnLoss(Defaults):
    def loss(self, outputs: Any, targets: Any) -> Any:
        return outputs


@pytest.mark.parametrize(
    ("outputs", "targets", "names"),
    [((6, 1), (6,), []), ((6, 1), (6, 1), []), ((6,), (6,), []), ((6, 5), (6, 5), []), ((6, 5), (6,), ["accuracy"]),
     ((6, 5), (6, 1), ["accuracy"]), ((6, 3, 5), (6, 3), ["accuracy"])],
)  # fmt: skip
def test_a_loss_of_its_own_without_classes_has_no_accuracy(
    outputs: tuple[int, ...], targets: tuple[int, ...], names: list[str]
) -> None:
    assert list(OwnLoss().metrics(np.zeros(outputs, np.float32), np.ones(targets, np.int64))) == names


@pytest.mark.parametrize("targets", [(6,), (6, 1)])
def test_a_regression_with_two_outputs_has_no_accuracy(targets: tuple[int, ...]) -> None:
    """As a mean and a variance of each sample, beside the likelihood as a loss of its own."""
    assert OwnLoss().metrics(np.zeros((6, 2), np.float32), np.ones(targets, np.float32)) == {}


def test_what_a_mask_leaves_out_does_not_count() -> None:
    """As in `fit`, whose accuracy counts it all the same."""
    import keras

    tokens = np.array([[1, 2, 0], [3, 0, 0]])
    model = keras.Sequential([keras.layers.Embedding(5, 4, mask_zero=True), keras.layers.Dense(3)])
    outputs, targets = model(tokens), np.array([[0, 1, 2], [2, 2, 2]])
    loss, accuracy = Defaults().loss(outputs, targets), Defaults().metrics(outputs, targets)["accuracy"]
    expected = keras.losses.SparseCategoricalCrossentropy(from_logits=True)(targets, outputs)
    assert float(loss.total / loss.weight) == pytest.approx(float(expected), rel=1e-6)
    hits = (np.asarray(outputs).argmax(-1) == targets)[tokens != 0]
    assert float(accuracy.total / accuracy.weight) == pytest.approx(hits.mean())
