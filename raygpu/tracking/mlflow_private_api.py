"""Private API of MLflow that raygpu uses. `tests/tracking/test_models.py` tells when it changes.

MLflow has no public way to read the experiment that `mlflow.set_experiment` has made the active one, or to have none.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_active_experiment() -> Iterator[None]:
    """Let `mlflow.start_run` go on with a run of any experiment, inside, whichever one the user's code has set."""
    from mlflow.tracking import fluent

    before, fluent._active_experiment_id = fluent._active_experiment_id, None
    try:
        yield
    finally:
        fluent._active_experiment_id = before
