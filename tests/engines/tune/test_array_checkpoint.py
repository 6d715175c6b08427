"""What counts as a damaged checkpoint."""

from __future__ import annotations

import json

import pytest

from raygpu.engines.tune.array_checkpoint import DamagedCheckpoint, reading


@pytest.mark.parametrize(
    "error", [FileNotFoundError("progress.json"), json.JSONDecodeError("cut", "{", 1), EOFError("ran out of input")]
)
def test_a_file_that_is_gone_or_cut_is_damage(error: Exception) -> None:
    with pytest.raises(DamagedCheckpoint), reading():
        raise error


@pytest.mark.parametrize(
    "error",
    [OSError(5, "input/output error"), MemoryError(), RuntimeError("Error(s) in loading state_dict for Linear")],
)
def test_a_fault_that_may_pass_or_is_of_the_code_stays_as_it_is(error: Exception) -> None:
    with pytest.raises(type(error)) as raised, reading():
        raise error
    assert raised.value is error
