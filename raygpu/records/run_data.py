"""All that a run's folder keeps for a report: configuration, summary, trials and timeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from raygpu.config import read_toml
from raygpu.config.command_names import typed
from raygpu.config.problem_schema import maximizes
from raygpu.errors import BadInput, UnknownMetric
from raygpu.planning.profiles import Profile
from raygpu.planning.under_use import Underutilization, under_use
from raygpu.records import profile_store, sets_csv, timeline, trials_csv
from raygpu.records.run_directory import RESUMED_AT, RunDirectory
from raygpu.records.run_files import read_json
from raygpu.records.sets_csv import SetRow
from raygpu.records.timeline import TRAINING, Occupancy, RunTimeline
from raygpu.records.trials_csv import TrialRow
from raygpu.search.scoring import Scoring, TrialScores
from raygpu.search.trials import EpochResult


@dataclass(frozen=True, slots=True)
class RunData:
    """The files of a run."""

    folder: RunDirectory
    kind: str
    """Command that began it."""
    config: Mapping[str, Any]
    """Content of `config.toml`."""
    summary: Mapping[str, Any]
    """Content of `summary.json`; with RESUMED_AT where a later start has noted nothing since."""
    trials: list[TrialRow]
    """The trials of a sweep; empty for another run."""
    timeline: RunTimeline
    sets: list[SetRow] = field(default_factory=list)
    """The sets of hyper-parameters, the best first, of a sweep that trains each several times; empty for another."""
    profile: Profile | None = None
    """Measurements of `raygpu pack`; None for another run."""
    advice: Mapping[str, Any] | None = None
    """Content of `advice.json`; None without an advice."""
    ended: bool = True
    """Whether the summary is of the last start that has noted anything; without one, the trials are those of the
    timeline, with hyper-parameters where an earlier start has ended."""

    @property
    def name(self) -> str:
        """Name of the run."""
        return self.folder.name

    @property
    def began_s(self) -> float:
        """Moment of the first start, in Unix seconds; 0 without a timeline."""
        return self.timeline.starts[0] if self.timeline.starts else 0.0

    @property
    def ended_s(self) -> float:
        """Moment of the last trial's or reading's end that the timeline has, in Unix seconds."""
        timeline = self.timeline
        return max(
            [
                self.began_s,
                *(stay.ended_s for stay in timeline.occupancies),
                *(samples[-1][0] for samples in timeline.readings.values()),
                *(max(moments.values()) for moments in timeline.ended_s.values()),
            ]
        )

    @property
    def maximize(self) -> bool:
        """Whether a higher metric is better."""
        return maximizes(self.config.get("metric", "loss"), self.config.get("direction"))

    @property
    def per_set(self) -> int:
        """Number of trainings of each set of hyper-parameters: repeats times folds."""
        return int(self.config.get("repeats", 1) * (self.config.get("folds") or 1))

    @property
    def num_planned(self) -> int | None:
        """Number of trainings of all sets of a sweep; None where its number of sets is not known."""
        return (self.config.get("trials") or 0) * self.per_set or None

    @classmethod
    def load(cls, folder: RunDirectory) -> RunData:
        """Read the files. Raises BadInput if one is damaged, or if there is nothing to show yet."""
        kind, summary = folder.kind, folder.read_last_summary()
        if kind == "pack":
            return cls._of_pack(folder)
        config, run_timeline = read_toml(folder.config), timeline.read(folder.timeline)
        trials = trials_csv.read(folder.trials_csv)
        if summary is None and not run_timeline.curves:
            again = folder.resumed_by(kind)
            raise BadInput(
                f"{folder}: has not ended, and has no epoch in timeline.jsonl yet; if it was killed: {again}"
            )
        if summary is None or (RESUMED_AT in summary and run_timeline.goes_on_after(summary[RESUMED_AT])):
            trials = _so_far(run_timeline, config, trials)
            return cls(folder, kind, config, {}, trials, run_timeline, ended=False)
        sets = sets_csv.read(folder.sets_csv)
        return cls(folder, kind, config, summary, trials, run_timeline, sets)

    @classmethod
    def _of_pack(cls, folder: RunDirectory) -> RunData:
        """Read a pack's folder."""
        profile = profile_store.read(folder.profile)
        if profile is None:
            raise BadInput(f"{folder.profile}: cannot be read as a profile; measure it again by {typed('pack')}")
        advice = read_json(folder.advice, f"give the advice again by {typed('pack')} --advise")
        return cls(folder, "pack", read_toml(folder.config), {}, [], RunTimeline(), profile=profile, advice=advice)

    def logarithmic(self) -> dict[str, bool]:
        """Return whether each hyper-parameter with a range was drawn by its logarithm."""
        kinds = {
            name: next(iter(value)) for name, value in self.config.get("space", {}).items() if isinstance(value, dict)
        }
        return {name: "log" in kind for name, kind in kinds.items() if kind not in ("choice", "grid_search", "when")}

    def under_used(self) -> list[Underutilization]:
        """Return the GPUs that were used too little while the run held them."""
        stays = self.timeline.occupancies
        uses = []
        for gpu, samples in sorted(self.timeline.readings.items()):
            gpu_stays = [(stay.began_s, stay.ended_s) for stay in stays if stay.gpu == gpu]
            run_stays = [(self.began_s, self.ended_s)]  # the workers of a training stay from its begin to its end
            use = under_use(gpu, gpu_stays if self.kind == "sweep" else run_stays, samples, self.timeline.host)
            uses += [use] if use is not None else []
        return uses

    def ranked(self) -> list[TrialRow]:
        """Return the trials with a finite score, the best first."""
        return trials_csv.ranked(self.trials, maximize=self.maximize)

    def searched(self) -> list[TrialRow]:
        """Return what the search has chosen by, the best first: the trials, or the sets with their mean scores."""
        if not self.sets:
            return self.ranked()
        return [
            TrialRow(row.set_id, row.status, row.score, 0, None, None, row.hyperparameters)
            for row in self.sets
            if row.score is not None and row.status not in ("diverged", "failed")
        ]

    def series(self) -> list[str]:
        """Return the names of the metrics that have curves, the score's first."""
        names: dict[str, None] = {}
        for curve in self.timeline.curves.values():
            for metrics in curve.values():
                names |= dict.fromkeys(metrics)
        wanted = self.config.get("metric", "")
        return sorted(names, key=lambda name: name not in (wanted, f"validation/{wanted}"))


