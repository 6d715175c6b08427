"""Which share of a GPU each trial gets: the plan's, or a larger one after it ran out of memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from raygpu.experiment import Source, Splits
from raygpu.grouping import Signature
from raygpu.packing import Share
from raygpu.subjects import signature
from raygpu.trials import Trial

MOST_RETRIES = 3
"""Of one trial, for want of memory."""


class Shares:
    """Trials that ran out of memory run again with more of it; later ones of the same signature begin with that.

    share: the plan's. signature_of: asked only once a trial has run out of memory.
    """

    def __init__(self, share: Share, signature_of: Callable[[Trial], Signature]) -> None:
        self._share = share
        self._signature_of = signature_of
        self._failures: dict[str, list[Share]] = {}
        """The shares that were too small, by trial."""
        self._enough: dict[Signature, Share] = {}

    def of(self, trial: Trial) -> Share:
        """What the trial starts with."""
        return self._enough.get(self._signature_of(trial), self._share) if self._enough else self._share

    def enlarge(self, trial: Trial, share: Share) -> Share | None:
        """What it runs again with after `share` was too small; None if there is no more, or it failed too often."""
        failures = self._failures.setdefault(trial.trial_id, [])
        failures.append(share)
        larger = share.larger(len(failures)) if len(failures) <= MOST_RETRIES else None
        if larger is not None:
            own = self._signature_of(trial)
            known = self._enough.get(own)
            self._enough[own] = larger if known is None or known.part < larger.part else known
        return larger

    def too_small(self, trial_id: str) -> list[Share]:
        """The shares in which the trial ran out of memory."""
        return self._failures.get(trial_id, [])

    def state(self) -> Any:
        """For a resumed sweep; picklable."""
        return self._failures, self._enough

    def restore(self, state: Any) -> None:
        self._failures, self._enough = state


def signatures(source: Source, splits: Splits | None) -> Callable[[Trial], Signature]:
    """Finds a trial's signature by its code; all trials are alike where that tells none."""
    code = None if source.kind == "command" else source.resolve()

    def find(trial: Trial) -> Signature:
        try:
            return signature(source, code, splits, trial)
        except Exception:  # noqa: BLE001 - a fault of the user's code is its trial's result
            return Signature(())

    return find
