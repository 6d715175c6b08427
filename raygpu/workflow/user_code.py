"""The user's experiment, loaded and tried: its code, its data, and what a first look at them shows."""

from __future__ import annotations

import contextlib
import importlib.util
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from raygpu.config import PlaceConfig, ProblemConfig, SweepConfig, TrainConfig, TrialsConfig
from raygpu.config.generators import random_state_kept, seed_generators
from raygpu.config.kept_devices import devices_lines
from raygpu.config.population_section import OF_RATE
from raygpu.config.sections import ScriptSection
from raygpu.config.source import Source, locate
from raygpu.errors import BadInput, UnknownMetric, one_line
from raygpu.experiment import Arrays, Experiment, Splits, is_read_later, named, reads_later
from raygpu.search.command_line import FOLD_PLACEHOLDERS
from raygpu.search.hyperparameters import Hyperparameters, MissingHyperparameter
from raygpu.search.scoring import Scoring
from raygpu.search.space import Space, listed
from raygpu.search.trials import Trial
from raygpu.training.data.columns import columns_of
from raygpu.training.distributed.micro_batch_check import metric_lines
from raygpu.training.folds import Folds
from raygpu.training.hyperparameters import IN_EVERY_STEP
from raygpu.training.own_copy import shared_lines
from raygpu.training.torch.experiment import IGNORED, overrides
from raygpu.workflow.cut_batches import cut_batch_lines, ends_of
from raygpu.workflow.data_parts import cut_lines, folds_of, part_of, require_own_settings
from raygpu.workflow.first_step import FirstStep, StepFailed, depends_on_device, place_of, try_step
from raygpu.workflow.hyperparameter_names import misspelt, require_known_values, space_lines, training_lines
from raygpu.workflow.set_by_data import SetByData
from raygpu.workflow.validation import AMPERE, Prepared, PreparedTrain, chosen_gpus

FULL_PRECISION = (
    "gpu.precision: float32 computes convolutions in full; torch by itself takes TF32 for them on this machine's GPU,"
    " which is faster and less precise: --gpu.precision tf32 takes it for them and for matrix products"
)
EXTRAS = {"torch": "torch", "keras": "tensorflow"}
"""Package that a kind of experiment needs."""
NUM_TRIED = 3
"""Number of trials of which a first step is tried, until one works."""


@dataclass(frozen=True, slots=True)
class Problem:
    """The user's code and data."""

    source: Source
    code: Any
    """An `Experiment`, a function, or None for a command."""
    splits: Splits | None
    notes: list[str] = field(default_factory=list)
    """Lines for a person to read before the training."""
    folds: Folds | None = None
    """Pooled data of a cross-validation; `splits` is then that of its first fold. None without one."""
    test: Splits | None = None
    """Test data in place of the validation data; None without test data. No trial gets it."""

    def validation_of(self, trial: Trial) -> tuple[Arrays, Arrays]:
        """Return inputs and targets of the validation data of a trial."""
        if self.folds is not None and trial.fold is not None:
            return self.folds.validation(trial.fold)
        assert self.splits is not None
        return self.splits.validation_inputs, self.splits.validation_targets


def find(config: ProblemConfig, folder: Path) -> tuple[Source, Any]:
    """Return the source and the user's code: an `Experiment`, a function, or None for a command. Raises BadInput.

    folder: the start of relative paths.
    """
    script = config.script if isinstance(config, TrialsConfig) else ScriptSection()
    source, code = Source("command", str(config.command), str(folder), script), None
    if config.experiment is not None:
        source, code = locate(config.experiment, folder)
        _require_framework(source)
    if config.data.synthetic:
        _require_synthetic(source, code)
    return source, code


def _require_script(command: str, folder: Path) -> None:
    """Raise BadInput if the command is Python's and its script is not in the folder."""
    words = shlex.split(command)
    script = words[1] if len(words) > 1 and Path(words[0]).name.startswith("python") else ""
    if script.endswith(".py") and "{" not in script and not (folder / script).is_file():
        raise BadInput(f"command: {script}: no such file in {folder}")


