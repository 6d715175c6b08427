"""Validation of a configuration, the experiment and its data: every fault is found before anything is started."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import importlib.util
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from raygpu.config import PackConfig, ProblemConfig, StoredConfig, SweepConfig, TrainConfig
from raygpu.devices import host
from raygpu.devices.nvml import Gpu, gpus
from raygpu.devices.selection import select
from raygpu.errors import BadInput, one_line
from raygpu.experiment import (
    ALL_NAMES,
    Experiment,
    Hyperparameters,
    MissingHyperparameter,
    Source,
    Splits,
    locate,
    take,
)
from raygpu.planning.gpu_shares import Node
from raygpu.planning.profiles import Profiles
from raygpu.planning.sweep_plan import make_plan
from raygpu.search.samplers import Sampler, sampler
from raygpu.search.space import Space, parse, trial_seed
from raygpu.search.trials import Scoring, Trial
from raygpu.storage import LOCAL, Storage
from raygpu.tracking.session import absolute
from raygpu.tracking.stores import check
from raygpu.training.callable.script import OWN_PLACEHOLDERS, placeholders
from raygpu.training.hyperparameters import READ_BY_RAYGPU, OptimizerSettings

ALMOST = 0.85
"""Similarity of two names, 0 to 1, above which one counts as the other misspelt."""
AnyConfig = TypeVar("AnyConfig", bound=ProblemConfig)
BF16 = (8, 0)
"""First compute capability with bfloat16."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A sweep whose configuration is sound. Nothing of the user's code has been loaded yet."""

    config: SweepConfig
    """The configuration with name, number of trials and absolute paths filled in."""
    space: Space
    sampler: Sampler
    gpus: list[Gpu]
    """GPUs of this machine that the sweep uses; none where one is simulated, or where the cluster is not local."""
    nodes: list[Node] | None
    """This machine's nodes; None if the cluster is not local, and has to be asked."""
    left_out: list[str]
    """A line for each GPU that cannot be used."""


@dataclass(frozen=True, slots=True)
class Problem:
    """The user's code and data."""

    source: Source
    code: Any
    """An `Experiment`, a function, or None for a command."""
    splits: Splits | None
    notes: list[str] = field(default_factory=list)
    """Lines for a person to read before the training."""


def prepare(config: SweepConfig, stem: str, *, resuming: bool = False) -> Prepared:
    """Check everything about a sweep that can be checked cheaply.

    stem: first part of the name of a sweep that is not named. Raises BadInput with a line for each fault.
    """
    faults: list[str] = []
    space = search = nodes = None
    chosen: list[Gpu] = []
    left_out: list[str] = []
    with _noted(faults):
        space = parse(config.space, config.search.algorithm)
        search = sampler(config, space)
    with _noted(faults):
        if config.cluster.is_local:
            chosen, left_out = host.computing(chosen_gpus(config))
            nodes = host.nodes(chosen, apart=apart(config))
            make_plan(nodes, config, 1)  # whether a trial fits
        elif config.gpu.devices != "all":
            faults.append("gpu.devices: chooses GPUs of this machine; a cluster's nodes are started with theirs")
    located = _located(config, stem, faults, resuming=resuming)
    if faults:
        raise BadInput(faults)
    assert space is not None
    assert search is not None
    return Prepared(located.model_copy(update={"trials": search.num_trials}), space, search, chosen, nodes, left_out)


@dataclass(frozen=True, slots=True)
class PreparedPack:
    """A measurement whose configuration is sound."""

    config: PackConfig
    """The configuration with name and absolute paths filled in."""
    trial: Trial
    """The trial that is trained: the first draw of [space], or of a sweep's grid the first combination."""
    gpus: list[Gpu]
    """The GPU that is measured; none where one is simulated."""
    profiles: Profiles


def prepare_pack(config: PackConfig, stem: str) -> PreparedPack:
    """Check everything about a measurement of one training that can be checked cheaply.

    stem: first part of the name of a run that is not named. Raises BadInput with a line for each fault.
    """
    faults: list[str] = []
    hyperparameters: dict[str, Any] = {}
    chosen: list[Gpu] = []
    profiles = Profiles.at(config.profiles)
    with _noted(faults):
        if any(isinstance(values, dict) and "grid_search" in values for values in config.space.values()):
            hyperparameters = next(parse(config.space, "grid").grid())
        elif config.space:
            hyperparameters = parse(config.space).draw(config.seed, 0)
    with _noted(faults):
        chosen = chosen_gpus(config)[:1]
    with _noted(faults):
        profiles.check()
    located = _located(config, stem, faults, resuming=False)
    if faults:
        raise BadInput(faults)
    trial = Trial(Trial.name(0), trial_seed(config.seed, 0), hyperparameters)
    return PreparedPack(located, trial, chosen, profiles)


