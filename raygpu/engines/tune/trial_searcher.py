"""Tune searcher of process mode: it takes trials from a `Sampler` and chooses their device type and share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ray import cloudpickle
from ray.tune.search import Searcher

from raygpu.engines.tune.device_slots import DeviceSlots
from raygpu.engines.tune.trial_callback import LiveSweep
from raygpu.engines.tune.trial_trainable import tune_config, with_share
from raygpu.planning.gpu_shares import Share
from raygpu.search.samplers import Sampler
from raygpu.search.trials import Trial


class TrialSearcher(Searcher):
    """Tune searcher that suggests the sampler's trials, each for a device type, and reports scores to the sampler."""

    def __init__(self, sampler: Sampler, live: LiveSweep, places: DeviceSlots) -> None:
        super().__init__()
        self.sampler = sampler
        self.live = live
        self.places = places
        self.given: dict[str, Trial] = {}
        """Suggested trials, by Tune's trial id."""
        self.failed: list[Trial] = []
        self.again: list[Trial] = []
        """Trials to suggest first: those that failed before a resume, and one that waits for a device."""
        self.enlarged: list[tuple[Trial, str, Share, str | None]] = []
        """Trials that ran out of memory, with the device type, share and checkpoint for their next run."""
        self.running: set[str] = set()
        """Tune's ids of the running trials."""

    def set_search_properties(self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any) -> bool:
        """Accept Tune's metric, mode and config without using them: the sampler has its own."""
        return True

    def suggest(self, trial_id: str) -> Any:
        """Return the next trial's config with a device type and a share; None to wait, FINISHED without more trials."""
        checkpoint = None
        if self.enlarged:
            if not self.places.has_room(self.enlarged[0][2].part):
                return None
            trial, device, share, checkpoint = self.enlarged.pop(0)
        else:
            drawn = self.again.pop(0) if self.again else self.sampler.next()
            if drawn is None:  # one that runs may yet ask for a larger share
                return Searcher.FINISHED if self.sampler.finished and not self.running else None
            shares = self.live.shares
            chosen = self.places.choose(shares.fitting(drawn), shares.parts(drawn), staging=self._many_left())
            if chosen is None:
                self.again.insert(0, drawn)
                return None
            trial, device, share = drawn, chosen, shares.of(drawn, chosen)
        self.given[trial_id] = trial
        self.running.add(trial_id)
        self.places.take(trial_id, device, share.part)
        return with_share(tune_config(trial), device, share, checkpoint)

    def _many_left(self) -> bool:
        """Return whether enough trials are left for every slot: the last ones go where a slot is free by then."""
        left = self.sampler.num_trials - len({trial.trial_id for trial in self.given.values()})
        return left > self.places.slots

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Report the trial's score to the sampler, or keep the trial for another run after it ran out of memory."""
        trial = self.given[trial_id]
        self.running.discard(trial_id)
        self.places.give_back(trial_id)
        if (larger := self.live.enlarged.get(trial.trial_id)) is not None:
            self.enlarged.append((trial, *larger))
            return
        failed = error or result is None or bool(result.get("failure") or result.get("unknown_metric"))
        if failed:
            self.failed.append(trial)
        self.sampler.tell(trial.trial_id, None if failed or result is None else result["final_score"])

    def save(self, checkpoint_path: str) -> None:
        """Write the sampler, the trials and their shares to a file for a resumed sweep."""
        state = {name: getattr(self, name) for name in ("sampler", "given", "failed", "again", "enlarged", "running")}
        state |= {"shares": self.live.shares.state(), "places": self.places.state()}
        Path(checkpoint_path).write_bytes(cloudpickle.dumps(state))

    def restore(self, checkpoint_path: str) -> None:
        """Restore the saved state of an interrupted sweep; trials that failed are suggested again."""
        state = cloudpickle.loads(Path(checkpoint_path).read_bytes())
        self.sampler, self.given = state["sampler"], state["given"]
        self.again, self.failed = [*state["failed"], *state["again"]], []
        self.enlarged, self.running = state["enlarged"], state["running"]
        self.live.shares.restore(state["shares"])
        self.places.restore(state["places"])
