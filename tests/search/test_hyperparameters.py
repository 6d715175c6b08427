"""A trial's hyper-parameters record what is read of them, and are copies."""

from __future__ import annotations

import pytest

from raygpu.search.hyperparameters import ALL_NAMES, Hyperparameters, MissingHyperparameter


def test_hyperparameters_record_every_way_of_reading() -> None:
    def takes(**values: int) -> int:
        return len(values)

    hp = Hyperparameters({"a": 1, "b": 2, "c": 3, "d": 4})
    assert hp["a"] == 1
    assert hp.get("b", 0) == 2
    assert "c" in hp
    assert hp.names_read == {"a", "b", "c"}
    assert takes(**hp) == 4
    assert hp.names_read == {"a", "b", "c", "d", ALL_NAMES}
    assert not hasattr(hp, "__setitem__")
    with pytest.raises(MissingHyperparameter, match="no hyper-parameter 'x'; this trial has: a, b, c, d"):
        hp["x"]


def test_a_list_of_the_hyperparameters_may_be_changed() -> None:
    values = {"hidden": [8, {"width": [4]}], "named": {"a": [1]}}
    hp = Hyperparameters(values)
    hp["hidden"].append(3)
    hp["hidden"][1]["width"].clear()
    hp.get("named")["a"].append(2)
    assert dict(hp) == {"hidden": [8, {"width": [4]}], "named": {"a": [1]}} == values
