"""The run tree in MLflow: one parent run for a sweep, a training or a profile; a child run for each trial.

    tree = RunTree.open("sqlite:///runs/mlflow.db", "raygpu")
    tree.start_run("digits", tags={}, params={"trials": 64})
    run_id = tree.create_trial(trial)

Importing this module does not import MLflow, which takes many seconds: `RunTree.open` does. A failing call raises
TrackingError, or its subclass Refused if another try cannot help.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext, suppress
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from raygpu.errors import TrackingError, redacted
from raygpu.search.trial_record import Status
from raygpu.search.trials import Trial
from raygpu.tracking import carried_store, client, presentation
from raygpu.tracking.client import Refused
from raygpu.tracking.in_place import InPlace
from raygpu.tracking.presentation import TrialsView
from raygpu.tracking.stores import check, scheme, sqlite_path
from raygpu.tracking.trial_runs import Child, all_runs, last_ms
from raygpu.tracking.upload_time import largest, time_for
from raygpu.tracking.values import (
    ENDINGS,
    RUN_STATUS,
    MetricNames,
    MetricValue,
    as_params,
    run_name,
    set_tags,
    tag_values,
    text,
)

__all__ = ["Child", "Refused", "RunTree", "check", "redacted"]

MAX_METRICS, MAX_PARAMS, MAX_TAGS = 1000, 100, 100
"""Maximum number of metrics, parameters and tags that MLflow accepts in one call."""
PARENT = "mlflow.parentRunId"
PATIENCE_S = 10.0
LONGEST_PAUSE_S = 5.0
"""Longest pause between two tries."""

P = ParamSpec("P")
R = TypeVar("R")


def _guarded(method: Callable[Concatenate[RunTree, P], R]) -> Callable[Concatenate[RunTree, P], R]:
    """Turn every exception of MLflow and the layers below it into a TrackingError of one line."""

    @wraps(method)
    def call(tree: RunTree, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the method and translate its exceptions."""
        try:
            tree.in_place.require_free()
            return method(tree, *args, **kwargs)
        except Exception as error:
            if (fault := tree.in_place.fault(error)) is error:
                raise
            raise fault from error

    return call


