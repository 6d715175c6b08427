"""The choice of the next trial: a list drawn up front, or one of Optuna's samplers, in generations or trial by trial.

A `Sampler` knows nothing of Ray: the engines ask it for trials and tell it scores, in every mode alike.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from raygpu.config import SweepConfig
from raygpu.config.written_values import as_written
from raygpu.errors import BadInput
from raygpu.search.generations import Generations
from raygpu.search.optuna_samplers import enqueued, optuna_sampler, require, suggest_all
from raygpu.search.quasi_random import quasi_random_trials
from raygpu.search.scoring import LARGEST
from raygpu.search.space import Space, grid_trials, random_trials, trial_seed
from raygpu.search.starting_points import starting_points
from raygpu.search.trials import Trial


class Sampler(Protocol):
    """Source of a sweep's trials, in order. `next` returns None while it waits for scores, and after the last trial."""

    @property
    def num_trials(self) -> int:
        """Number of trials that it gives out, those so far among them."""

    @property
    def finished(self) -> bool:
        """Whether all trials have been given out."""

    @property
    def draws_singly(self) -> bool:
        """Whether each trial is drawn by all results so far: the later it is asked for, the more it knows."""

    def end_generations(self) -> None:
        """Draw each trial by all results so far, if the search learns."""

    def next(self) -> Trial | None:
        """Return the next trial; None while it depends on scores that are missing, and after the last one."""

    def tell(self, trial_id: str, score: float | None, further: Sequence[float | None] = ()) -> None:
        """Take in a trial's score, or None for a trial that failed. further: values of the further metrics."""

    def extend(self, larger: Any) -> None:
        """Go on to as many trials as another sampler of the same search has. Raises BadInput if it has other ones."""


def sampler(config: SweepConfig, space: Space, begun: int | None = None) -> Sampler:
    """Make the search that `[search]` names, in generations if it learns.

    begun: number of sets with which a sweep began that goes on; None for a new one. Raises BadInput for a space or a
    starting point that it cannot take.
    """
    algorithm, seed, num_sets = config.search.algorithm, config.seed, config.num_sets
    starts = starting_points(space, config.start, num_sets)
    if algorithm == "grid":
        return DrawnTrials(grid_trials(space, num_sets, seed, starts, begun))
    assert num_sets is not None
    if (generations := Generations.of(config, in_arrays=True)) is not None:
        maximize = [config.maximize, *(more for _, more in config.further_metrics)]
        require(algorithm, space, several=len(maximize) > 1)
        return OptunaSampler(space, generations, seed, maximize, algorithm=algorithm, starts=starts)
    draw = quasi_random_trials if algorithm == "qmc" else random_trials
    return DrawnTrials(draw(space, num_sets, seed, starts))


class DrawnTrials:
    """A list of trials that were all drawn before the first one starts."""

    draws_singly = False

    def __init__(self, trials: list[Trial]) -> None:
        self.trials = trials
        self.num_trials = len(trials)
        self._given = 0
        self._pickled: bytes | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Tune saves a search whenever a trial ends, and the trials stay the same.
        self._pickled = self._pickled or pickle.dumps(self.trials)
        return {"_pickled": self._pickled, "num_trials": self.num_trials, "_given": self._given}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, trials=pickle.loads(state["_pickled"]))

    @property
    def finished(self) -> bool:
        """Whether all trials have been given out."""
        return self._given >= self.num_trials

    def next(self) -> Trial | None:
        """Return the next trial of the list; None after the last one."""
        if self.finished:
            return None
        self._given += 1
        return self.trials[self._given - 1]

    def end_generations(self) -> None:
        """Do nothing: the trials are drawn already."""

    def tell(self, trial_id: str, score: float | None, further: Sequence[float | None] = ()) -> None:
        """Ignore the score: the trials are drawn already."""

    def extend(self, larger: DrawnTrials) -> None:
        """Take a larger draw that begins with these trials. Raises BadInput if it does not: workers have the trials of
        the larger draw, by their ids."""
        if list(map(_identity, larger.trials[: self.num_trials])) != list(map(_identity, self.trials)):
            raise BadInput(
                f"trials: with {larger.num_trials}, the space gives other trials than at the sweep's start; begin a new"
                " sweep"
            )
        self.trials, self.num_trials, self._pickled = larger.trials, larger.num_trials, None


def _identity(trial: Trial) -> str:
    """Return text that two trials have in common if they are the same; hyper-parameters are as a file has them, where
    NaN is equal to itself."""
    return repr(replace(trial, hyperparameters={})) + repr(sorted(as_written(trial.hyperparameters).items()))


