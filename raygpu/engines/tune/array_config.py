"""Tune config of an array: its trials, and the share of a GPU that it gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from raygpu.planning.gpu_shares import Share
from raygpu.search.trials import Trial


@dataclass(frozen=True, slots=True)
class ArrayConfig:
    """Config of one Tune trial: an array of trials, or a trial alone as an array of one."""

    name: str
    """Name of the Tune trial: `a0000`, `a0001` ... for an array; the trial's id for a trial alone."""
    trial_ids: tuple[str, ...]
    fused: bool
    """Whether the trials step as one program, or side by side in split mode; False for a trial alone."""
    device: str
    """Device type."""
    share: Share
    checkpoint: str | None = None
    """URI of the checkpoint from which a trial goes on that ran out of memory in a smaller share; None for none."""
    trials: tuple[Trial, ...] = ()
    """The trials of `trial_ids`, unless all of the sweep's trials lie in the object store."""

    def as_dict(self) -> dict[str, Any]:
        """Return the config as Tune takes it: a dict of plain values."""
        return {
            "name": self.name,
            "trial_ids": list(self.trial_ids),
            "fused": self.fused,
            "device": self.device,
            **asdict(self.share),
            "checkpoint": self.checkpoint,
            "trials": [
                {
                    "trial_id": each.trial_id,
                    "seed": each.seed,
                    "hyperparameters": dict(each.hyperparameters),
                    "repeat": each.repeat,
                    "fold": each.fold,
                }
                for each in self.trials
            ],
        }

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> ArrayConfig:
        """Read the dict of a Tune trial."""
        return cls(
            name=config["name"],
            trial_ids=tuple(config["trial_ids"]),
            fused=config["fused"],
            device=config["device"],
            share=Share(config["trials_per_gpu"], config["gpus_per_trial"]),
            checkpoint=config["checkpoint"],
            trials=tuple(Trial(**trial) for trial in config["trials"]),
        )