@dataclass(frozen=True, slots=True)
class PreparedTrain:
    """A production training whose configuration is sound."""

    config: TrainConfig
    """The configuration with name and absolute paths filled in."""
    trial: Trial
    gpus: list[Gpu]
    """GPUs of this machine that are used; none where one is simulated, or where the cluster is not local."""
    left_out: list[str]
    """A line for each GPU that cannot be used."""


def prepare_train(config: TrainConfig, stem: str, *, resuming: bool = False) -> PreparedTrain:
    """Check everything about a production training that can be checked cheaply.

    stem: first part of the name of a run that is not named. Raises BadInput with a line for each fault.
    """
    faults: list[str] = []
    chosen: list[Gpu] = []
    left_out: list[str] = []
    with _noted(faults):
        if config.cluster.is_local:
            chosen, left_out = host.computing(chosen_gpus(config))
        elif config.gpu.devices != "all":
            faults.append("gpu.devices: chooses GPUs of this machine; a cluster's nodes are started with theirs")
    if config.gpu.precision == "bf16":
        lacking = [gpu.name for gpu in chosen if gpu.capability is not None and gpu.capability < BF16]
        faults += [f"gpu.precision: read bf16, which a {name} does not have" for name in dict.fromkeys(lacking)]
    located = _located(config, stem, faults, resuming=resuming)
    if faults:
        raise BadInput(faults)
    trial = Trial(str(config.source.get("trial_id", Trial.name(0))), config.seed, config.hyperparameters)
    return PreparedTrain(located, trial, chosen, left_out)


@contextlib.contextmanager
def _noted(faults: list[str]) -> Iterator[None]:
    """Collect the faults raised inside, so that a person sees them all at once."""
    try:
        yield
    except BadInput as error:
        faults += error.faults


def apart(config: SweepConfig) -> bool:
    """Return whether unequal GPUs of one machine are planned for separately; a trial that takes several may mix
    them."""
    return config.gpu.fraction == "auto" or config.gpu.fraction <= 1


def chosen_gpus(config: ProblemConfig) -> list[Gpu]:
    """Return the GPUs of this machine that `gpu.devices` names. Raises BadInput."""
    found = gpus()
    return select(found, config.gpu.devices, os.environ.get("CUDA_VISIBLE_DEVICES") if found else None)


def _located(config: AnyConfig, stem: str, faults: list[str], *, resuming: bool) -> AnyConfig:
    """Return the configuration with a name and absolute paths, and add a fault for each path that cannot be used."""
    if config.command is not None:
        faults += _command_faults(config)
    uri = config.tracking.uri
    if config.tracking.enabled:
        with _noted(faults):
            uri = absolute(config.tracking.found().uri)
            check(uri)
    where: dict[str, str] = {"runs_dir": str(Path(config.runs_dir).resolve())}
    with _noted(faults):
        where |= _stored(config)
    if not resuming:
        faults += _folder_faults(config, Path(where["runs_dir"]))
    return config.model_copy(
        update={
            "name": config.name or f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}",
            "tracking": config.tracking.model_copy(update={"uri": uri}),
            **where,
        }
    )


def _stored(config: ProblemConfig) -> dict[str, str]:
    """Return the settings for a run's storage, unless it is runs_dir alone. Raises BadInput if it is unusable."""
    if not isinstance(config, StoredConfig) or config.storage == LOCAL:
        return {}
    storage = Storage.at(config.storage)
    if storage.path is None:
        storage.check()
        return {"storage": storage.uri}
    if config.runs_dir != type(config).model_fields["runs_dir"].default:
        raise BadInput(f"runs_dir: {config.storage} is where runs' folders go, by storage; give one of the two")
    return {"storage": LOCAL, "runs_dir": str(storage.path)}


