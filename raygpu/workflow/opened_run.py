"""Runs read again from their folders: trials, scores, checkpoints, models."""

from __future__ import annotations

import base64
import html
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raygpu.cli import profile_view
from raygpu.cli.formatting import score_text
from raygpu.config import ProblemConfig, SweepConfig, TrainConfig, load
from raygpu.errors import BadInput, one_line
from raygpu.experiment import Experiment
from raygpu.planning.profiles import Profile
from raygpu.records import sets_csv, trials_csv
from raygpu.records.run_data import RunData
from raygpu.records.run_directory import RunDirectory
from raygpu.records.run_files import read_rows
from raygpu.records.scratch import fetched
from raygpu.records.sets_csv import SetRow
from raygpu.records.space_columns import space_columns, text_of
from raygpu.records.trial_files import kept_files
from raygpu.reporting import Kept
from raygpu.search.repeats import Repetition
from raygpu.search.space import Space, parse
from raygpu.search.trials import Trial
from raygpu.workflow.checkpoint_models import trained_model
from raygpu.workflow.user_code import find, load_data

if TYPE_CHECKING:
    import pandas

COUNTS = {"completed": "finished", "stopped_early": "stopped early", "diverged": "diverged", "failed": "failed"}
"""Words for the summary's counts of trials."""
SHOWN = 10
"""Number of trials that a notebook shows."""


@dataclass(frozen=True, slots=True)
class SweepTrial:
    """A trial of a sweep, as its run folder keeps it."""

    sweep: SweepRun
    trial_id: str
    status: str
    """finished, stopped, diverged, failed or interrupted."""
    score: float | None
    score_epoch: int | None
    epochs: int
    hyperparameters: Mapping[str, Any]
    standard_error: float | None = None
    """Standard error of the score where that is the mean of the repeats of a set, as of `SweepRun.best`."""

    @property
    def checkpoint(self) -> Path | None:
        """Folder of the trial's checkpoint on this machine; None if it was not kept."""
        return self.sweep.directory.checkpoint(self.trial_id)

    @property
    def files(self) -> Path | None:
        """Folder, on this machine, of the files that the trial's script has written; None if none were kept."""
        return kept_files(self.sweep.directory, self.trial_id)

    def load_model(self) -> Any:
        """Return the trained model, in evaluation mode on the CPU; of a function or script, the state of its last
        `raygpu.checkpoint`.

        The model is that of the last epoch, or with `score = "best"` of the best. Raises BadInput if the trial's
        checkpoint was not kept.
        """
        checkpoint = self.checkpoint
        if checkpoint is None:
            raise BadInput(f"{self.trial_id}: its checkpoint was not kept; keep = 'all' keeps every trial's")
        return _model(self.sweep.config, self.sweep.directory, checkpoint, as_trial(self))


