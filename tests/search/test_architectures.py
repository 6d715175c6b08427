from __future__ import annotations

from typing import Any

import pytest

from raygpu.search.architectures import Architectures, architectures, num_signatures
from raygpu.search.signature import Group, Signature
from raygpu.search.space import parse, random_trials

NESTED: dict[str, Any] = {
    "layers": {"choice": [1, 2, 3]},
    "width1": {"choice": [8, 16]},
    "width2": {"choice": [8, 16], "when": {"layers": [2, 3]}},
    "width3": {"choice": [8, 16], "when": {"layers": 3}},
    "lr": {"uniform": [0, 1]},
    "batch_size": 64,
}
WIDTHS = ("width1", "width2", "width3")


def groups_of(space: Any, names: tuple[str, ...], count: int) -> list[Group]:
    found: dict[Signature, Group] = {}
    for trial in random_trials(space, count, 0):
        signature = Signature.of(trial, names)
        found.setdefault(signature, Group(signature)).trials.append(trial)
    return list(found.values())


def test_a_nested_space_is_counted_layer_by_layer() -> None:
    space = parse(NESTED)
    assert num_signatures(space, ("layers", *WIDTHS)) == 2 + 4 + 8
    assert num_signatures(space, WIDTHS) == 2 + 4 + 8, "the layers follow from the widths that are there"
    assert num_signatures(space, ("layers",)) == 3
    assert num_signatures(space, ("width3",)) == 3, "two, and none"


def test_no_end_of_values() -> None:
    assert num_signatures(parse(NESTED), ("layers", "lr")) is None
    assert num_signatures(parse({"width": {"randint": [0, 2**50]}}), ("width",)) is None, "they are not listed"
    large = parse({f"x{i}": {"randint": [0, 100]} for i in range(3)})
    assert num_signatures(large, ("x0", "x1", "x2")) is None


def test_what_a_sweeps_trials_have_of_them() -> None:
    space = parse(NESTED)
    found = architectures(space, groups_of(space, ("layers", *WIDTHS, "batch_size"), 40))
    assert found is not None
    assert (found.names, found.num_trials, found.possible, found.endless) == (("layers", *WIDTHS), 40, 14, ())
    assert 8 < found.num_signatures <= 14
    assert found.mean_width == pytest.approx(40 / found.num_signatures)


def test_a_continuous_one_is_named_and_constants_are_none() -> None:
    space = parse(NESTED)
    found = architectures(space, groups_of(space, ("layers", "lr"), 5))
    assert found == Architectures(("layers", "lr"), 5, 5, None, ("lr",))
    assert architectures(space, groups_of(space, ("batch_size",), 5)) is None
    assert architectures(space, []) is None
