"""The opening of a sweep's tracking store, in the writer's thread, while the first trials start."""

from __future__ import annotations

from raygpu.config import ProblemConfig
from raygpu.errors import TrackingError
from raygpu.tracking import carried_store
from raygpu.tracking.runs import Refused, RunTree


class StoreOpening:
    """Import MLflow, which takes seconds, and open the store; a store that cannot be opened is to end the sweep."""

    def __init__(self, config: ProblemConfig) -> None:
        self._tracking = config.tracking
        self.fault: TrackingError | None = None
        """Why the store could not be opened; None if it could, or has not been tried yet."""
        self._was_open = False

    @classmethod
    def of(cls, config: ProblemConfig) -> StoreOpening | None:
        """Return the opening of a configuration's store; None where tracking is off, or all writes are to wait in the
        run's journal."""
        return cls(config) if config.tracking.enabled and not carried_store.spools() else None

    def tree(self) -> RunTree:
        """Return the open store. Raises Refused, so that the writer does not try again: the sweep ends.

        A store that was open before, and is opened anew because its file was replaced, is tried again: TrackingError.
        """
        try:
            tree = RunTree.open(self._tracking.uri, self._tracking.experiment)
        except TrackingError as error:
            if self._was_open:
                raise
            self.fault = error
            raise Refused(str(error)) from error
        self._was_open = True
        return tree
