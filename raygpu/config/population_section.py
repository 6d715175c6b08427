"""The table `[population]` of a sweep's file: population based training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field, field_validator

from raygpu.config.sections import Section

CHANGEABLE = ("lr", "momentum", "weight_decay", "clip_norm", "eps", "betas")
"""Hyper-parameters that an optimizer reads at every step, so that they may change while a trial trains."""
OF_RATE = ("lr", "schedule", "warmup_epochs", "step_epochs", "gamma")
"""Hyper-parameters of the learning rate, which every training computes outside its traced or compiled step."""
OF_STEPS = (*CHANGEABLE, *OF_RATE[1:], "nesterov", "ema_decay")
"""Hyper-parameters that shape an optimizer's steps alone: a trial takes them over together with another's parameters.
"""


class PopulationSection(Section):
    """Population based training: at intervals, the worst trials take over the best ones' parameters, and go on with
    changed hyper-parameters."""

    interval: Annotated[int, Field(ge=1)] | None = None
    """Epochs between two comparisons of the trials. Default: no population; every trial keeps its values."""
    quantile: Annotated[float, Field(gt=0, le=0.5)] = 0.25
    """Share of the trials that takes over another's parameters at each interval, and share of those that give them."""
    resample: Annotated[float, Field(ge=0, le=1)] = 0.25
    """Probability that a new value is drawn from [space]; otherwise it is the old one times 1.2 or 0.8, or the next one
    of a list."""
    burn_in: Annotated[int, Field(ge=0)] = 0
    """No trial is changed before this many epochs."""
    change: str = "auto"
    """Hyper-parameters that may change: auto (those of [space] that an optimizer reads at every step, as lr and
    momentum), or a list of them; as a flag by commas."""

    @field_validator("change", mode="before")
    @classmethod
    def _names(cls, value: Any) -> str:
        names = value if isinstance(value, list | tuple) else str(value).split(",")
        words = [str(name).strip() for name in names]
        if words == ["auto"]:
            return "auto"
        if not words or (unknown := [word for word in words if word not in CHANGEABLE]):
            first = f"{unknown[0]!r} cannot change while a trial trains; " if words else ""
            raise ValueError(f"{first}allowed: auto, or some of {', '.join(CHANGEABLE)}")
        return ",".join(dict.fromkeys(words))

    @property
    def chosen(self) -> tuple[str, ...] | None:
        """Names of the hyper-parameters that may change; None for auto."""
        return None if self.change == "auto" else tuple(self.change.split(","))

    def epochs(self, last: int) -> list[int]:
        """Return the epochs after which trials are compared, in trainings of `last` epochs.

        The rule of Ray Tune's PopulationBasedTraining: the first one is the interval or the burn-in, whichever is
        later; nothing happens after the last epoch.
        """
        if self.interval is None:
            return []
        return list(range(max(self.interval, self.burn_in), last, self.interval))


def require_fitting(
    section: PopulationSection,
    epochs: int | None,
    stopping: str,
    search: str,
    in_parts: bool,
    *,
    is_script: bool,
    per_set: int,
) -> None:
    """Raise ValueError for a population that does not suit the rest of a sweep's configuration.

    epochs: of a trial. stopping, search: algorithms. in_parts: whether the search waits for scores before it draws on.
    per_set: trainings of each set of hyper-parameters.
    """
    if section.interval is None:
        if section != PopulationSection():
            raise ValueError("population: interval is not given: the epochs between two comparisons of the trials")
        return
    if is_script:
        raise ValueError("population: a script keeps its parameters to itself; a TorchExperiment is wanted")
    if per_set > 1:
        raise ValueError(
            "population: repeats and folds train one set of hyper-parameters several times, and a population's trials"
            " have none of their own; leave one of the two out"
        )
    if epochs is None or not section.epochs(epochs):
        raise ValueError(
            f"population.interval: read {section.interval}, and burn_in {section.burn_in}: no comparison before the"
            f" last epoch, epochs = {epochs}"
        )
    if stopping != "none":
        raise ValueError(
            f"stopping: read {stopping!r} beside a population, whose worst trials go on with the best ones' parameters;"
            ' stopping.algorithm = "none" without patience is wanted'
        )
    if in_parts:
        raise ValueError(
            f"search.algorithm: read {search!r}, which waits for scores before it draws on; a population needs all of"
            " its trials at once: random, qmc or grid"
        )


def require_rising(changes: Sequence[Mapping[str, Any]]) -> None:
    """Raise ValueError for changes of hyper-parameters by epoch that a training cannot carry out."""
    before = 1
    for change in changes:
        epoch = change.get("epoch")
        if not isinstance(epoch, int) or isinstance(epoch, bool) or epoch <= before:
            raise ValueError(f"epoch: read {epoch!r}; a whole number above {before} is wanted, in rising order")
        if unknown := [name for name in change if name not in ("epoch", *OF_STEPS)]:
            raise ValueError(f"{unknown[0]} cannot change in a training; allowed: {', '.join(OF_STEPS)}")
        before = epoch
