"""Each trial's share of a GPU: the plan's, or a larger one after it ran out of memory."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

from raygpu.experiment import Source, Splits
from raygpu.planning.gpu_shares import Plan, Share
from raygpu.search.signature import Signature
from raygpu.search.trials import Trial
from raygpu.training.start import signature

MOST_RETRIES = 3
"""Most retries of one trial on one type of device, for want of memory."""


class Shares:
    """Trials that ran out of memory run again with more of it; later ones of the same signature begin with that.

    Each type of device has its own shares: what is too small on one may be plenty on another. A trial that the whole of
    one does not hold goes on with a type that has more memory.
    signature_of: asked only once a trial has run out of memory.
    """

    def __init__(self, plan: Plan, signature_of: Callable[[Trial], Signature]) -> None:
        self._plan = plan
        self._signature_of = signature_of
        self._failures: dict[tuple[str, str], list[Share]] = {}
        """The shares that were too small, by trial and type."""
        self._enough: dict[tuple[Signature, str], Share] = {}
        self._too_large: set[tuple[Signature, str]] = set()
        """Signatures that the whole of a GPU did not hold, each with the GPU's type."""

    def fitting(self, trial: Trial) -> list[str]:
        """The types of device that the trial may go to, the fastest first: those that were not too small for it."""
        devices = [part.device for part in self._plan.parts]
        if not self._too_large:
            return devices
        own = self._signature_of(trial)
        return [device for device in devices if (own, device) not in self._too_large] or devices

    def of(self, trial: Trial, device: str) -> Share:
        """Return the share that the trial starts with on a type of device."""
        planned = self._plan.on(device).share
        return self._enough.get((self._signature_of(trial), device), planned) if self._enough else planned

    def parts(self, trial: Trial) -> dict[str, Fraction]:
        """The same as parts of a GPU, by type."""
        return {part.device: self.of(trial, part.device).part for part in self._plan.parts}

    def enlarge(self, trial: Trial, device: str, share: Share) -> tuple[str, Share] | None:
        """Return the type of device and the share for another run after `share` was too small; None if there is no
        more, or it failed too often."""
        failures = self._failures.setdefault((trial.trial_id, device), [])
        failures.append(share)
        larger = share.larger(len(failures)) if len(failures) <= MOST_RETRIES else None
        if larger is not None and self._plan.most_gpus is not None and larger.part > self._plan.most_gpus:
            larger = None
        own = self._signature_of(trial)
        if larger is not None:
            known = self._enough.get((own, device))
            self._enough[own, device] = larger if known is None or known.part < larger.part else known
            return device, larger
        if share.trials_per_gpu == 1:
            self._too_large.add((own, device))
        return self._roomier(trial, device)

    def _roomier(self, trial: Trial, device: str) -> tuple[str, Share] | None:
        """The fastest type whose GPUs have more memory than this one's, and a share of it that has more as well."""
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
            share = self.of(trial, part.device)
            held_gib = here_gib * float(self._failures[trial.trial_id, device][-1].part)
            most = max(1, int(part.device_gib / held_gib - 1e-9))
            return part.device, share if share.trials_per_gpu <= most else Share(most)
        return None

    def too_small(self, trial_id: str) -> list[tuple[str, Share]]:
        """The types and shares in which the trial ran out of memory."""
        return [
            (device, share) for (name, device), found in self._failures.items() if name == trial_id for share in found
        ]

    def state(self) -> Any:
        """For a resumed sweep; picklable."""
        return self._failures, self._enough, self._too_large

    def restore(self, state: Any) -> None:
        self._failures, self._enough, self._too_large = state


def signatures(source: Source, splits: Splits | None) -> Callable[[Trial], Signature]:
    """Finds a trial's signature by its code; all trials are alike where that tells none."""
    code = None if source.kind == "command" else source.resolve()

    def find(trial: Trial) -> Signature:
        try:
            return signature(source, code, splits, trial)
        except Exception:  # noqa: BLE001 - a fault of the user's code is its trial's result
            return Signature(())

    return find
