"""Tune searcher of every mode: it groups a `Sampler`'s trials into arrays, and chooses their device type and share."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ray import cloudpickle
from ray.tune.search import Searcher

from raygpu.engines.tune.array_config import ArrayConfig
from raygpu.engines.tune.device_slots import DeviceSlots
from raygpu.engines.tune.live_sweep import LiveSweep
from raygpu.engines.tune.saved_state import moved
from raygpu.planning.gpu_shares import ArrayPlan, Plan, Share
from raygpu.records import slurm_job
from raygpu.search.repeats import Repeats
from raygpu.search.samplers import Sampler
from raygpu.search.signature import array_members, even
from raygpu.search.trials import Trial


@dataclass(frozen=True, slots=True)
class ArrayRequest:
    """Trials to train in one Tune trial: an array, or a trial alone."""

    trial_ids: tuple[str, ...]
    fused: bool
    device: str | None = None
    """Device type for the next run of a trial that ran out of memory alone; None to choose one."""
    share: Share | None = None
    """Enlarged share for that run; None for the usual one."""
    checkpoint: str | None = None
    """Checkpoint from which that run goes on; None for none."""


class ArraySearcher(Searcher):
    """Tune searcher that suggests arrays, and trials that are trained alone.

    live: objects of this process, which group the trials in fused mode. plan: number of arrays that run at once, and
    their size. device_slots: of its devices. drawn: whether every trial was known at the start, so that its
    hyper-parameters lie in the object store.
    An array that fails is suggested again as two halves, until a single trial fails, or until the failures show that
    not just a few trials are at fault.
    """

    def __init__(
        self, sampler: Sampler, live: LiveSweep, plan: Plan | ArrayPlan, device_slots: DeviceSlots, *, drawn: bool
    ) -> None:
        super().__init__()
        self.sampler = sampler
        self.live = live
        self.plan = plan
        self.device_slots = device_slots
        self.drawn = drawn
        self.max_concurrent = math.inf
        self.waiting: list[ArrayRequest] = []
        self.given: dict[str, ArrayRequest] = {}
        """Requests under way, by Tune's trial id."""
        self.failed: list[str] = []
        self.faults: dict[str, list[int]] = {}
        """Number of failed arrays and size of the first one, by the last line of their error."""
        self.retried_by: str | None = None
        """Slurm's number of the job that has tried failed trials again, at one of its starts."""
        self._num_given = 0

    def set_search_properties(self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any) -> bool:
        """Accept Tune's metric, mode and config without using them: the sampler has its own."""
        return True

    def set_max_concurrency(self, max_concurrent: int) -> bool:
        """Limit the Tune trials at once, staged ones included; a `ConcurrencyLimiter` then keeps no list of its own."""
        self.max_concurrent = max_concurrent
        return True

    def suggest(self, trial_id: str) -> Any:
        """Return the next array's or trial's config; None to wait, FINISHED without more trials."""
        if self.live.stopping and self.given:
            return None  # Tune is about to stop; without any trial under way it would wait here for the next one
        if len(self.given) >= self.max_concurrent:
            return None
        if not self.waiting:
            if self.sampler.draws_singly and not self._has_free_slot():
                return None
            self._draw()
        if not self.waiting:
            return Searcher.FINISHED if self.sampler.finished and not self.given else None
        request = self.waiting[0]
        device_share = self._place(request)
        if device_share is None:
            return None
        device, share = device_share
        self.given[trial_id] = self.waiting.pop(0)
        self.device_slots.take(trial_id, device, share.part)
        self._num_given += 1
        config = ArrayConfig(
            name=f"a{self._num_given - 1:04d}" if request.fused else request.trial_ids[0],
            trial_ids=request.trial_ids,
            fused=request.fused,
            device=device,
            share=share,
            checkpoint=request.checkpoint,
            trials=() if self.drawn else tuple(self.live.trials[name] for name in request.trial_ids),
        )
        return config.as_dict()

    def _place(self, request: ArrayRequest) -> tuple[str, Share] | None:
        """Return the device type and the share for a request; None if it has to wait for a slot."""
        if request.device is not None and request.share is not None:
            return (request.device, request.share) if self.device_slots.has_room(request.share.part) else None
        if request.fused:
            assert isinstance(self.plan, ArrayPlan)
            shares = {part.device: part.share for part in self.plan.arrays.parts}
            fitting = self.device_slots.devices
        else:
            trial = self.live.trials[request.trial_ids[0]]
            shares, fitting = self.live.shares.of(trial), self.live.shares.fitting(trial)
        # The last trials go where a slot is free by then, and so do those that are drawn for a free slot.
        backlog = len(self.waiting) + self.sampler.num_trials - len(self.live.trials)
        is_drawn_for_a_slot = self.sampler.draws_singly and len(fitting) == len(self.device_slots.devices)
        staging = backlog > self.device_slots.slots and not is_drawn_for_a_slot
        parts = {device: share.part for device, share in shares.items()}
        device = self.device_slots.choose(fitting, parts, staging=staging)
        return None if device is None else (device, shares[device])

    @property
    def has_more(self) -> bool:
        """Whether it may suggest something further before what is under way has ended."""
        draws = self.sampler.draws_singly or not self.live.config.search.learns
        return bool(self.waiting) or (draws and not self.sampler.finished)

    def _has_free_slot(self) -> bool:
        """Return whether a trial with the plan's share would run at once."""
        assert isinstance(self.plan, Plan)  # arrays are drawn in generations
        return self.device_slots.is_any_free({part.device: part.share.part for part in self.plan.parts})

    def _draw(self) -> None:
        """Draw the next trial; in fused mode all that the sampler gives now, ordered as arrays and as trials alone."""
        drawn: list[Trial] = []
        while (self.live.grouper is not None or not drawn) and (trial := self.sampler.next()) is not None:
            drawn.append(trial)
        self._count()
        self.live.trials.update({trial.trial_id: trial for trial in drawn})
        self.waiting = self._requests(drawn)

    def _requests(self, trials: Sequence[Trial]) -> list[ArrayRequest]:
        """Return requests for these trials: in fused mode the arrays, the widest first, and then the trials alone.

        A lone one beside the arrays of a generation becomes an array too, if not more than one on each of their slots:
        for a trial with another share of the GPU, the arrays' worker would end, and start anew for the next generation.
        """
        if self.live.grouper is None:
            return [ArrayRequest((trial.trial_id,), fused=False) for trial in trials]
        assert isinstance(self.plan, ArrayPlan)
        groups = self.live.grouper.groups(trials)
        slots = self.plan.arrays.slots
        lone = [] if self.drawn else [group for group in groups if self.live.grouper.may_be_array(group)]
        if len(lone) <= slots and any(group.reason is None for group in groups):
            groups = [replace(group, reason=None) if group in lone else group for group in groups]
        arrays = array_members(groups, slots, self.plan.members)
        requests = [ArrayRequest(names, fused=True) for names in arrays]
        alone = [trial.trial_id for group in groups if group.reason is not None for trial in group.trials]
        return [*requests, *(ArrayRequest((name,), fused=False) for name in sorted(alone, key=Trial.order))]

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Report the scores of ended members to the sampler, and request the remaining members again."""
        request = self.given.get(trial_id)
        if request is None:
            return  # it ran once more: a snapshot's files were of two moments
        rest = self._ended(trial_id, request, lost=error)
        if not rest:
            return
        if again := self._requests_after(trial_id, request, rest, result or {}, lost=error):
            self.waiting = [*again, *self.waiting]
        else:
            self.failed += rest
            for name in rest:
                self._tell(name, None)

    def _requests_after(
        self, trial_id: str, request: ArrayRequest, rest: Sequence[str], result: Mapping[str, Any], *, lost: bool
    ) -> list[ArrayRequest]:
        """Return requests for the members that have not ended with their Tune trial; none if they have failed.

        lost: whether the worker was lost, or ended because a limit of time was exceeded.
        """
        overdue, interrupted = self.live.overdue.get(trial_id), bool(self.live.interrupts.count)
        if lost and overdue is None and not interrupted:
            self.live.count_loss(rest[0])
            if self.live.may_go_on(rest[0]):
                self.live.given_again.add(trial_id)
                return [self._from_checkpoint(request, rest)]
        if (larger := self.live.enlarged.get(rest[0])) is not None:
            return [ArrayRequest(request.trial_ids, False, *larger)]
        if result.get("not_as_alone") is not None:
            self.waiting = [part for waiting in self.waiting for part in self._allowed(waiting)]
            return self._allowed(request)
        if interrupted and lost:  # the callback does not call it failed, either
            return [self._from_checkpoint(request, rest)]
        if request.fused and not (overdue is not None and overdue.ends_members):
            reason = overdue.text if overdue is not None else result.get("failure") or "the worker was lost"
            return self._again(rest, reason)
        return [replace(request, trial_ids=tuple(rest), checkpoint=None)] if interrupted else []

    def take_back(self, under_way: Mapping[str, ArrayConfig]) -> None:
        """Agree with Tune on what is under way: a snapshot's files were of two moments.

        What this search alone has under way is requested again; what Tune alone has under way is not requested once
        more. under_way: what Tune has under way, by its ids.
        """
        for trial_id in self.given.keys() - under_way.keys():
            request = self.given[trial_id]
            if rest := self._ended(trial_id, request, lost=False):
                self.waiting.insert(0, replace(request, trial_ids=tuple(rest), checkpoint=None))
        for trial_id in under_way.keys() - self.given.keys():
            config = under_way[trial_id]
            waiting = [request for request in self.waiting if not set(request.trial_ids) <= set(config.trial_ids)]
            if len(waiting) < len(self.waiting):
                self.waiting = waiting
                self.given[trial_id] = self._here(
                    ArrayRequest(config.trial_ids, config.fused, checkpoint=config.checkpoint)
                )
                self.device_slots.take(trial_id, config.device, config.share.part)

    def _ended(self, trial_id: str, request: ArrayRequest, *, lost: bool) -> list[str]:
        """Take a request as no longer under way, and report the scores of ended members; return the other members.

        lost: whether its worker was lost: the end of a trial alone counts once its checkpoint is saved.
        """
        del self.given[trial_id]
        self.device_slots.give_back(trial_id)
        rest = [name for name in request.trial_ids if self._is_left(name) or (lost and not request.fused)]
        for name in request.trial_ids:
            if name not in rest:
                self._tell(name, self.live.records.by_id[name].score)
        return rest

    def _from_checkpoint(self, request: ArrayRequest, left: Sequence[str]) -> ArrayRequest:
        """Return the request for the members that are left, from the last checkpoint, if there is one."""
        checkpoint = self.live.checkpoints.arrays.get(left[0], request.checkpoint)  # ended members are in it, too
        names = request.trial_ids if checkpoint is not None else tuple(left)
        return replace(request, trial_ids=names, checkpoint=checkpoint)

    def _tell(self, name: str, score: float | None) -> None:
        """Tell the sampler a trial's score, None of a failed one; it may leave out other trials of the same set."""
        if not isinstance(self.sampler, Repeats):
            further = self.live.records.by_id[name].further if score is not None else ()
            return self.sampler.tell(name, score, further)
        status, _ = self.live.ending.get(name, (self.live.records.by_id[name].status, None))
        self.sampler.tell(name, score, stopped=score is not None and status == "stopped")
        self._count()

    def _count(self) -> None:
        if isinstance(self.sampler, Repeats):
            self.live.records.leave_out(self.sampler.num_trials, self.sampler.saved)

    def _allowed(self, request: ArrayRequest) -> list[ArrayRequest]:
        """Return the request itself, or one request for each trial of an array whose signature cannot be fused."""
        if (
            request.fused
            and self.live.grouper is not None
            and self.live.grouper.refused(self.live.trials[request.trial_ids[0]])
        ):
            return [ArrayRequest((name,), fused=False) for name in request.trial_ids]
        return [request]

    def _again(self, left: Sequence[str], failure: str) -> list[ArrayRequest]:
        """Return requests for the rest of an array that failed: two halves, or trials alone.

        Trials are ordered alone if more arrays failed with this error than one bad trial can cause.
        """
        if len(left) == 1:
            return halves(left)
        counts = self.faults.setdefault(failure.strip().rpartition("\n")[2], [0, len(left)])
        counts[0] += 1
        if counts[0] > 1 + math.ceil(math.log2(counts[1])):
            return [ArrayRequest((name,), fused=False) for name in left]
        return halves(left)

    def _here(self, request: ArrayRequest) -> ArrayRequest:
        """Return a request of an earlier start with its checkpoint as it lies now."""
        if request.checkpoint is None:
            return request
        return replace(request, checkpoint=moved(request.checkpoint, self.live.run_directory.tune))

    def _is_left(self, name: str) -> bool:
        return not self.live.is_complete(name) and name not in self.live.ending

    def save(self, checkpoint_path: str) -> None:
        """Write the sampler, the requests and the drawn trials to a file for a resumed sweep."""
        names = ("sampler", "waiting", "given", "failed", "faults", "retried_by", "_num_given")
        state = {name: getattr(self, name) for name in names}
        state["trials"] = self.live.trials
        state["alone"] = self.live.grouper.alone if self.live.grouper is not None else {}
        state["shares"], state["device_slots"] = self.live.shares.state(), self.device_slots.state()
        Path(checkpoint_path).write_bytes(cloudpickle.dumps(state))

    def restore(self, checkpoint_path: str) -> None:
        """Restore the saved state of an earlier start; the sampler goes on with as many trials as are wanted now.

        Trials that failed are suggested again where the sweep has not ended, or where it is to retry them: in a Slurm
        job, whose starts all have the same flags, at the first one whose state is saved.
        """
        self.live.take_back = self.take_back
        state = cloudpickle.loads(Path(checkpoint_path).read_bytes())
        self.live.trials.update(state.pop("trials"))
        alone = state.pop("alone")
        if self.live.grouper is not None:
            self.live.grouper.alone.update(alone)
        self.live.shares.restore(state.pop("shares"))
        self.device_slots.restore(state.pop("device_slots"))
        for name, value in state.items():
            setattr(self, name, value)
        self.waiting = [self._here(request) for request in self.waiting]
        self.given = {trial_id: self._here(request) for trial_id, request in self.given.items()}
        has_ended = self.sampler.finished and not self.waiting and not self.given
        self.sampler.extend(self.live.sampler)
        self._count()
        job = slurm_job.number_of(self.live.run_directory.path)
        has_retried = job is not None and job == self.retried_by
        if self.live.retry_failed and not has_retried:  # what made them fail may be mended: in arrays where they fit
            again, self.retried_by = self._requests([self.live.trials[name] for name in self.failed]), job
        elif not has_ended:
            again = [ArrayRequest((name,), fused=False) for name in self.failed]
        else:
            return
        if isinstance(self.sampler, Repeats):
            self.sampler.give_again(self.failed)
        self.waiting, self.failed = [*again, *self.waiting], []


def halves(trial_ids: Sequence[str]) -> list[ArrayRequest]:
    """Return requests for two halves of an array that failed; a half of one trial is trained alone."""
    if len(trial_ids) == 1:
        return [ArrayRequest(tuple(trial_ids), fused=False)]
    return [
        ArrayRequest(tuple(trial_ids[part.start : part.stop]), fused=len(part) > 1) for part in even(len(trial_ids), 2)
    ]
