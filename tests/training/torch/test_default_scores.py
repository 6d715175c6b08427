"""The default loss and accuracy of a torch experiment, for the shapes and kinds of targets that they take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

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
