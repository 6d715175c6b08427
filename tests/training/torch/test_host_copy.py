"""A state dict on the host: it keeps what torch.save would keep, and does not follow the training."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from raygpu.training.torch.host_copy import host_copy


def test_a_copy_does_not_follow_the_training() -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    losses = [1.0]
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "losses": losses}
    copy = host_copy(state)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    losses.append(2.0)
    assert copy["losses"] == [1.0]
    assert copy["optimizer"]["state"] == {}
    assert all(torch.equal(value, before[name]) for name, value in copy["model"].items())
    assert not torch.equal(copy["model"]["weight"], model.weight)


def test_the_versions_of_modules_are_kept() -> None:
    state = nn.Sequential(nn.BatchNorm1d(2)).state_dict()
    copy = host_copy({"model": state})["model"]
    assert copy._metadata == state._metadata
    assert copy._metadata["0"] == {"version": 2}


def test_shared_memory_and_strides_are_kept(tmp_path: Path) -> None:
    weight = torch.randn(4, 3, 5, 5).contiguous(memory_format=torch.channels_last)
    whole = torch.arange(10.0)
    state = {"tied": [weight, weight.detach()], "parts": (whole[2:4], whole[::2]), "half": weight.bfloat16(),
             "sparse": torch.eye(3).to_sparse(), "conjugate": torch.tensor([1 + 2j]).conj()}  # fmt: skip
    copy = host_copy(state)
    one, other = copy["tied"]
    assert one.data_ptr() == other.data_ptr() != weight.data_ptr()
    assert one.is_contiguous(memory_format=torch.channels_last)
    assert copy["parts"][0].untyped_storage().data_ptr() == copy["parts"][1].untyped_storage().data_ptr()
    torch.save(copy, tmp_path / "copied.pt")
    torch.testing.assert_close(torch.load(tmp_path / "copied.pt"), state, rtol=0, atol=0)
