"""Base of data-parallel trainings in every framework: the loop over epochs, steps and exchanges."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from raygpu.records.training_progress import ControlRequest, Progress
from raygpu.search.trials import EpochResult
from raygpu.training.base import ProductionTraining
from raygpu.training.distributed.coordinator import Coordinator, Norm, RankReport
from raygpu.training.distributed.ranks import ParallelSettings, Ranks
from raygpu.training.hyperparameters import OptimizerSettings

NO_OWN_SPEED = (
    "ratios: auto: {layers} waits for the other devices within each step, so no device's own speed is known, and the"
    " shares stay as they are; raygpu balance finds better ones before a training"
)
BEGINS_ANEW = (
    "the checkpoint is within epoch {epoch} of {before} training samples, and there are {now}: the epoch begins anew;"
    " its {step} steps so far stay in the parameters, and counted by a scheduler of the experiment's own"
)
LEFT_OUT = (
    "the last {samples} training samples of epoch {epoch} are left out: over these devices they are too few for a step"
    " of their own, and the step that they would join was taken before the checkpoint"
)


class ParallelTraining(ProductionTraining, ABC):
    """One process' part of a data-parallel training; all processes make the same calls."""

    epoch = 0
    """Last epoch that has ended."""
    step = 0
    """Number of steps done in the epoch that runs."""
    evaluates_together = False
    """Whether all ranks take part in an evaluation."""
    states_are_copies = False
    """Whether the tensors of `states` are copies on the host already."""

    def __init__(
        self,
        parallel: ParallelSettings,
        ranks: Ranks,
        request: Callable[[], ControlRequest],
        settings: OptimizerSettings,
        samples_per_epoch: int,
        epochs: int,
    ) -> None:
        """Prepare the training. request: called on rank 0 before each exchange."""
        self.parallel, self.ranks, self._request = parallel, ranks, request
        self.optimizer_settings, self.samples_per_epoch, self.epochs = settings, samples_per_epoch, epochs
        self.coordinator = Coordinator(parallel, ranks)
        self.notes: list[str] = []
        """Lines for a person on differences from a training on one device."""
        self._bounds = self.coordinator.bounds(samples_per_epoch)
        self._train_s = 0.0
        self._waits_in_steps = False
        """Whether layers wait for the other devices within a step: no device's own speed is known then."""

    def advance(self) -> Progress | None:
        """Train until the next exchange, at the end of an epoch at the latest; return None once the training has
        ended."""
        if self.epoch >= self.epochs:
            return None
        started = time.perf_counter()
        self.take_steps(len(self._bounds))
        return self._exchange(time.perf_counter() - started)

    def _wait_in_steps(self, layers: str) -> None:
        """Note that the steps of this model wait for the other devices. layers: name of those that do."""
        self._waits_in_steps = True
        if self.parallel.auto_shares:
            self.notes.append(NO_OWN_SPEED.format(layers=layers))

    def _note_larger_parts(self) -> None:
        """Note parts of a batch that are larger than asked for."""
        if (line := self.coordinator.parts_line(self._bounds)) is not None:
            self.notes.append(line)

    def take_steps(self, most: int) -> None:
        """Take steps until the next exchange or the end of the epoch, `most` at most."""
        if self.step == 0:
            self._train_s = 0.0
            self._begin_epoch()
        self._use(self.optimizer_settings.in_epoch(self.epoch + 1))
        self._begin_steps()
        for start, end in self._bounds[self.step : self.step + most]:
            self._take_step(start, end, self._lr(self.step))
            self.step += 1
            if self.coordinator.due():
                break
        self._wait()

    def _lr(self, step: int) -> float:
        steps, settings = len(self._bounds), self.optimizer_settings.in_epoch(self.epoch + 1)
        return settings.lr_at(self.epoch * steps + step, steps, self.epochs)

    def _use(self, settings: OptimizerSettings) -> None:
        """Take the next steps by these settings; the learning rate comes with each step."""
        return

    def _exchange(self, wall_s: float) -> Progress:
        self._train_s += wall_s
        ended = self.step >= len(self._bounds)
        reports, norms = self._report(self._request() if self.ranks.rank == 0 else "")
        waited_s = self._take_waited() if ended else None
        began = time.perf_counter()
        validation = self._evaluate() if ended and (self.ranks.rank == 0 or self.evaluates_together) else {}
        validate_s = time.perf_counter() - began
        exchange = self.coordinator.exchange(reports, norms, wall_s, self._checksum() if ended else None)
        lr, step, result = self._lr(self.step - 1), self.step, None
        if ended:
            self.epoch, self.step = self.epoch + 1, 0
            if not exchange.are_alike:
                self._join()
            metrics = {"train/loss": exchange.loss, **self._further_metrics()}
            metrics |= {f"validation/{name}": value for name, value in validation.items()}
            result = EpochResult(self.epoch, metrics, self.samples_per_epoch, self._train_s, validate_s, waited_s)
        return Progress(
            epoch=self.epoch + (not ended),
            step=step,
            steps=len(self._bounds),
            lr=lr,
            wall_s=wall_s,
            samples=exchange.samples,
            rates=exchange.rates,
            shares=self.coordinator.shares,
            noise=exchange.noise,
            request=exchange.request,
            result=result,
            diverged=ended and not math.isfinite(exchange.loss),
        )

    def _take_waited(self) -> float | None:
        """Return the seconds that this process has waited for samples since the last call; None for data in memory."""
        return None

    def _checksum(self) -> int | None:
        """Return a checksum of this rank's copy of the model, the same on all ranks; None if there is none."""
        return None

    def _join(self) -> None:
        """Make the models of all ranks alike, which differ at the end of an epoch. All ranks call it."""
        raise NotImplementedError

    def _further_metrics(self) -> dict[str, float]:
        """Return metrics of the epoch's training beside the loss."""
        return {}

    def _rate(self, rank: int, seconds: Sequence[float]) -> float | None:
        """Return the samples/s of a rank's device alone; None if that is not known. seconds: of steps on whole
        batches."""
        return self.coordinator.shares[rank] / median(seconds) if seconds and not self._waits_in_steps else None

    def _state(self) -> dict[str, Any]:
        """Return the state of a training within an epoch, beside model, optimizer and random states."""
        return {
            "epoch": self.epoch,
            "step": self.step,
            "global_batch": self.parallel.global_batch,
            "samples": self.samples_per_epoch,
            "train_s": self._train_s,
            "ratios": self.coordinator.balancer.ratios,
        }

    def _set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from the result of `_state`; within an epoch of another number of samples, from its beginning. Raises
        ValueError within an epoch of another global batch."""
        batch = state["global_batch"]
        if state["step"] and batch != self.parallel.global_batch:
            raise ValueError(f"trained with batches of {batch}, not of {self.parallel.global_batch}")
        self.epoch, self.step = state["epoch"], state["step"]
        before, now = state.get("samples", self.samples_per_epoch), self.samples_per_epoch  # an older version has none
        if self.step and before != now:
            self.notes.append(BEGINS_ANEW.format(epoch=self.epoch + 1, before=before, now=now, step=self.step))
            self.step = 0
        if self.step >= len(self._bounds):
            self.notes.append(LEFT_OUT.format(epoch=self.epoch + 1, samples=now - self.step * batch))
        moves = self.parallel.auto_shares and not self._waits_in_steps  # those of a measurement that tells nothing stay
        if moves and len(state["ratios"]) == self.ranks.world:
            self.coordinator.balancer.ratios = list(state["ratios"])
        if self.step:
            self._train_s = state["train_s"]

    @abstractmethod
    def _begin_epoch(self) -> None:
        """Set the order of samples and the random numbers; reset the sum of losses."""

    @abstractmethod
    def _begin_steps(self) -> None:
        """Prepare to time steps; the device is idle."""

    @abstractmethod
    def _take_step(self, start: int, end: int, lr: float) -> None:
        """Take one optimizer step of all ranks, on the epoch's samples from `start` to before `end`."""

    @abstractmethod
    def _wait(self) -> None:
        """Wait until the device has finished its work."""

    @abstractmethod
    def _evaluate(self) -> dict[str, float]:
        """Return means over the validation data. Called on rank 0 alone, unless all evaluate together."""

    @abstractmethod
    def _report(self, request: ControlRequest) -> tuple[list[RankReport], list[Norm]]:
        """Return this process' reports since the last exchange, by rank, and the steps measured for the noise scale."""

    def save(self, folder: Path) -> None:
        """Write everything needed to go on from here. Rank 0 writes, and all ranks call it."""
        self.begin_save(folder)()