class _Run:
    """A run, as its folder keeps it."""

    def __init__(self, directory: RunDirectory) -> None:
        self.directory = directory

    @property
    def name(self) -> str:
        """Name of the run."""
        return self.directory.name

    @property
    def folder(self) -> Path:
        """The run's folder on this machine."""
        return self.directory.path

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Content of `summary.json`. Raises BadInput if the run has not ended yet, or not since it was resumed."""
        summary = self.directory.read_summary()
        if summary is None:
            command = self.directory.resumed_by(self.directory.kind)
            lacks = "has not ended since it was resumed" if self.directory.summary.exists() else "has no summary yet"
            raise BadInput(f"{self.folder} {lacks}; go on with: {command}")
        return summary


class SweepRun(_Run):
    """A sweep, as its run folder keeps it."""

    def __init__(self, directory: RunDirectory) -> None:
        super().__init__(directory)
        self.config: SweepConfig = directory.read_config()

    @cached_property
    def _space(self) -> Space:
        return parse(self.config.space, self.config.search.algorithm)

    def to_dataframe(self, *, sets: bool = False) -> pandas.DataFrame:
        """Return the trials as a data frame, one row for each, the columns of `trials.csv`.

        sets: a row for each set of hyper-parameters instead, the best first, the columns of `sets.csv`: mean score,
        standard error, number of repeats. Raises BadInput if each set was trained once.
        """
        import pandas

        if sets and not self.directory.sets_csv.is_file():
            raise BadInput(f"{self.folder} has no sets.csv: repeats = {self.config.repeats}")
        file = self.directory.sets_csv if sets else self._trials_csv()
        ends = {each.name: each.ends() for each in self._space.parameters}
        texts = [name for name, values in ends.items() if any(isinstance(end, str) for end in values)]
        pure_texts = [name for name in texts if all(isinstance(end, str) for end in ends[name])]
        headers = sets_csv.OWN if sets else trials_csv.OWN
        try:
            columns = pandas.read_csv(file, nrows=0).columns
            # The text "None" is a value of a hyper-parameter that is text; elsewhere "nan" is a number.
            missing = {name: ["", "nan"] for name in columns} | {name: [""] for name in space_columns(texts, headers)}
            types = dict.fromkeys(space_columns(pure_texts, headers), str)
            return pandas.read_csv(file, keep_default_na=False, na_values=missing, dtype=types)
        except ValueError as error:
            raise BadInput(f"{file}: cannot be read ({one_line(error)}); --resume writes it anew") from error

    @cached_property
    def sets(self) -> list[SetRow]:
        """Sets of hyper-parameters, the best first; empty if each was trained once."""
        return sets_csv.read(self.directory.sets_csv)

    def _trials_csv(self) -> Path:
        if not self.directory.trials_csv.is_file():
            raise BadInput(f"{self.folder} has no trials yet; go on with: {self.directory.resumed_by('sweep')}")
        return self.directory.trials_csv

    @cached_property
    def trials(self) -> list[SweepTrial]:
        """All trials that had begun when the run last ended, in the order of their ids."""
        space = self._space

        def trial(row: Mapping[str, str]) -> SweepTrial:
            """Return the trial of a row."""
            return SweepTrial(
                self,
                row["id"],
                row["status"],
                float(row["score"]) if row["score"] else None,
                int(row["score_epoch"]) if row["score_epoch"] else None,
                int(row["epochs"]),
                space.from_texts(partial(text_of, row)),
            )

        return sorted(read_rows(self._trials_csv(), trial), key=lambda trial: Trial.order(trial.trial_id))

    def _trial(self, trial_id: str) -> SweepTrial:
        """Return a trial that the summary names. Raises BadInput if there is no row of it."""
        for trial in self.trials:
            if trial.trial_id == trial_id:
                return trial
        raise BadInput(f"{self._trials_csv()}: no row of {trial_id}, which summary.json names; --resume writes it anew")

    @property
    def best(self) -> SweepTrial | None:
        """The best trial; None if no trial has a finite score.

        With repeats, it is the best repeat of the best set, with the set's mean score.
        """
        best = self.summary["best"]
        if best is None:
            return None
        trial = self._trial(best["trial_id"])
        return replace(trial, score=best["score"], standard_error=best.get("standard_error"))  # of its set

    @property
    def front(self) -> list[SweepTrial]:
        """The trials of the Pareto front, the best in the first metric first; empty for a sweep with one metric."""
        return [self._trial(row["trial_id"]) for row in self.summary.get("front", [])]

    def _lines(self) -> list[str]:
        summary, best = self.summary, self.best
        counts = ", ".join(f"{summary[name]} {word}" for name, word in COUNTS.items())
        lines = [f"sweep {self.name}: {summary['num_trials']} trials ({counts})"]
        if best is not None:
            best_entry = summary["best"]
            score = score_text(best_entry["score"], best_entry.get("standard_error"))
            values = dict(best.hyperparameters)
            lines.append(f"best: {best_entry.get('set_id', best.trial_id)}, {self.config.metric} {score}, {values}")
        return [*lines, f"all of it in {self.folder}"]

    def __repr__(self) -> str:
        return "\n".join(self._lines())

    def _repr_html_(self) -> str:
        ranked = trials_csv.ranked(trials_csv.read(self._trials_csv()), maximize=self.config.maximize)
        places = {row.trial_id: place for place, row in enumerate(ranked)}
        frame = self.to_dataframe().sort_values("id", key=lambda ids: ids.map(places)).head(SHOWN)
        text = "<br>".join(map(html.escape, self._lines()))
        return f"<p>{text}</p>{frame.to_html(index=False, escape=True)}"


class TrainRun(_Run):
    """A production training, as its run folder keeps it."""

    def __init__(self, directory: RunDirectory) -> None:
        super().__init__(directory)
        self.config: TrainConfig = load(directory.config, {}, TrainConfig)

    @property
    def hyperparameters(self) -> Mapping[str, Any]:
        """Hyper-parameters of the training."""
        return self.config.hyperparameters

    @property
    def score(self) -> float | None:
        """Best score; None without a finite one."""
        best = self.summary["best"]
        return None if best is None else float(best["score"])

    def load_model(self) -> Any:
        """Return the model of the best epoch, in evaluation mode on the CPU; of a function, the state of its last
        `raygpu.checkpoint` up to that epoch.

        Raises BadInput if there is no checkpoint.
        """
        location = self.directory.noted_checkpoint(self.summary)
        if location is None:
            raise BadInput(f"{self.folder} has no checkpoint")
        with fetched(location) as checkpoint:
            trial = Trial(Trial.name(0), self.config.seed, self.config.hyperparameters)
            return _model(self.config, self.directory, checkpoint, trial)

    def __repr__(self) -> str:
        score = f", {self.config.metric} {self.score:.6g}" if self.score is not None else ""
        return f"training {self.name}: {self.summary['epochs']} epochs{score}\nall of it in {self.folder}"


class BalanceRun(_Run):
    """A measurement of the best split of a batch over unequal devices, as its run folder keeps it."""

    @property
    def configuration(self) -> Path:
        """File of a training's configuration with the measured shares: `python -m raygpu.train FILE`."""
        return self.folder / "train.toml"

    @property
    def ratios(self) -> str:
        """Shares of the devices, as `raygpu.run_training(..., ratios=...)` takes them."""
        return ",".join(str(rank["share"]) for rank in self.summary["ranks"])

    def __repr__(self) -> str:
        return f"balance {self.name}: ratios {self.ratios}\nall of it in {self.folder}"

    def _repr_html_(self) -> str:
        return _with_picture(repr(self).splitlines(), self.folder / "balance.png")