def _so_far(found: RunTimeline, config: Mapping[str, Any], earlier: Sequence[TrialRow]) -> list[TrialRow]:
    """Return a row for each trial of a timeline, with its score so far, and for each at an earlier start's end."""
    if TRAINING in found.curves:
        return []
    metric = config.get("metric", "loss")
    scoring = Scoring(metric, maximizes(metric, config.get("direction")), config.get("score", "last"))
    stays = {trial: stay for stay in found.occupancies for trial in stay.trial_ids}
    rows = {row.trial_id: _without_epochs(row, found, stays.get(row.trial_id)) for row in earlier}
    earlier_rows = {row.trial_id: row for row in earlier}
    for trial, curve in found.curves.items():
        row, epochs = earlier_rows.get(trial), max(curve)
        status = _status_so_far(stays.get(trial), found.ended_s[trial][epochs])
        if row is not None and row.epochs == epochs and row.status not in ({"failed", "interrupted"} - {status}):
            rows[trial] = row
            continue
        scores = TrialScores()
        for epoch, metrics in sorted(curve.items()):
            with suppress(UnknownMetric):
                scores.take(scoring, EpochResult(epoch, metrics))
        score, loss = scores.score(scoring), scores.loss(scoring.score_rule)
        hyperparameters = row.hyperparameters if row is not None else {}
        rows[trial] = TrialRow(trial, status, score, epochs, None, None, hyperparameters, loss)
    return list(rows.values())


def _without_epochs(row: TrialRow, found: RunTimeline, stay: Occupancy | None) -> TrialRow:
    """Return the row of a trial of an earlier start's end that has no epoch in the timeline. stay: its last one."""
    status = _status_so_far(stay, max(found.starts, default=0.0))
    if row.trial_id in found.furthest:  # it is trained again from its beginning
        return replace(row, status=status, score=None, epochs=0, validation_loss=None)
    return replace(row, status=status) if row.status == "interrupted" else row


def _status_so_far(stay: Occupancy | None, last_epoch_s: float) -> str:
    """Return a trial's status by its last stay on a GPU that has ended; the timeline does not tell of early stops.

    last_epoch_s: moment of its last epoch; a later one than the stay's end is another attempt's.
    """
    if stay is None or stay.ended_s < last_epoch_s:
        return "under way"
    return {"complete": "finished", "error": "failed"}.get(stay.end, "under way")
