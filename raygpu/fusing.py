"""Which trials of a sweep are fused: groups of one signature that pass a dry run; the others are trained alone."""

from __future__ import annotations

from collections.abc import Sequence

from raygpu.config import Precision
from raygpu.errors import one_line
from raygpu.experiment import Experiment, Splits
from raygpu.grouping import Group, Signature, Signatures, representatives
from raygpu.trials import Trial

ITS_OWN = "a signature of its own"


class Fuser:
    """Groups trials, and remembers what it found: Optuna's trials come a generation at a time."""

    def __init__(self, experiment: Experiment, splits: Splits, precision: Precision = "float32") -> None:
        from raygpu.training import fusion

        self._fusion = fusion
        self._experiment = experiment
        self._splits = splits
        self._precision = precision
        self._signatures = Signatures(lambda trial: fusion.names_read(experiment, trial, splits))
        self._obstacles: dict[tuple[tuple[str, str], ...], str | None] = {}

    def groups(self, trials: Sequence[Trial]) -> list[Group]:
        """The trials in groups, in the order in which each group's first one comes."""
        found: dict[Signature, Group] = {}
        faulty: list[Group] = []
        for trial in trials:
            try:
                self._fusion.check(trial)
                signature = self._signatures.of(trial)
            except Exception as error:  # noqa: BLE001 - the user's code: the trial shows it as its own result
                faulty.append(Group(Signature(()), [trial], one_line(error)))
                continue
            found.setdefault(signature, Group(signature)).trials.append(trial)
        for group in found.values():
            group.reason = self._obstacle(group)
        return [*found.values(), *faulty]

    def _obstacle(self, group: Group) -> str | None:
        if len(group.trials) == 1:
            return ITS_OWN
        values = group.signature.values
        # The batch size changes no operator, and each optimizer is tested against torch.optim's.
        key = tuple(value for value in values if value[0] not in self._fusion.READ_BY_RAYGPU)
        if key not in self._obstacles:
            chosen = representatives(group.trials, group.signature)
            self._obstacles[key] = self._fusion.obstacle(self._experiment, self._splits, chosen, self._precision)
        return self._obstacles[key]
