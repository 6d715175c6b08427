"""Retry a trial that ran out of GPU memory with a larger share."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from raygpu.config.source import Source
from raygpu.experiment import Splits
from raygpu.planning.gpu_shares import DevicePlan, Plan, Share
from raygpu.search.signature import Signature
from raygpu.search.trials import Trial
from raygpu.training.start import signature

logger = logging.getLogger(__name__)
MOST_RETRIES = 3
"""Maximum number of retries of one trial on one type of device after it ran out of memory."""


class RetryShares:
    """Shares of a GPU for trials, enlarged after a trial ran out of memory.

    Later trials of the same signature begin with the enlarged share. Each type of device has its own shares, since a
    share that is too small on one type may be enough on another. A trial that needs more memory than a whole GPU goes
    on with a type that has more memory. signature_of: called only once a trial has run out of memory.
    """

    def __init__(self, plan: Plan, signature_of: Callable[[Trial], Signature]) -> None:
        self._plan = plan
        self._signature_of = signature_of
        self._failures: dict[tuple[str, str], list[Share]] = {}
        """Shares that were too small, by trial id and device type."""
        self._enough: dict[tuple[Signature, str], Share] = {}
        self._too_large: set[tuple[Signature, str]] = set()
        """Signatures that need more memory than a whole GPU, each with the GPU's type."""

    def fitting(self, trial: Trial) -> list[str]:
        """Return the device types for a trial, the fastest first: those not known to be too small, or else all."""
        devices = [part.device for part in self._plan.parts]
        if not self._too_large:
            return devices
        trial_signature = self._signature_of(trial)
        return [device for device in devices if (trial_signature, device) not in self._too_large] or devices

    def of(self, trial: Trial) -> dict[str, Share]:
        """Return the share that the trial starts with, by device type."""
        return {part.device: self._starting(trial, part) for part in self._plan.parts}

    def _starting(self, trial: Trial, part: DevicePlan) -> Share:
        return self._enough.get((self._signature_of(trial), part.device), part.share) if self._enough else part.share

    def enlarge(self, trial: Trial, device: str, share: Share) -> tuple[str, Share] | None:
        """Return the device type and the share for another run of a trial for which `share` was too small.

        None if there is no larger share, or if the trial failed too often.
        """
        failures = self._failures.setdefault((trial.trial_id, device), [])
        failures.append(share)
        larger = share.larger(len(failures)) if len(failures) <= MOST_RETRIES else None
        if larger is not None and self._plan.most_gpus is not None and larger.part > self._plan.most_gpus:
            larger = None
        trial_signature = self._signature_of(trial)
        if larger is not None:
            minimum = self._enough.get((trial_signature, device))
            self._enough[trial_signature, device] = larger if minimum is None or minimum.part < larger.part else minimum
            return device, larger
        if share.trials_per_gpu == 1:
            self._too_large.add((trial_signature, device))
        return self._roomier(trial, device)

    def _roomier(self, trial: Trial, device: str) -> tuple[str, Share] | None:
        """Return the fastest type whose GPUs have more memory, and a share with more memory than the last; or None."""
        here_gib = self._plan.on(device).device_gib
        if here_gib is None:
            return None
        for part in self._plan.parts:
            if (
                part.device_gib is None
                or part.device_gib <= here_gib
                or (trial.trial_id, part.device) in self._failures
            ):
                continue
            share = self._starting(trial, part)
            held_gib = here_gib * float(self._failures[trial.trial_id, device][-1].part)
            most = max(1, int(part.device_gib / held_gib - 1e-9))
            return part.device, share if share.trials_per_gpu <= most else Share(most)
        return None

    def too_small(self, trial_id: str) -> list[tuple[str, Share]]:
        """Return the device types and shares in which a trial ran out of memory."""
        return [
            (device, share) for (name, device), shares in self._failures.items() if name == trial_id for share in shares
        ]

    def state(self) -> Any:
        """Return the failures and enlarged shares for a resumed sweep; picklable."""
        return self._failures, self._enough, self._too_large

    def restore(self, state: Any) -> None:
        """Go on from a value that `state` returned."""
        self._failures, self._enough, self._too_large = state


def signatures(source: Source, splits: Splits | None) -> Callable[[Trial], Signature]:
    """Return a function that finds a trial's signature by the experiment's code; the empty one if the code fails."""
    code = None if source.kind == "command" else source.resolve()

    def find(trial: Trial) -> Signature:
        """Return the trial's signature; the empty one if the user's code fails."""
        try:
            return signature(source, code, splits, trial)
        except Exception:  # a fault of the user's code is its trial's result
            logger.debug("the signature of trial %s", trial.trial_id, exc_info=True)
            return Signature(())

    return find
