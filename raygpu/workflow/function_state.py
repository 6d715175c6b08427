"""The state of a function that a production training ends with, and a line where it is not the best epoch's."""

from __future__ import annotations

from pathlib import Path

from raygpu.records.training_progress import Best
from raygpu.reporting import Kept


def function_state(
    checkpoint: Path | None, best: Best | None, *, saves_late: bool, interrupted: bool
) -> tuple[Path | None, str | None]:
    """Return the folder if it holds a state of the function's, else None; and a line where that is not the best
    epoch's.

    checkpoint: the best one's folder. saves_late: whether the function saves its state after each report.
    """
    state = Kept.load(checkpoint) if checkpoint is not None else None
    if state is None:
        again = "; a resume begins again" if interrupted else ""
        return None, f"no state is kept: the function has not called raygpu.checkpoint{again}"
    if best is None:
        return checkpoint, None
    line = f"the kept state is not of the best epoch {best.epoch} but of epoch"
    if state.epoch < best.epoch:
        return checkpoint, f"{line} {state.epoch}: the function made no raygpu.checkpoint in between"
    if saves_late and not state.at_end:
        return checkpoint, f"{line} {best.epoch - 1}: the function calls raygpu.checkpoint after raygpu.report"
    return checkpoint, None
