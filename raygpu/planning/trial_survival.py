"""The share of a sweep's trials that train past each epoch: by the stopping rule, and by the trials so far. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass

WEIGHT = 6.0
"""Weight, in trials, of the assumption that trials go on at an epoch at which no stopping rule acts."""
RULE_WEIGHT = 20.0
"""Weight, in trials, of the share that the stopping rule is expected to end. It is large, since a rule that ranks
trials ends its share of them whatever their scores are: survivors among the first few are mostly chance."""


@dataclass(frozen=True, slots=True)
class Survival:
    """Probability by number of epochs that a trial trains more of them."""

    passed: tuple[float, ...]
    """P(more than e epochs) for e = 0, 1, 2 ...; it falls, and the last one is 0."""

    @classmethod
    def estimate(
        cls,
        most: int | None,
        ended: Mapping[int, int],
        running: Mapping[int, int],
        expected: Mapping[int, float] | None = None,
    ) -> Survival | None:
        """Estimate from the trials so far (Kaplan and Meier, 1958); None if the number of epochs is not known at all.

        most: the last epoch; None if only the experiment knows it. ended, running: number of trials by epochs trained.
        expected: share of trials that the stopping rule ends, by epoch.
        """
        last = most if most is not None else max(ended, default=0)
        if last <= 0:
            return None
        goes_on = {epochs: ended.get(epochs, 0) + running.get(epochs, 0) for epochs in {*ended, *running}}
        further = sum(count for epochs, count in goes_on.items() if epochs > 0)
        alive, passed = 1.0, []
        for epoch in range(last):
            stops = ended.get(epoch, 0)
            # A running trial at this epoch goes on: the rule has answered. One at epoch 0 has not begun.
            at_risk = stops + further
            prior = (expected or {}).get(epoch, 0.0)
            weight = 0.0 if most is None else RULE_WEIGHT if prior else WEIGHT
            if at_risk + weight > 0:
                alive *= 1 - (stops + weight * prior) / (at_risk + weight)
            passed.append(alive)
            further -= ended.get(epoch + 1, 0) + (running.get(epoch, 0) if epoch > 0 else 0)
        return cls((*passed, 0.0))

    def share(self, epoch: int, after: int = 0) -> float:
        """Return the probability of more than `epoch` epochs, for a trial that goes on after `after` of them."""
        if epoch >= len(self.passed):
            return 0.0
        probability = self._known(after)
        return min(1.0, self.passed[epoch] / probability) if probability > 0 else 0.0

    def draw(self, part: float, after: int = 0) -> int:
        """Return the further epochs, at least one, of the trial at this part (from 0 to 1) of all that go on after
        `after` epochs."""
        bound = (1 - part) * self._known(after)
        return max(1, bisect_right(self.passed, -bound, lo=min(after, len(self.passed)), key=lambda p: -p) - after)

    def _known(self, after: int) -> float:
        """Return the probability that is certain for a trial that goes on after `after` epochs."""
        if after <= 0:
            return 1.0
        return self.passed[after] if after < len(self.passed) else 0.0
