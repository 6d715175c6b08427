"""Which submodules of a model are gathered together."""

from __future__ import annotations

import pytest
from torch import nn

from raygpu.training.distributed.sharded.blocks import blocks, largest_bytes, num_bytes
from tests.training.distributed.parallel_cases import Tied
from tests.training.distributed.sharded_cases import Attention, ByParts, Deep, Shared, TiedTokens


def named(model: nn.Module) -> list[str]:
    """The blocks' names, sorted."""
    names = {id(module): name for name, module in model.named_modules()}
    return sorted(names[id(block)] for block in blocks(model))


@pytest.mark.parametrize(
    ("model", "wanted"),
    [
        (Deep().model({}), sorted(f"blocks.{number}" for number in range(12))),
        (ByParts().model({}), ["0", "2", "3"]),
        (Attention().model({}), ["1.layers.0", "1.layers.1", "1.layers.2", "3"]),
        (Tied().model({}), ["0", "5"]),  # 2 and 4 have one weight
        (nn.Linear(4, 4), []),
        (nn.Sequential(nn.Linear(300, 300), nn.BatchNorm1d(300), nn.Linear(300, 300)), ["0", "2"]),  # 1 is too small
    ],
    ids=["a list", "a sequence", "torch's encoder", "tied weights", "a layer", "a small layer"],
)
def test_the_blocks(model: nn.Module, wanted: list[str]) -> None:
    assert named(model) == wanted


def test_a_large_block_has_blocks_of_its_own_which_come_first() -> None:
    model = TiedTokens().model({})
    found = blocks(model)
    assert named(model) == sorted(
        f"parts.row.{number}{inner}" for number in (0, 1) for inner in ("", ".inner.0", ".inner.2")
    )
    for place, block in enumerate(found):
        assert not any(module in found[place + 1 :] for module in block.modules() if module is not block)


def test_a_block_that_is_used_twice_is_one_block() -> None:
    model = Shared().model({})
    found = named(model)
    assert len(found) == len(set(found))
    assert {"row.0", "row.1", "unused.0"} <= set(found)
    assert "row.2" not in found


def test_blocks_as_attributes_are_found_by_their_class() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Linear(5, 5)

        def forward(self, x: object) -> object:
            return self.one(x)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right, self.last = Block(), Block(), nn.Linear(5, 5)

    assert named(Model()) == ["left", "right"]


def test_the_largest_part_that_is_gathered_at_once() -> None:
    model = Deep().model({})
    inner = num_bytes(model.blocks)  # type: ignore[arg-type]
    assert largest_bytes(model) == num_bytes(model) - inner + inner // 12