def find(config: ProblemConfig, folder: Path) -> tuple[Source, Any]:
    """Return the source and the user's code: an `Experiment`, a function, or None for a command. Raises BadInput.

    folder: the start of relative paths.
    """
    source, code = Source("command", str(config.command), str(folder)), None
    if config.experiment is not None:
        source, code = locate(config.experiment, folder)
        _require_framework(source)
    if config.data.synthetic:
        _require_synthetic(source, code)
    return source, code


def _require_framework(source: Source) -> None:
    """Raise BadInput if the experiment's framework is not installed here."""
    extra = {"torch": "torch", "keras": "tensorflow"}.get(source.kind)
    if extra is not None and importlib.util.find_spec(extra) is None:
        raise BadInput(f"experiment: {source.name} needs {extra}, which is not installed here: pip install {extra}")


def problem(prepared: Prepared, source: Source, code: Any) -> Problem:
    """Load the data once, and check that the metric exists. Raises BadInput."""
    config = prepared.config
    if not isinstance(code, Experiment):
        return Problem(source, code, None)
    if config.gpu.fraction != "auto" and config.gpu.fraction > 1:
        raise BadInput(
            f"gpu.fraction: read {config.gpu.fraction:g}; a TorchExperiment or KerasExperiment trains on one GPU,"
            " and only a function or a script may use several"
        )
    if config.epochs is None:
        raise BadInput("epochs: not given; a TorchExperiment or KerasExperiment trains for a fixed number of epochs")
    splits = load_data(config, source, code)
    notes = _check_metric(prepared, source, code, splits)
    return Problem(source, code, splits.part(config.data.fraction, config.seed), notes)


def load_data(config: ProblemConfig, source: Source, code: Experiment) -> Splits:
    """Load all of an experiment's data, real or synthetic. Raises BadInput."""
    name, load = ("synthetic()", code.synthetic) if config.data.synthetic else ("data()", code.data)
    try:
        with contextlib.chdir(source.folder):
            splits = load()
    except (Exception, SystemExit) as error:  # the user's code: whatever it raises is the message
        raise BadInput(f"experiment: {config.experiment}: {name} failed: {one_line(error)}") from error
    if not isinstance(splits, Splits):
        raise BadInput(f"experiment: {config.experiment}: {name} returned {type(splits).__name__}, not Splits")
    return splits


def _require_synthetic(source: Source, code: Any) -> None:
    """Raise BadInput if the user's code has no synthetic data."""
    if not isinstance(code, Experiment):
        what = f"a {source.kind} loads its own data; only a TorchExperiment or KerasExperiment can have made-up data"
        raise BadInput(f"data.synthetic: read true; {what}")
    if type(code).synthetic is Experiment.synthetic:
        raise BadInput(
            f"data.synthetic: read true; {source.name} has no made-up data: give it a method synthetic(self) that"
            " returns Splits of data()'s shapes and types"
        )


def _command_faults(config: ProblemConfig) -> list[str]:
    assert config.command is not None
    try:
        used = placeholders(config.command)
    except BadInput as error:
        return list(error.faults)
    names = getattr(config, config.TABLE)
    return [
        f"command: {{{name}}} is no hyper-parameter; [{config.TABLE}] has: {', '.join(sorted(names)) or 'none'}"
        for name in sorted(used - {*names, *OWN_PLACEHOLDERS})
    ]


def _folder_faults(config: ProblemConfig, runs_dir: Path) -> list[str]:
    try:
        existing = next(folder for folder in (runs_dir, *runs_dir.parents) if folder.exists())
        tempfile.TemporaryDirectory(dir=existing).cleanup()  # the rights alone do not tell of a read-only file system
    except OSError as error:
        return [f"runs_dir: {runs_dir} cannot be written ({error.strerror}); choose another --runs-dir"]
    if config.name is not None and (runs_dir / config.name).exists():
        path = runs_dir / config.name
        return [f"name: {path} exists already; go on with it by --resume {path}, or choose another --name"]
    return []


def _check_metric(prepared: Prepared, source: Source, code: Experiment, splits: Splits) -> list[str]:
    """Evaluate a new model on a few samples to find the metric; return a line for each name that looks misspelt.

    Other exceptions of the user's code are left to the trials. Raises BadInput, and UnknownMetric.
    """
    config = prepared.config
    grid = config.search.algorithm == "grid"
    hp = Hyperparameters(next(prepared.space.grid()) if grid else prepared.space.draw(config.seed, 0))
    try:
        names = _metric_names(source, code, hp, splits)
    except MissingHyperparameter as error:
        if error.name in config.space:
            return []  # a conditional one, which this draw happens to lack
        raise BadInput(f"space: {config.experiment} reads {error.name!r}, which [space] does not have") from error
    except Exception:  # noqa: BLE001 - a fault of the user's code is its trials' result
        return []
    Scoring(config.metric, config.maximize).key(dict.fromkeys(names))
    return _misspelt(config.space, hp)


