"""The default loss and accuracy of a torch experiment, for the shapes and kinds of targets that they take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import one_hot

from raygpu import TorchExperiment


class Defaults(TorchExperiment):
    def data(self) -> Any:
        raise NotImplementedError

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        raise NotImplementedError


DEFAULTS = Defaults()
LOGITS = torch.randn(12, 5, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(12) % 5


def test_targets_in_a_column_count_as_a_row() -> None:
    assert torch.equal(DEFAULTS.loss(LOGITS, LABELS[:, None]), DEFAULTS.loss(LOGITS, LABELS))
    hits = sum(int(row.argmax()) == int(label) for row, label in zip(LOGITS, LABELS, strict=True))
    for targets in (LABELS, LABELS[:, None], LABELS[:, None].float()):
        assert float(DEFAULTS.metrics(LOGITS, targets)["accuracy"]) == float(torch.tensor(hits / 12))


class OwnLoss(Defaults):
    def loss(self, outputs: Any, targets: Any) -> Any:
        return outputs.mean()


def accuracy(experiment: TorchExperiment, outputs: torch.Tensor, targets: torch.Tensor) -> float:
    return float(experiment.metrics(outputs, targets)["accuracy"])


@pytest.mark.parametrize("steps", [5, 7])
def test_the_axis_of_the_classes_is_the_one_of_the_loss(steps: int) -> None:
    labels = (torch.arange(12)[:, None] + torch.arange(steps)) % 5
    right = one_hot(labels, 5).movedim(-1, 1).float()
    assert accuracy(DEFAULTS, right, labels) == accuracy(DEFAULTS, right, labels[:, None]) == 1
    assert float(DEFAULTS.loss(99 * right, labels)) == 0
    pictures = right[..., None].expand(-1, -1, -1, 5)
    assert accuracy(DEFAULTS, pictures, labels[..., None].expand(-1, -1, 5)) == 1


def test_a_loss_of_its_own_may_have_the_classes_last() -> None:
    labels = (torch.arange(12)[:, None] + torch.arange(7)) % 5
    right = one_hot(labels, 5)
    assert accuracy(OwnLoss(), right, labels) == accuracy(OwnLoss(), right.movedim(-1, 1), labels) == 1
    assert OwnLoss().metrics(right[:, :5], labels[:, :5]) == {}, "as many steps as classes"


@pytest.mark.parametrize("ignored", [-100, -1, 255, 5])
def test_class_indices_of_no_class_do_not_count(ignored: int) -> None:
    """As the pixels of an `ignore_index`, of a loss of the experiment's own and in arrays too."""
    labels = torch.where(torch.arange(12) < 4, LOGITS.argmax(1), LABELS)
    targets = torch.where(torch.arange(12) < 6, labels, ignored)
    wanted = accuracy(OwnLoss(), LOGITS[:6], labels[:6])
    assert wanted > 0.5
    for kind in (OwnLoss(), DEFAULTS):
        assert accuracy(kind, LOGITS, targets) == pytest.approx(wanted)
        members = torch.vmap(lambda outputs, kind=kind: kind.metrics(outputs, targets)["accuracy"])(LOGITS[None])
        assert float(members) == pytest.approx(wanted)
    if ignored > 0:
        assert accuracy(OwnLoss(), LOGITS, targets.to(torch.uint8)) == pytest.approx(wanted)
    assert accuracy(OwnLoss(), LOGITS, torch.full((12,), ignored)) == 0


@pytest.mark.parametrize(
    ("outputs", "targets"),
    [((12, 1), (12,)), ((12, 1), (12, 1)), ((12,), (12,)), ((12, 5), (12, 5)), ((12, 1, 4, 4), (12, 4, 4)),
     ((12, 1, 4), (12, 1, 4)), ((12, 5, 4), (12, 20))],
)  # fmt: skip
def test_a_loss_of_its_own_without_classes_has_no_accuracy(outputs: tuple[int, ...], targets: tuple[int, ...]) -> None:
    for dtype in (torch.float32, torch.int64):
        assert OwnLoss().metrics(torch.rand(outputs), torch.ones(targets, dtype=dtype)) == {}


@pytest.mark.parametrize("targets", [(12,), (12, 1)])
def test_a_regression_with_two_outputs_has_no_accuracy(targets: tuple[int, ...]) -> None:
    """As a mean and a variance of each sample, beside the likelihood as a loss of its own."""
    assert OwnLoss().metrics(torch.rand(12, 2), torch.rand(targets)) == {}
    assert OwnLoss().metrics(torch.rand(12, 2), torch.zeros(targets, dtype=torch.int64)).keys() == {"accuracy"}


def test_targets_may_be_class_probabilities() -> None:
    probabilities = one_hot(LABELS, 5) * 0.6 + 0.08
    assert accuracy(DEFAULTS, LOGITS, probabilities) == accuracy(DEFAULTS, LOGITS, LABELS)
    assert accuracy(DEFAULTS, LOGITS[:, :, None], probabilities[:, :, None]) == accuracy(DEFAULTS, LOGITS, LABELS)
    with pytest.raises(ValueError, match=r"cannot tell the classes in outputs \(12, 5\) beside targets \(12, 4\)"):
        DEFAULTS.metrics(LOGITS, probabilities[:, :4])


def test_ignored_labels_do_not_count() -> None:
    labels = LABELS.where(torch.arange(12) % 3 > 0, -100)
    kept = labels != -100
    assert float(DEFAULTS.loss(LOGITS, labels)) == pytest.approx(float(DEFAULTS.loss(LOGITS[kept], labels[kept])))
    assert accuracy(DEFAULTS, LOGITS, labels) == pytest.approx(accuracy(DEFAULTS, LOGITS[kept], labels[kept]))
    assert accuracy(DEFAULTS, LOGITS, torch.full((12,), -100)) == 0
    members = torch.stack([LOGITS, -LOGITS]), torch.stack([labels, LABELS])
    fused = torch.vmap(lambda outputs, targets: DEFAULTS.metrics(outputs, targets)["accuracy"])(*members)
    assert fused.tolist() == [accuracy(DEFAULTS, *each) for each in zip(*members, strict=True)]


@given(st.integers(1, 1500), st.integers(0, 9))
def test_the_accuracy_is_the_mean_of_hits_to_the_bit(count: int, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    outputs, labels = torch.randn(count, 3, generator=draw), torch.randint(3, (count,), generator=draw)
    hits = (outputs.argmax(1) == labels).float()
    assert accuracy(DEFAULTS, outputs, labels) == float(hits.mean())


def test_the_class_of_a_byte_that_is_minus_100_counts() -> None:
    labels = torch.tensor([156, 3], dtype=torch.uint8)
    assert accuracy(DEFAULTS, one_hot(labels.long(), 200).float(), labels) == 1


@pytest.mark.parametrize("shape", [(12, 1), (12,), (12, 1, 5)])
def test_one_output_has_no_cross_entropy(shape: tuple[int, ...]) -> None:
    for targets in (torch.rand(shape), torch.zeros(12, dtype=torch.int64)):
        with pytest.raises(
            ValueError, match=r"^one output: the cross entropy of a single class is 0; override loss\(\)$"
        ):
            DEFAULTS.loss(torch.randn(shape), targets)