def _require_own_seeds(config: SweepConfig) -> None:
    """Raise BadInput if the search space of a function or a script takes the place of the repeats' seeds or folds."""
    names = [name for name in ("seed", *FOLD_PLACEHOLDERS) if config.per_set > 1 and name in config.space]
    if names:
        raise BadInput([f"space.{name}: repeats and folds have values of their own; leave it out" for name in names])


def _require_framework(source: Source) -> None:
    """Raise BadInput if the experiment's framework is not installed here."""
    extra = EXTRAS.get(source.kind)
    if extra is not None and importlib.util.find_spec(extra) is None:
        raise BadInput(f"experiment: {source.name} needs {extra}, which is not installed here: pip install {extra}")


def problem(prepared: Prepared, source: Source, code: Any) -> Problem:
    """Load the data once, and check that the metric exists. Raises BadInput."""
    config = prepared.config
    if config.command is not None:
        _require_script(config.command, Path(source.folder))
    if not isinstance(code, Experiment):
        require_own_settings(config, source)
        _require_own_seeds(config)
        has_width = config.gpu.mode != "process" and config.gpu.width != "auto"  # beside process, a line tells already
        why = "only trials of a TorchExperiment or KerasExperiment share a process"
        without_effect = [f"gpu.width has no effect: {why}"] if has_width else []
        return Problem(source, code, None, [*devices_lines(source.name), *without_effect])
    if config.gpu.fraction != "auto" and config.gpu.fraction > 1:
        raise BadInput(
            f"gpu.fraction: read {config.gpu.fraction:g}; a TorchExperiment or KerasExperiment trains on one GPU,"
            " and only a function or a script may use several"
        )
    if config.epochs is None:
        raise BadInput("epochs: not given; a TorchExperiment or KerasExperiment trains for a fixed number of epochs")
    require_known_values(prepared.space)
    doubts = devices_lines(source.name)
    splits, notes = _tried(prepared, source, code, load_data(config, source, code, doubts))
    folds = folds_of(config, splits)
    searched = part_of(config, splits, _largest(prepared.space)) if folds is None else folds.split(0)
    lines = [*doubts, *notes, *cut_lines(splits, searched, folds), *cut_batch_lines(prepared, source, code, searched)]
    lines += _metric_lines(prepared, source, code, searched)
    return Problem(source, code, searched, lines, folds, splits.for_test())


def _metric_lines(prepared: Prepared, source: Source, code: Experiment, splits: Splits) -> list[str]:
    """Return lines on metrics that are no means over samples, where an evaluation takes several batches."""
    modules = (getattr(type(code), name).__module__ for name in ("loss", "metrics"))
    if all(module.startswith("raygpu.") for module in modules) and not _has_ignored(splits.validation_targets):
        return []
    for values in _first_draws(prepared):
        with contextlib.suppress(MissingHyperparameter), contextlib.chdir(source.folder):  # of a conditional one
            return metric_lines(source, code, values, splits)
    return []


def _has_ignored(targets: Arrays) -> bool:
    """Return whether whole numbers in memory have the one among them that the default loss and metrics leave out."""
    arrays = (each for each in named(targets).values() if not is_read_later(each))
    return any(each.dtype.kind == "i" and bool((each == IGNORED).any()) for each in arrays)


def _largest(space: Space) -> dict[str, Any]:
    """Return the largest batch size of a search space as a hyper-parameter; nothing if it has none."""
    ends = ends_of(space, "batch_size")
    return {"batch_size": max(ends)} if ends else {}


