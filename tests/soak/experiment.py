"""The experiment of the soak's sweeps: the digits, with epochs that last long enough to be hit by a fault."""

from __future__ import annotations

import time
from typing import Any, ClassVar

from experiments.digits import Mlp

MAX_DRY_SAMPLES = 100
"""Number of samples below which an evaluation is a dry run's."""


class SlowMlp(Mlp):
    """`Mlp` with a pause in each evaluation; in fused mode an array pauses once for all its members."""

    pause_s: ClassVar[float] = 0.5

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        """Return the accuracy, after a pause unless it is of a dry run's few samples."""
        if len(targets) > MAX_DRY_SAMPLES:
            time.sleep(self.pause_s)
        return super().metrics(outputs, targets)
