"""The line on a function's state that is not the best epoch's."""

from __future__ import annotations

from pathlib import Path

import pytest

from raygpu.records.training_progress import Best
from raygpu.reporting import Kept
from raygpu.workflow.function_state import function_state

NOT_OF_5 = "the kept state is not of the best epoch 5 but of epoch"


@pytest.mark.parametrize(
    ("epoch", "at_end", "saves_late", "line"),
    [
        (5, False, False, None),
        (3, False, False, f"{NOT_OF_5} 3: the function made no raygpu.checkpoint in between"),
        (5, False, True, f"{NOT_OF_5} 4: the function calls raygpu.checkpoint after raygpu.report"),
        (5, True, True, None),
    ],
)
def test_a_state_of_another_epoch_is_told(
    epoch: int, at_end: bool, saves_late: bool, line: str | None, tmp_path: Path
) -> None:
    Kept(epoch, b"", at_end=at_end).dump(tmp_path)
    assert function_state(tmp_path, Best(0.5, 5), saves_late=saves_late, interrupted=False) == (tmp_path, line)


@pytest.mark.parametrize(("interrupted", "end"), [(False, "raygpu.checkpoint"), (True, "; a resume begins again")])
def test_no_state_is_told(interrupted: bool, end: str, tmp_path: Path) -> None:
    folder, line = function_state(tmp_path, Best(0.5, 5), saves_late=False, interrupted=interrupted)
    assert folder is None
    assert line is not None
    assert line.endswith(end)