def load_data(config: ProblemConfig, source: Source, code: Experiment, doubts: list[str] | None = None) -> Splits:
    """Load all of an experiment's data, real or synthetic. Raises BadInput.

    doubts: gets a line on an object that the loading may have changed for other methods, where that cannot be seen.

    The global random generators are seeded, those of the framework too: a split that they draw is the same when a run
    goes on.
    """
    name, load = ("synthetic()", code.synthetic) if config.data.synthetic else ("data()", code.data)
    others_read = SetByData(code)
    _import_framework(source)
    try:
        with contextlib.chdir(source.folder), random_state_kept():
            if source.kind == "keras":
                _seed_keras()
            seed_generators(0, 0)
            splits = load()
    except (Exception, SystemExit) as error:  # the user's code: whatever it raises is the message
        where = place_of(error, source.folder)
        raise BadInput(f"experiment: {config.code_name}: {name} failed: {one_line(error)}{where}") from error
    if (changed := others_read.changed()) is not None:
        raise BadInput(
            f"experiment: {config.code_name}: {name} sets or changes {changed}: workers get the arrays that it returns,"
            " and not what it sets; set it in __init__() or at import, or make it a part of the inputs or targets"
        )
    if doubts is not None and (doubt := others_read.doubt()) is not None:
        doubts.append(
            f"{name} {doubt}: workers make their own, unchanged; a change that they need belongs into __init__()"
        )
    if not isinstance(splits, Splits):
        hint = ", as raygpu.dataset_splits makes of data sets" if hasattr(splits, "__getitem__") else ""
        raise BadInput(f"experiment: {config.code_name}: {name} returned {type(splits).__name__}, not Splits{hint}")
    if source.kind == "keras" and reads_later(splits.train_inputs):
        _require_read_by_keras(config, name, splits)
    return splits


def _import_framework(source: Source) -> None:
    """Import the experiment's framework: data() may be the first to do so, and seed_generators leaves it out until
    then. Raises BadInput."""
    try:
        with random_state_kept():
            if source.kind == "keras":
                import raygpu.training.keras.quiet_import  # noqa: F401 - to be seeded
            else:
                import torch  # noqa: F401 - to be seeded
    except Exception as error:  # of a broken installation: a library that is missing, another version of NumPy
        extra = EXTRAS[source.kind]
        raise BadInput(f"experiment: {source.name} needs {extra}, which cannot be loaded: {one_line(error)}") from error


def _seed_keras() -> None:
    """Seed the global generators of TensorFlow and Keras, and those of Python and NumPy."""
    from raygpu.training.keras.quiet_import import keras

    keras.utils.set_random_seed(0)


def _require_read_by_keras(config: ProblemConfig, name: str, splits: Splits) -> None:
    """Raise BadInput where a KerasExperiment cannot read the samples of data sets in this way. name: of its method."""
    fault = None
    (column, *_) = columns_of(splits.train_inputs)
    if isinstance(config, SweepConfig) and config.gpu.mode == "split":
        fault = "read gpu.mode 'split', in which Keras trials take arrays: process"
    elif isinstance(config, PlaceConfig):
        fault = "a KerasExperiment's placements take arrays"
    elif column.samples.reading.transform is not None:
        fault = "transform is for a TorchExperiment; a KerasExperiment has augment(), or its data set does it"
    if fault is not None:
        raise BadInput(f"experiment: {config.code_name}: {name} is of dataset_splits: {fault}")


def _require_synthetic(source: Source, code: Any) -> None:
    """Raise BadInput if the user's code has no synthetic data."""
    if not isinstance(code, Experiment):
        reason = f"a {source.kind} loads its own data; only a TorchExperiment or KerasExperiment can have made-up data"
        raise BadInput(f"data.synthetic: read true; {reason}")
    if type(code).synthetic is Experiment.synthetic:
        raise BadInput(
            f"data.synthetic: read true; {source.name} has no made-up data: give it a method synthetic(self) that"
            " returns Splits of data()'s shapes and types"
        )


