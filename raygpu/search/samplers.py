"""The choice of the next trial: a list drawn up front, or Optuna in generations.

A `Sampler` knows nothing of Ray: the engines ask it for trials and tell it scores, in every mode alike.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

from raygpu.config import SweepConfig
from raygpu.errors import BadInput
from raygpu.search.space import Space, grid_trials, random_trials, trial_seed
from raygpu.search.trials import Trial


class Sampler(Protocol):
    """Source of a sweep's trials, in order. `next` returns None while it waits for scores, and after the last trial."""

    @property
    def num_trials(self) -> int:
        """Number of trials that it gives out, those so far among them."""

    @property
    def finished(self) -> bool:
        """Whether all trials have been given out."""

    def next(self) -> Trial | None:
        """Return the next trial; None while it depends on scores that are missing, and after the last one."""

    def tell(self, trial_id: str, score: float | None) -> None:
        """Take in a trial's score, or None for a trial that failed."""

    def extend(self, larger: Any) -> None:
        """Go on to as many trials as another sampler of the same search has. Raises BadInput if it has other ones."""


def sampler(config: SweepConfig, space: Space) -> Sampler:
    """Make the search that `[search]` names."""
    if config.search.algorithm == "grid":
        return DrawnTrials(grid_trials(space, config.trials, config.seed))
    assert config.trials is not None  # the schema asks for it
    if config.search.algorithm == "optuna":
        return Generations(space, config.trials, config.search.generation, config.seed, config.maximize)
    return DrawnTrials(random_trials(space, config.trials, config.seed))


class DrawnTrials:
    """A list of trials that were all drawn before the first one starts."""

    def __init__(self, trials: list[Trial]) -> None:
        self.trials = trials
        self.num_trials = len(trials)
        self._given = 0

    @property
    def finished(self) -> bool:
        """Whether all trials have been given out."""
        return self._given == self.num_trials

    def next(self) -> Trial | None:
        """Return the next trial of the list; None after the last one."""
        if self.finished:
            return None
        self._given += 1
        return self.trials[self._given - 1]

    def tell(self, trial_id: str, score: float | None) -> None:
        """Ignore the score: the trials are drawn already."""

    def extend(self, larger: DrawnTrials) -> None:
        """Append the trials that a larger draw has beyond these. Raises BadInput if it does not begin with these."""
        if larger.trials[: self.num_trials] != self.trials:
            raise BadInput(
                f"trials: with {larger.num_trials}, the space gives other trials than at the sweep's start; begin a new"
                " sweep"
            )
        self.trials, self.num_trials = larger.trials, larger.num_trials


class Generations:
    """Optuna, asked for a fixed number of trials at a time and told their scores in trial order.

    The order in which trials end does not matter, so a search repeats as long as its scores rank equally.
    """

    def __init__(self, space: Space, num_trials: int, generation: int, seed: int, maximize: bool) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.space = space
        self.num_trials = num_trials
        self.generation = generation
        self.seed = seed
        self._failed = optuna.trial.TrialState.FAIL
        self._study = optuna.create_study(
            direction="maximize" if maximize else "minimize",
            # constant_liar: the members of a generation keep away from each other.
            sampler=optuna.samplers.TPESampler(seed=seed, constant_liar=True),
        )
        self._worst = -1e300 if maximize else 1e300
        self._given = 0
        self._asked: dict[str, Any] = {}
        self._ready: list[Trial] = []
        self._scores: dict[str, float | None] = {}

    @property
    def finished(self) -> bool:
        """Whether all trials have been given out."""
        return self._given == self.num_trials

    def next(self) -> Trial | None:
        """Return the next trial; None while the generation lacks scores, and after the last trial."""
        if self.finished:
            return None
        if not self._ready:
            if len(self._scores) < len(self._asked):
                return None  # the generation is still running
            self._close_generation()
            self._open_generation()
        self._given += 1
        return self._ready.pop(0)

    def tell(self, trial_id: str, score: float | None) -> None:
        """Take in a trial's score, or None for a trial that failed."""
        if trial_id in self._asked:
            self._scores[trial_id] = score

    def extend(self, larger: Generations) -> None:
        """Ask for as many trials as another search."""
        self.num_trials = larger.num_trials

    def _open_generation(self) -> None:
        for index in range(self._given, min(self._given + self.generation, self.num_trials)):
            asked = self._study.ask()
            trial = Trial(Trial.name(index), trial_seed(self.seed, index), self._suggest(asked))
            self._asked[trial.trial_id] = asked
            self._ready.append(trial)

    def _close_generation(self) -> None:
        for trial_id, asked in self._asked.items():
            score = self._scores[trial_id]
            if score is None:
                self._study.tell(asked, state=self._failed)
            else:  # Optuna leaves a trial that is told NaN or infinity running for ever
                self._study.tell(asked, score if math.isfinite(score) else self._worst)
        self._asked.clear()
        self._scores.clear()

    def _suggest(self, asked: Any) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for parameter in self.space.parameters:
            if parameter.active(values):
                values[parameter.name] = _suggest(asked, parameter.name, parameter.kind, parameter.arguments)
        return values


def _suggest(asked: Any, name: str, kind: str, a: tuple[Any, ...]) -> Any:
    """Draw one parameter by Optuna, with the meaning that Ray Tune gives its distribution."""
    match kind:
        case "constant":
            return a[0]
        case "choice":  # by place, since Optuna's categories must be scalars
            return a[asked.suggest_categorical(name, list(range(len(a))))]
        case "uniform" | "loguniform":
            return asked.suggest_float(name, a[0], a[1], log=kind == "loguniform")
        case "quniform":
            return asked.suggest_float(name, a[0], a[1], step=a[2])
        case "qloguniform":
            return min(max(round(asked.suggest_float(name, a[0], a[1], log=True) / a[2]) * a[2], a[0]), a[1])
        case "randint" | "lograndint":  # the upper bound is excluded
            return asked.suggest_int(name, a[0], a[1] - 1, log=kind == "lograndint")
        case "qrandint":
            return asked.suggest_int(name, a[0], a[1], step=a[2])
        case "qlograndint":
            return min(max(round(asked.suggest_int(name, a[0], a[1], log=True) / a[2]) * a[2], a[0]), a[1])
    raise AssertionError(kind)