class OptunaSampler:
    """Optuna, asked for a generation of trials at a time and told their scores in trial order.

    The order in which trials end does not matter, so a search repeats as long as its scores rank equally. Without
    generations, it is told what has ended whenever it is asked for one more trial.
    """

    def __init__(
        self,
        space: Space,
        generations: Generations,
        seed: int,
        maximize: Sequence[bool],
        *,
        algorithm: str = "tpe",
        starts: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Begin a search.

        maximize: of each metric, whether more is better. algorithm: name of one of Optuna's samplers. starts: values of
        the first trials; the sampler draws what one leaves open.
        """
        import optuna

        self.space = space
        self.generations: Generations | None = generations
        self.num_trials = generations.num_sets
        self.seed = seed
        self._failed = optuna.trial.TrialState.FAIL
        chosen = optuna_sampler(algorithm, space, seed=seed, generation=generations.first, several=len(maximize) > 1)
        self._study = optuna.create_study(
            directions=["maximize" if more else "minimize" for more in maximize], sampler=chosen
        )
        for start in starts:
            self._study.enqueue_trial(enqueued(space, start))
        self._maximize = maximize
        self._fits_values = algorithm == "gp"
        """Whether the sampler fits a function to the scores themselves, rather than to their order."""
        self._ranks_failed = algorithm in ("cmaes", "nsgaii")
        """Whether a trial that failed counts as the worst: CMA-ES and NSGA-II learn from whole generations alone."""
        self._given = 0
        self._asked: dict[str, Any] = {}
        self._ready: list[Trial] = []
        self._scores: dict[str, float | None] = {}
        self._further: dict[str, Sequence[float | None]] = {}
        self._without_score: dict[str, Any] = {}
        """Trials that count for nothing, as Optuna was told that they failed, by id: a later score of one counts."""

    @property
    def draws_singly(self) -> bool:
        """Whether each trial is drawn by all results so far."""
        return self.generations is None

    @property
    def finished(self) -> bool:
        """Whether all trials have been given out."""
        return self._given >= self.num_trials

    def next(self) -> Trial | None:
        """Return the next trial; None while the generation lacks scores, and after the last trial."""
        if self.finished:
            return None
        if not self._ready:
            if self.generations is not None and len(self._scores) < len(self._asked):
                return None  # the generation is still running
            self._learn()
            self._ask()
        self._given += 1
        return self._ready.pop(0)

    def tell(self, trial_id: str, score: float | None, further: Sequence[float | None] = ()) -> None:
        """Take in a trial's score, or None for a trial that failed. further: values of the further metrics."""
        if trial_id in self._asked:
            self._scores[trial_id] = score
            self._further[trial_id] = further
        elif trial_id in self._without_score and (values := self._values(score, further)) is not None:
            from optuna.trial import create_trial

            failed = self._without_score.pop(trial_id)
            self._study.add_trial(create_trial(params=failed.params, distributions=failed.distributions, values=values))

    def end_generations(self) -> None:
        """Draw each trial by all results so far from now on."""
        self.generations = None

    def extend(self, larger: OptunaSampler) -> None:
        """Ask for as many trials as another search, in its generations."""
        self.generations, self.num_trials = larger.generations, larger.num_trials

    def _ask(self) -> None:
        """Draw a generation, or one trial."""
        end = self._given + 1
        if self.generations is not None:
            end = self.generations.end(self._given)
            if self._given not in self.generations.starts:  # the rest of one that the end of a shorter search had cut
                end = self.generations.end(end)
        for index in range(self._given, end):
            asked = self._study.ask()
            trial = Trial(Trial.name(index), trial_seed(self.seed, index), suggest_all(self.space, asked))
            self._asked[trial.trial_id] = asked
            self._ready.append(trial)

    def _learn(self) -> None:
        """Tell Optuna the scores of the trials that have ended, in trial order."""
        for trial_id in [name for name in self._asked if name in self._scores]:
            values = self._values(self._scores.pop(trial_id), self._further.pop(trial_id))
            asked = self._asked.pop(trial_id)
            if values is None and self._ranks_failed:
                values = self._worst()
            elif values is None:
                self._without_score[trial_id] = asked
            self._study.tell(asked, values, state=self._failed if values is None else None)

    def _values(self, score: float | None, further: Sequence[float | None]) -> list[float] | None:
        """Return what Optuna is told; None for a trial that failed. Optuna leaves a trial that is told NaN or infinity
        running for ever."""
        if score is None:
            return None
        if not math.isfinite(score):
            return self._worst()
        if len(further) != len(self._maximize) - 1:
            raise ValueError(
                f"further: read {len(further)} values; the search has {len(self._maximize) - 1} further metrics"
            )
        further_values = [value for value in further if value is not None]
        return [score, *further_values] if len(further_values) == len(further) else None

    def _worst(self) -> list[float] | None:
        """Return the values of a trial that diverged: below all others, or for a sampler that fits a function to them
        as bad as the worst so far; None if there is no other yet."""
        if not self._fits_values:
            return [-LARGEST if more else LARGEST for more in self._maximize]
        trial_values = [trial.values for trial in self._study.get_trials(deepcopy=False) if trial.values is not None]
        if not trial_values:
            return None
        columns = zip(*trial_values, strict=True)
        return [min(each) if more else max(each) for each, more in zip(columns, self._maximize, strict=True)]