def _tried(prepared: Prepared, source: Source, code: Experiment, splits: Splits) -> tuple[Splits, list[str]]:
    """Try a first step of one of the first trials; return the data, converted if need be, and lines for a person.

    Raises BadInput if none of them works, and UnknownMetric. Faults that a GPU or another node may not have are left to
    the trials, and all faults without `fail_fast`.
    """
    config = prepared.config
    failed: list[tuple[dict[str, Any], StepFailed]] = []
    for values in _first_draws(prepared):
        try:
            step = try_step(source, code, values, splits)
        except MissingHyperparameter as error:
            if error.name in config.space:
                continue  # a conditional one, which this draw happens to lack
            raise BadInput(f"space: {config.code_name} reads {error.name!r}, which [space] does not have") from error
        except StepFailed as error:
            failed.append((values, error))
            continue
        metric = _metric(config, code, step)
        _require_kept_score(step, metric, registers=False)
        near = [f"space: {line}" for line in space_lines(code, source.kind, values, prepared.space, step.read)]
        lines = [f"a first step fails with {others}: {fault}" for others, fault in failed[:1]]
        notes = [*_full_precision(config, step), *step.notes, *shared_lines(code)]
        return step.splits, [*notes, *near, *lines]
    for _, fault in failed[:1]:
        if config.fail_fast and config.cluster.is_local and not depends_on_device(fault):
            lists = [f"space.{name}: {hint}" for name, value in config.space.items() if (hint := listed(value))]
            raise BadInput([f"experiment: {config.code_name}: a first training step fails: {fault}", *lists])
    return splits, [f"a first step on this machine's CPU fails: {fault}" for _, fault in failed[:1]]


def _first_draws(prepared: Prepared) -> list[dict[str, Any]]:
    """Return the hyper-parameters of the first trials."""
    config = prepared.config
    if config.search.algorithm == "grid":
        return list(islice(prepared.space.grid(), NUM_TRIED))
    return [prepared.space.draw(config.seed, index) for index in range(NUM_TRIED)]


def require_experiment(config: TrainConfig, source: Source, code: Any, command: str) -> None:
    """Raise BadInput if this is no experiment, or its settings do not suit it. command: the one that was called."""
    if not isinstance(code, Experiment):
        kind, key = ("script", "command") if code is None else ("function", "experiment")
        raise BadInput(f"{key}: {source.name} is a {kind}; {command} takes a TorchExperiment or a KerasExperiment")
    if source.kind == "torch" and config.devices_per_worker > 1:
        raise BadInput(
            f"devices_per_worker: read {config.devices_per_worker}; a worker of torch drives one: take more --workers"
        )
    if source.kind == "keras" and config.compile:
        raise BadInput("compile: read true, which is torch.compile; a Keras model's steps are graphs already")
    if config.epochs is None:
        raise BadInput("epochs: not given; a TorchExperiment or KerasExperiment trains for a fixed number of epochs")


def training_problem(prepared: PreparedTrain, source: Source, code: Any) -> Problem:
    """Load the data, and try a first step; a function has neither for raygpu. Raises BadInput."""
    config = prepared.config
    _require_changes(config, source, code)
    if not isinstance(code, Experiment):
        return Problem(source, code, None)
    step = tried_step(config, source, code, config.hyperparameters)
    _require_taken_by_optimizer(config, source, code)
    metric = _metric(config, code, step)
    _require_kept_score(step, metric, registers=config.registered_name is not None)
    values = config.hyperparameters
    if not config.source and (lines := misspelt(values, values, step.read)):  # a sweep has taken those of a trial
        raise BadInput([f"hyperparameters: {line}" for line in lines])
    lines = training_lines(code, source.kind, values, config.changes, step.read)
    notes = [*step.notes, *(f"hyperparameters: {line}" for line in lines)]
    searched = part_of(config, step.splits, config.hyperparameters)
    notes += cut_lines(step.splits, searched)
    return Problem(source, code, searched, notes, test=step.splits.for_test())