class RunTree:
    """The runs of one sweep, training or profile. Calls block; `writer.Writer` keeps them off the command's loop."""

    def __init__(self, mlflow: Any, uri: str, experiment_id: str) -> None:
        """Take an open client; `open` is the public constructor."""
        self.mlflow = mlflow
        """MLflow's client, an MlflowClient."""
        self.uri = uri
        self.in_place = InPlace(uri)
        self.experiment_id = experiment_id
        self.run_id: str | None = None
        """Id of the parent run, from `start_run` or `resume_run` on."""
        self.children: dict[str, Child] = {}
        """Trials' runs, by trial id."""
        self._last_ms = 0
        """Time of the last metric at step 0 that the parent run had when it was resumed."""
        self.tags: dict[str, str] = {}
        """Tags of every run that is begun: the sweep's and each trial's."""
        self._is_shared = False
        self.view: TrialsView | None = None
        """View of the trials, set with `share_view`; its hyper-parameters stand in the names of the trials' runs."""
        self.notes: list[str] = []
        """Lines for the user on values that MLflow holds in another form than they were given."""
        self._metrics = MetricNames(self.notes)
        self.patience_s = PATIENCE_S
        """Seconds for which uploads of files and the end of a run are tried again while the store fails."""

    @classmethod
    def open(cls, uri: str, experiment: str) -> RunTree:
        """Import MLflow and open the store; create the database and the experiment where they do not exist yet.

        A new experiment keeps its files in `artifacts` beside a SQLite file, in `mlruns` in the working folder for
        other databases. A server decides for itself. Raises TrackingError.
        """
        mlflow, uri, experiment_id = client.connect(uri, experiment)
        return cls(mlflow, uri, experiment_id)

    # The sweep

    @_guarded
    def start_run(
        self,
        name: str,
        tags: Mapping[str, Any],
        params: Mapping[str, Any],
        kind: str = "sweep",
        key: str | None = None,
    ) -> str:
        """Begin the parent run and return its id. kind: command that makes the run, for its tag `raygpu.kind`.

        key: the run's own name for itself, by which a second call finds the run that the first one has begun: its
        answer may have been lost. None begins a run in any case.
        """
        begun = self._search(f"tags.`raygpu.key` = '{key}'") if key is not None else []
        if begun:
            run = begun[0]
        else:
            own_tags = {"raygpu.kind": kind, "raygpu.name": name, **client.run_tags()}
            own_tags |= {"raygpu.key": key} if key is not None else {}
            run = self._create_run({**self.tags, **tags, **own_tags}, name)
        with suppress(Refused) if begun else nullcontext():  # MLflow lets no parameter of an earlier start change
            self.log(run.info.run_id, params=params)
        self.run_id = run.info.run_id
        return str(run.info.run_id)

    @_guarded
    def resume_run(self, run_id: str) -> dict[str, Child]:
        """Go on with a parent run and return its trials' runs, by trial id, with the last epoch that was logged.

        A trial that has two runs, as after a lost answer, keeps the one that got further; the other is deleted.
        """
        self.mlflow.update_run(run_id, status="RUNNING")
        self._last_ms = last_ms(self._forget_ending(run_id))
        self.run_id = run_id
        self.children = {}
        for run in self._trial_runs(run_id):
            trial_id = run.data.tags["raygpu.trial_id"]
            trial_run = Child.of(run)
            first_run = self.children.setdefault(trial_id, trial_run)
            if first_run is not trial_run:
                behind, self.children[trial_id] = sorted((trial_run, first_run), key=lambda child: child.last_epoch)
                self.mlflow.delete_run(behind.run_id)
        return dict(self.children)

    @_guarded
    def adopt_trials(self, lost: str, run_id: str, advance: Callable[[], None] = lambda: None) -> None:
        """Put the trials' runs of a parent run that was deleted, and them not with it, below another one; call
        `advance` after each."""
        for run in self._trial_runs(lost):
            self.mlflow.set_tag(run.info.run_id, PARENT, run_id)
            advance()

    @_guarded
    def forget_twins(self, key: str) -> None:
        """Delete other runs with the parent run's key that have no trials: requests whose answers were lost began
        them."""
        for run in self._search(f"tags.`raygpu.key` = '{key}'"):
            run_id = run.info.run_id
            if run_id != self.run_id and not self._search(f"tags.`{PARENT}` = '{run_id}'"):
                self.mlflow.delete_run(run_id)

    @_guarded
    def end_run(
        self,
        run_id: str,
        status: Status,
        metrics: Mapping[str, float] | None = None,
        tags: Mapping[str, Any] | None = None,
    ) -> None:
        """End the parent run with its last metrics and tags; tried again for `patience_s` while the store fails."""
        now = max(_now_ms(), self._last_ms + 1)
        results = [MetricValue(name, value, 0, now) for name, value in (metrics or {}).items()]
        stopped = {"raygpu.stopped": "interrupted"} if status == "interrupted" else {}
        self._patiently(lambda: self.log(run_id, results, tags={"raygpu.status": status, **stopped, **(tags or {})}))
        self._patiently(lambda: self.finish(run_id, status, now))
        self.in_place.require_whole()

    @_guarded
    def describe(self, run_id: str, description: str) -> None:
        """Set the run's description, Markdown; what a person has written below it stays."""
        written = self.mlflow.get_run(run_id).data.tags.get(presentation.DESCRIPTION, "")
        self.mlflow.set_tag(run_id, presentation.DESCRIPTION, presentation.merged(written, description))

    @_guarded
    def share_view(self, run_id: str, view: TrialsView) -> None:
        """Have MLflow's pages show the sweep's trials by this view, at `trials_url`."""
        self.view = view
        self._metrics.of(view.score)  # the table is ordered by its plain name
        tag = presentation.tag(run_id)
        self.mlflow.set_experiment_tag(self.experiment_id, tag, view.state(run_id, _now_ms()))
        self._is_shared = True
        for old in presentation.outdated(self.mlflow.get_experiment(self.experiment_id).tags):
            self.mlflow.delete_experiment_tag(self.experiment_id, old)

    # Trials

    @_guarded
    def create_trial(self, trial: Trial, tags: Mapping[str, Any] | None = None, time_ms: int | None = None) -> str:
        """Begin the trial's run, or let an existing one run again, and return its id; hyper-parameters are not written.

        tags: tags of the run. time_ms: start of a new run, in milliseconds since 1970; default now. Raises
        TrackingError, also if no sweep has been started.
        """
        if (child := self.children.get(trial.trial_id)) is not None:
            self.mlflow.update_run(child.run_id, status="RUNNING")
            self._forget_ending(child.run_id)
            self.log(child.run_id, tags=tags)
            return child.run_id
        if self.run_id is None:
            raise TrackingError("tracking: no run has been started; call start_run or resume_run first")
        own_tags = {
            PARENT: self.run_id,
            "raygpu.kind": "trial",
            "raygpu.trial_id": trial.trial_id,
            **set_tags(trial),
            **client.run_tags(),
        }
        title = run_name(trial, self.view.hyperparameters if self.view is not None else ())
        run = self._create_run({**self.tags, **(tags or {}), **own_tags}, title, time_ms)
        self.children[trial.trial_id] = Child(run.info.run_id)
        return str(run.info.run_id)

    def _create_run(self, tags: Mapping[str, Any], name: str, time_ms: int | None = None) -> Any:
        """Begin a run and return it. Raises TrackingError."""
        run = self.mlflow.create_run(self.experiment_id, start_time=time_ms, tags=tag_values(tags), run_name=name)
        if not run.info.run_id:  # MLflow's client takes a proxy's empty answer of status 200 for one of its server
            raise TrackingError(f"tracking: the store at {redacted(self.uri)!r} gave a run no id")
        return run

    def _forget_ending(self, run_id: str) -> Any:
        """Delete the tags that say how a run ended; return the run as it was."""
        run = self.mlflow.get_run(run_id)
        for name in (name for name in ENDINGS if name in run.data.tags):
            self.mlflow.delete_tag(run_id, name)
        return run

    @_guarded
    def find_trial(self, trial_id: str) -> str | None:
        """Search the store for a trial's run, whose creation may have succeeded without an answer; return its id."""
        for run in self._search(f"tags.`{PARENT}` = '{self.run_id}' AND tags.`raygpu.trial_id` = '{trial_id}'"):
            self.children.setdefault(trial_id, Child(run.info.run_id))
        child = self.children.get(trial_id)
        return child.run_id if child else None

    @_guarded
    def forget_trial(self, trial_id: str) -> None:
        """Delete the trial's run, if there is one; MLflow keeps deleted runs until it is told to collect them."""
        if (child := self.children.get(trial_id)) is not None:
            with suppress(Refused):  # somebody deleted it already
                _guarded(lambda tree: tree.mlflow.delete_run(child.run_id))(self)
            del self.children[trial_id]

    @_guarded
    def discard_run(self) -> None:
        """Delete the sweep's run and its trials' runs, as if it had never begun."""
        for trial_id in list(self.children):
            self.forget_trial(trial_id)
        if self.run_id is not None:
            if self._is_shared:
                self.mlflow.delete_experiment_tag(self.experiment_id, presentation.tag(self.run_id))
            self.mlflow.delete_run(self.run_id)

    # Any run

    @_guarded
    def log(
        self,
        run_id: str,
        metrics: Iterable[MetricValue] = (),
        params: Mapping[str, Any] | None = None,
        tags: Mapping[str, Any] | None = None,
    ) -> None:
        """Log metrics, parameters and tags to one run in as few calls as MLflow's limits allow.

        Characters that MLflow does not allow in names become `_`; names, parameters and tags are cut to its limits.
        """
        from mlflow.entities import Metric, Param, RunTag

        all_metrics = [
            Metric(self._metrics.of(point.name), float(point.value), point.time_ms, point.step) for point in metrics
        ]
        named, notes = as_params(params or {})
        self.notes += [line for line in notes if line not in self.notes]
        all_params = [Param(key, value) for key, value in named.items()]
        all_tags = [RunTag(key, value) for key, value in tag_values(tags or {}).items()]
        while all_metrics or all_params or all_tags:
            # MLflow also takes no more than 1000 things of all kinds together.
            now_params, all_params = all_params[:MAX_PARAMS], all_params[MAX_PARAMS:]
            now_tags, all_tags = all_tags[:MAX_TAGS], all_tags[MAX_TAGS:]
            room = MAX_METRICS - len(now_params) - len(now_tags)
            now_metrics, all_metrics = all_metrics[:room], all_metrics[room:]
            self.mlflow.log_batch(run_id, now_metrics, now_params, now_tags)

    @_guarded
    def log_text(self, run_id: str, content: str, name: str) -> None:
        """Log a text to the run as the artifact `name`."""
        with time_for(len(content), served=self.served):
            self.mlflow.log_text(run_id, text(content), name)

    @_guarded
    def log_artifact(self, run_id: str, path: Path, artifact_path: str | None = None) -> None:
        """Log a file, or the content of a folder, to the run as artifacts; below `artifact_path` if given."""
        send = self.mlflow.log_artifacts if path.is_dir() else self.mlflow.log_artifact
        guarded = _guarded(lambda tree: send(run_id, str(path), artifact_path))
        with time_for(largest(path), served=self.served):
            self._patiently(lambda: guarded(self))

    @_guarded
    def finish(self, run_id: str, status: Status, time_ms: int | None = None) -> None:
        """Set a run's final status. time_ms: end of the run, in milliseconds since 1970; default now."""
        self.mlflow.set_terminated(run_id, RUN_STATUS[status], time_ms)

    def keep(self, *, now: bool = False) -> bool:
        """Bring back a store that a batch job carries on its node's disk; return whether it has all writes for good.

        now: whether to do so in any case, and not only once in a while.
        """
        path = sqlite_path(self.uri) if scheme(self.uri) == "sqlite" else None
        return self.in_place.is_whole and carried_store.keep(path, now=now)

    def ping(self) -> None:
        """Check that the store can be reached, and is no job's. Raises TrackingError if not."""
        self.in_place.require_free()
        check(self.uri)

    @_guarded
    def probe(self, run_id: str) -> None:
        """Check that the store takes a write to this run. Raises Refused if the run is gone, else TrackingError."""
        self.mlflow.set_tag(run_id, "raygpu.probed_ms", str(_now_ms()))

    def _patiently(self, call: Callable[[], None]) -> None:
        """Repeat a call for `patience_s` while the store fails; only for calls that may be repeated."""
        began, pause_s = time.monotonic(), 1.0
        while True:
            try:
                return call()
            except Refused:
                raise
            except TrackingError:
                if time.monotonic() - began >= self.patience_s:
                    raise
            time.sleep(pause_s)
            pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)

    # For people

    @property
    def ui_url(self) -> str:
        """Return the URL of the parent run's page, or of the experiment's runs before there is a parent run."""
        return f"{self._base_url}/{self.page(f'/{self.run_id}' if self.run_id else '')}"

    @property
    def trials_url(self) -> str:
        """Return the URL of the table of the sweep's trials; that of the parent run's page without a shared view."""
        return self.ui_url if self.trials_page is None else f"{self._base_url}/{self.trials_page}"

    @property
    def trials_page(self) -> str | None:
        """Return the place of the table of the sweep's trials below the store's address; None without a shared view."""
        if not self._is_shared or self.run_id is None:
            return None
        return f"{self.page('')}&viewStateShareKey={presentation.OWN}{self.run_id}"

    def page(self, path: str) -> str:
        """Return the place of one of the experiment's pages below the store's address. path: below its runs."""
        # Without the workflow, MLflow 3 opens a browser that it has not seen before on its pages for GenAI.
        return f"#/experiments/{self.experiment_id}/runs{path}?workflowType=machine_learning"

    @property
    def _base_url(self) -> str:
        return re.sub(r"//.*@", "//", self.uri).rstrip("/") if self.served else "http://127.0.0.1:5000"

    @property
    def served(self) -> bool:
        """Return whether an MLflow server holds the runs, rather than a database opened by raygpu."""
        return scheme(self.uri) in ("http", "https")

    def _trial_runs(self, run_id: str) -> list[Any]:
        """Return the runs of a parent run's trials."""
        return self._search(f"tags.`{PARENT}` = '{run_id}' AND tags.`raygpu.kind` = 'trial'")

    def _search(self, query: str) -> list[Any]:
        return all_runs(self.mlflow, self.experiment_id, query)


def _now_ms() -> int:
    return int(time.time() * 1000)
