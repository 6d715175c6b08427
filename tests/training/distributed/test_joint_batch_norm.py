"""BatchNorm over all ranks' samples."""

from __future__ import annotations

import torch
from torch import nn

from raygpu.training.distributed.joint_batch_norm import NOT_JOINED, join_batch_norm


class OwnNorm(nn.BatchNorm1d):
    """A class of the user's own, which torch does not convert."""


def test_a_norm_that_is_not_joined_is_told() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Sequential(OwnNorm(4)), nn.InstanceNorm1d(4))
    joined, lines = join_batch_norm(model, torch.device("cuda"))
    assert isinstance(joined[1], nn.SyncBatchNorm)
    assert [line for line in lines if "2.0, OwnNorm" in line] == lines != []
    assert join_batch_norm(nn.Sequential(nn.BatchNorm1d(4)), torch.device("cuda"))[1] == []
    assert join_batch_norm(model, torch.device("cpu"))[1] == [NOT_JOINED]