def _misspelt(space: Mapping[str, Any], hp: Hyperparameters) -> list[str]:
    """Return a line for each hyper-parameter that the model did not read and that resembles a missing one."""
    read = set(hp.names_read)
    if ALL_NAMES in read:
        return []
    wanted = {*READ_BY_RAYGPU, *(each.name for each in dataclasses.fields(OptimizerSettings)), *read}
    near = {name: difflib.get_close_matches(name, wanted - set(space), 1, ALMOST) for name in set(hp) - wanted}
    return [
        f"space: the model does not read {name}: if nothing does, did you mean {found[0]}?"
        for name, found in sorted(near.items())
        if found
    ]


def training_problem(prepared: PreparedTrain, source: Source, code: Any) -> Problem:
    """Load the data, and check that the model can be made and the metric exists. Raises BadInput."""
    config = prepared.config
    if not isinstance(code, Experiment):
        what = "raygpu.train takes a TorchExperiment or a KerasExperiment"
        raise BadInput(f"{'command' if code is None else 'experiment'}: {source.name} is a {source.kind}; {what}")
    if source.kind == "torch" and config.devices_per_worker > 1:
        raise BadInput(
            f"devices_per_worker: read {config.devices_per_worker}; a worker of torch drives one: take more --workers"
        )
    if source.kind == "keras" and config.compile:
        raise BadInput("compile: read true, which is torch.compile; a Keras model's steps are graphs already")
    if config.epochs is None:
        raise BadInput("epochs: not given; a TorchExperiment or KerasExperiment trains for a fixed number of epochs")
    splits = load_data(config, source, code)
    try:
        names = _metric_names(source, code, config.hyperparameters, splits)
    except MissingHyperparameter as error:
        raise BadInput(
            f"hyperparameters: {config.experiment} reads {error.name!r}, which [hyperparameters] does not have"
        ) from error
    except Exception as error:  # the user's code: whatever it raises is the message
        raise BadInput(f"experiment: {source.name}: an evaluation failed: {one_line(error)}") from error
    Scoring(config.metric, config.maximize).key(dict.fromkeys(names))
    return Problem(source, code, splits.part(config.data.fraction, config.seed))


def require_fitting(found: Problem, hyperparameters: Mapping[str, Any], checkpoint: Storage, flag: str) -> None:
    """Raise BadInput if a checkpoint is not of this model. flag: the flag that named it."""
    try:
        with checkpoint.fetched() as folder, contextlib.chdir(found.source.folder):
            if found.source.kind == "torch":
                from raygpu.training.torch import solo as torch_solo

                torch_solo.trained_model(found.code, hyperparameters, folder)
            else:
                from raygpu.training.keras import solo as keras_solo

                assert found.splits is not None
                few = take(found.splits.validation_inputs, slice(0, 2))
                keras_solo.trained_model(found.code, hyperparameters, folder, few)
    except Exception as error:
        model = f"{found.source.name} with these hyper-parameters"
        raise BadInput(f"{flag}: {checkpoint} is no checkpoint of {model}: {one_line(error)}") from error


def require_one_fitting(found: Problem, hyperparameters: Mapping[str, Any], checkpoints: Sequence[Storage]) -> None:
    """Raise BadInput if none of a run's checkpoints, the latest first, is of this model; the latest may be cut
    short."""
    faults: list[BadInput] = []
    for checkpoint in checkpoints:
        try:
            return require_fitting(found, hyperparameters, checkpoint, "--resume")
        except BadInput as error:
            faults.append(error)
    if faults:
        raise faults[0]


def _metric_names(source: Source, code: Experiment, hp: Mapping[str, Any], splits: Splits) -> list[str]:
    if source.kind == "torch":
        from raygpu.training.torch.solo import metric_names
    else:
        from raygpu.training.keras.solo import metric_names
    with contextlib.chdir(source.folder):
        return metric_names(code, hp, splits)