def _metric(config: SweepConfig | TrainConfig, code: Experiment, step: FirstStep) -> str:
    """Return the reported name of the configured metric. Raises UnknownMetric, which tells why there is no accuracy."""
    try:
        return Scoring(config.metric, config.maximize).key(dict.fromkeys(step.metrics))
    except UnknownMetric as error:
        types = [array.dtype for array in named(step.splits.train_targets).values()]
        is_default = type(code).metrics.__module__.startswith("raygpu.")
        if config.metric.removeprefix("validation/") != "accuracy" or not is_default or types[0].kind != "f":
            raise
        why = f"the default accuracy takes class indices that are integers, and the targets are {types[0]}"
        raise UnknownMetric(f"{error}; {why}: let data() return integers, or write metrics()") from None


def _require_kept_score(step: FirstStep, metric: str, *, registers: bool) -> None:
    """Raise BadInput if a loaded model would be scored on test data, or registered, that is not the trained one."""
    if metric in step.lost_metrics and (registers or step.splits.test_inputs is not None):
        why = (
            "a registered model would be another one"
            if registers
            else "the score on test data would be of another model"
        )
        raise BadInput([f"experiment: {line}; {why}" for line in step.notes[-1:]])


def _require_changes(config: TrainConfig, source: Source, code: Any) -> None:
    """Raise BadInput for changes of hyper-parameters that the user's code cannot take while it trains."""
    if config.changes and not isinstance(code, Experiment):
        raise BadInput(f"changes: a {source.kind} keeps its parameters to itself; a TorchExperiment is wanted")
    traced = sorted({name for change in config.changes for name in change} - {"epoch", *OF_RATE})
    if source.kind == "keras" and traced:
        raise BadInput(
            f"changes: {traced[0]} cannot change in a Keras training, whose steps are traced; allowed:"
            f" {', '.join(OF_RATE)}"
        )


def _require_taken_by_optimizer(config: TrainConfig, source: Source, code: Experiment) -> None:
    """Raise BadInput for changes that an optimizer of the experiment's own does not take: all but those of `clip_norm`
    and `ema_decay`, which raygpu applies itself."""
    names = sorted({name for change in config.changes for name in change} - {"epoch", *IN_EVERY_STEP})
    if source.kind != "torch" or not names or not overrides(code, "optimizer"):
        return
    from raygpu.training.torch.models import initial_model

    hp = Hyperparameters.of(config.hyperparameters)
    with contextlib.chdir(source.folder), random_state_kept():
        optimizer = code.optimizer(initial_model(code, hp, seed=0), hp)  # type: ignore[attr-defined]
    if optimizer is not None:
        raise BadInput(
            f"changes: {names[0]} cannot change, as {source.name} has an optimizer() of its own, whose numbers raygpu"
            " does not change; clip_norm and ema_decay can, and scheduler() may change the learning rate"
        )


def tried_step(config: ProblemConfig, source: Source, code: Experiment, hp: Mapping[str, Any]) -> FirstStep:
    """Load the data and try a first step with these hyper-parameters. Raises BadInput if it fails."""
    doubts = list[str]()
    try:
        step = try_step(source, code, hp, load_data(config, source, code, doubts))
    except MissingHyperparameter as error:
        table = config.TABLE
        raise BadInput(f"{table}: {config.code_name} reads {error.name!r}, which [{table}] does not have") from error
    except StepFailed as error:
        raise BadInput(f"experiment: {config.code_name}: a first training step fails: {error}") from error
    return replace(step, notes=(*doubts, *_full_precision(config, step), *step.notes))


def _full_precision(config: ProblemConfig, step: FirstStep) -> list[str]:
    """Return a line where convolutions are computed in full precision, and torch by itself would take TF32."""
    if not step.convolves or config.gpu.precision != "float32":
        return []
    return [FULL_PRECISION] if any((gpu.capability or ()) >= AMPERE for gpu in chosen_gpus(config)) else []