class PlaceRun(_Run):
    """A comparison of placements of a model's parts, as its run folder keeps it."""

    @property
    def best(self) -> str | None:
        """Name of the fastest placement; `one_device` if no other is shown to be faster, None if all failed."""
        name: str | None = self.summary["best"]
        return name

    def to_dataframe(self) -> pandas.DataFrame:
        """Return the turns of all placements as a data frame, the columns of `turns.csv`."""
        import pandas

        return pandas.read_csv(self.directory.turns_csv)

    def __repr__(self) -> str:
        return "\n".join([*self.summary["verdict"], f"all of it in {self.folder}"])

    def _repr_html_(self) -> str:
        return _with_picture(repr(self).splitlines(), self.folder / "placements.png")


@dataclass(frozen=True, slots=True)
class PackRun:
    """A measurement of how many trainings one GPU carries."""

    profile: Profile
    folder: Path
    """The run's folder on this machine."""
    verdict: tuple[str, ...]
    """The result in words."""

    def to_dataframe(self) -> pandas.DataFrame:
        """Return the measured points as a data frame, the columns of `points.csv`."""
        import pandas

        return pandas.read_csv(self.folder / "points.csv")

    def __repr__(self) -> str:
        return "\n".join([*self.verdict, f"all of it in {self.folder}"])

    def _repr_html_(self) -> str:
        return _with_picture(repr(self).splitlines(), self.folder / "curve.png")


def _with_picture(lines: Sequence[str], picture: Path) -> str:
    """Return lines and a picture, if there is one, as HTML that needs no other file."""
    text = "<br>".join(map(html.escape, lines))
    if not picture.exists():
        return text
    data = base64.b64encode(picture.read_bytes()).decode()
    return f'<p>{text}</p><img src="data:image/png;base64,{data}">'


def open_run(where: Path | str) -> SweepRun | TrainRun | BalanceRun | PlaceRun | PackRun:
    """Read a run again. where: its folder, or its URI in object storage. Raises BadInput if it is no run's."""
    directory = RunDirectory.to_read(where, "open_run", partial(warnings.warn, stacklevel=3))
    if directory.kind == "pack":
        profile = RunData.load(directory).profile
        assert profile is not None
        return PackRun(profile, directory.path, tuple(profile_view.verdict(profile)))
    kinds: dict[str, type[SweepRun | TrainRun | BalanceRun | PlaceRun]] = {
        "sweep": SweepRun, "train": TrainRun, "balance": BalanceRun, "place": PlaceRun,
    }  # fmt: skip
    return kinds[directory.kind](directory)


def _model(config: ProblemConfig, directory: RunDirectory, checkpoint: Path, trial: Trial) -> Any:
    """Load a checkpoint by the code that wrote it."""
    source, code = find(config, directory.source_folder)
    if not isinstance(code, Experiment):
        state = Kept.load(checkpoint)
        if state is None:
            advice = "a script's own files are in the trial's .files"
            raise BadInput(f"{checkpoint}: no raygpu.checkpoint was made; {advice}")
        return state.content
    return trained_model(source, code, lambda: load_data(config, source, code), trial, checkpoint)


def as_trial(trial: SweepTrial) -> Trial:
    """Return the trial that a sweep drew: its hyper-parameters with its seed."""
    config = trial.sweep.config
    seed = Repetition.of(config).seed_of(trial.trial_id, config.seed)
    return Trial(trial.trial_id, seed, trial.hyperparameters)
