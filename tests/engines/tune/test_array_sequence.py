"""Where a worker's seconds go: to training, evaluation, a program's own loop, making arrays; and its warnings."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raygpu.engines.tune.array_sequence import ArraySequence
from raygpu.search.trials import EpochResult, Trial


class Made(ArraySequence):
    """Arrays that take no time, and count a second of their own."""

    def _make(self, trials: list[Trial]) -> Any:
        self.spend(members=1.0)
        return SimpleNamespace(trials=trials, load=lambda folder: None, notes=["a counter is not kept"])


@pytest.fixture
def arrays() -> Made:
    return Made(SimpleNamespace(), None, None, SimpleNamespace())  # type: ignore[arg-type]


def result(train_s: float | None, validate_s: float | None = None) -> EpochResult:
    return EpochResult(1, {"loss": 1.0}, train_s=train_s, validate_s=validate_s)


def test_members_share_the_time_of_their_epoch(arrays: Made) -> None:
    arrays.spend_epoch({"t0000": result(2.0, 0.5), "t0001": result(2.0, 0.5)}, 3.0)
    assert arrays.seconds == pytest.approx({"train": 2.0, "evaluation": 0.5, "other": 0.5})


def test_a_program_has_one_part_for_all_and_so_has_its_end(arrays: Made) -> None:
    arrays.spend_epoch({"t0000": result(None)}, 3.0)
    arrays.spend_epoch(None, 1.0)
    assert arrays.seconds == pytest.approx({"program": 4.0})


def test_what_an_array_counts_itself_is_not_counted_twice(arrays: Made) -> None:
    arrays.waiting = [Trial("t0000", 0, {})]
    arrays.next_array()
    assert arrays.seconds["members"] == 1.0
    assert arrays.seconds["setup"] < 0.5


def test_what_a_checkpoint_does_not_hold_is_a_warning(arrays: Made, tmp_path: Path) -> None:
    arrays.begin([Trial("t0000", 0, {})])
    assert not arrays.warnings
    arrays.begin([Trial("t0000", 0, {})], tmp_path)
    assert arrays.take_told()["warnings"] == ["a counter is not kept"]
    array: Any = arrays.array
    array.notes.append("out of memory in an evaluation")
    assert arrays.take_told()["warnings"] == ["out of memory in an evaluation"]
    assert not arrays.take_told()["warnings"]
