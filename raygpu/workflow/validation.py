"""A checked configuration: every fault that shows without the user's code is found here, before anything starts."""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeVar

from raygpu.config import PackConfig, PlaceConfig, ProblemConfig, StoredConfig, SweepConfig, TrainConfig
from raygpu.config.metric_direction import PARTS, direction_of
from raygpu.devices import host
from raygpu.devices.nvml import Gpu, gpus
from raygpu.devices.selection import select
from raygpu.errors import BadInput, TrackingError, suggestion
from raygpu.planning.gpu_shares import Node, snap
from raygpu.planning.sweep_plan import make_plan
from raygpu.records import slurm_job
from raygpu.records.profile_store import ProfileStore
from raygpu.records.run_directory import RunDirectory
from raygpu.records.run_name import automatic_name
from raygpu.search.command_line import FOLD_PLACEHOLDERS, OWN_PLACEHOLDERS, placeholders
from raygpu.search.repeats import repeated
from raygpu.search.samplers import Sampler, sampler
from raygpu.search.space import Space, parse, trial_seed
from raygpu.search.trials import Trial
from raygpu.storage import LOCAL, Storage, is_job
from raygpu.tracking.stores import absolute, check
from raygpu.workflow.population_checks import population_faults
from raygpu.workflow.resumed_runs import begun_sets
from raygpu.workflow.starting_points import with_earlier_best
from raygpu.workflow.unused_settings import unused_settings

AnyConfig = TypeVar("AnyConfig", bound=ProblemConfig)
AMPERE = (8, 0)
"""First compute capability with bfloat16 and with TF32."""
NOT_FROM_WORKERS = (
    "a job of {} runs on a node with a GPU, and in a cluster of deploy/kubernetes the head alone reaches MLflow: its"
    " results are kept by --tracking.enabled false --storage s3://BUCKET/FOLDER"
)
"""Advice for a job whose own process measures."""
MEASURED_HERE = "a measurement keeps its results below runs_dir alone by --storage local, whatever its file says"
"""Advice for a measurement by the file of a sweep, whose storage this machine may not reach."""


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
    notes: list[str]
    """Lines on starting points of another sweep."""


def prepare(config: SweepConfig, stem: str, resume: RunDirectory | None = None) -> Prepared:
    """Check everything about a sweep that can be checked cheaply.

    stem: first part of the name of a sweep that is not named. resume: folder of the sweep that goes on. Raises BadInput
    with a line for each fault.
    """
    faults: list[str] = []
    notes: list[str] = []
    space = search = None
    with _noted(faults):
        space = parse(config.space, config.search.algorithm)
        if resume is None:
            config, notes = with_earlier_best(config, space)
            notes += unused_settings(config, space)
        base = sampler(config, space, None if resume is None else begun_sets(resume))
        faults += population_faults(config, space, getattr(base, "trials", ()))
        search = repeated(base, config)
    chosen, left_out, nodes = _local_nodes(config, faults, apart=apart(config))
    with _noted(faults):
        if nodes is not None:
            make_plan(nodes, config, 1)  # whether a trial fits
    located = _located(config, stem, faults, resuming=resume is not None)
    assert space is not None
    assert search is not None
    config = located.model_copy(update={"trials": search.num_trials // config.per_set})
    return Prepared(config, space, search, chosen, nodes, left_out, notes)


@dataclass(frozen=True, slots=True)
class PreparedPack:
    """A measurement whose configuration is sound."""

    config: PackConfig
    """The configuration with name and absolute paths filled in."""
    trial: Trial
    """The trial that is trained: the first draw of [space], or of a sweep's grid the first combination."""
    gpus: list[Gpu]
    """The GPU that is measured; none where one is simulated."""
    profiles: ProfileStore


def prepare_pack(config: PackConfig, stem: str) -> PreparedPack:
    """Check everything about a measurement of one training that can be checked cheaply.

    stem: first part of the name of a run that is not named. Raises BadInput with a line for each fault.
    """
    faults: list[str] = []
    hyperparameters: dict[str, Any] = {}
    chosen: list[Gpu] = []
    profiles = ProfileStore.at(config.profiles)
    with _noted(faults):
        hyperparameters = next(draws(config), {})
    with _noted(faults):
        chosen = chosen_gpus(config)[:1]
        require_precision(config, chosen)
    with _noted(faults):
        profiles.check()
    located = _located(config, stem, faults, resuming=False)
    trial = Trial(Trial.name(0), trial_seed(config.seed, 0), hyperparameters)
    return PreparedPack(located, trial, chosen, profiles)


def draws(config: PackConfig) -> Iterator[dict[str, Any]]:
    """Yield the sets of hyper-parameters that [space] draws, the measured one first; none without a space. Raises
    BadInput."""
    if any(isinstance(values, dict) and "grid_search" in values for values in config.space.values()):
        yield from parse(config.space, "grid").grid()
    elif config.space:
        space = parse(config.space)
        yield from (space.draw(config.seed, index) for index in itertools.count())


@dataclass(frozen=True, slots=True)
class PreparedPlace:
    """A comparison of placements whose configuration is sound."""

    config: PlaceConfig
    """The configuration with name and absolute paths filled in."""
    trial: Trial
    gpus: list[Gpu]
    """GPUs of this machine that are used; none where devices are simulated."""
    left_out: list[str]
    """A line for each GPU that cannot be used."""
    num_devices: int


def prepare_place(config: PlaceConfig, stem: str) -> PreparedPlace:
    """Check everything about a comparison of placements that can be checked cheaply.

    stem: first part of the name of a run that is not named. Raises BadInput with a line for each fault.
    """
    faults: list[str] = []
    chosen: list[Gpu] = []
    left_out: list[str] = []
    with _noted(faults):
        chosen, left_out = host.computing(chosen_gpus(config))
    num_devices = max(2, len(chosen)) if config.devices == "all" else config.devices
    chosen = chosen[:num_devices]
    with _noted(faults):
        require_precision(config, chosen)
    located = _located(config, stem, faults, resuming=False)
    trial = Trial(Trial.name(0), config.seed, config.hyperparameters)
    return PreparedPlace(located, trial, chosen, left_out, num_devices)


@dataclass(frozen=True, slots=True)
class PreparedTrain:
    """A production training whose configuration is sound."""

    config: TrainConfig
    """The configuration with name and absolute paths filled in."""
    trial: Trial
    gpus: list[Gpu]
    """GPUs of this machine that are used; none where one is simulated, or where the cluster is not local."""
    nodes: list[Node] | None
    """This machine's nodes; None if the cluster is not local, and has to be asked."""
    left_out: list[str]
    """A line for each GPU that cannot be used."""


def prepare_train(config: TrainConfig, stem: str, *, resuming: bool = False) -> PreparedTrain:
    """Check everything about a production training that can be checked cheaply.

    stem: first part of the name of a run that is not named. Raises BadInput with a line for each fault.
    """
    faults: list[str] = []
    chosen, left_out, nodes = _local_nodes(config, faults, apart=False)
    if config.registered_name is not None and not config.tracking.enabled:
        faults.append("registered_name: the registry is MLflow's, and tracking.enabled is false; leave out one of both")
    located = _located(config, stem, faults, resuming=resuming)
    trial = Trial(str(config.source.get("trial_id", Trial.name(0))), config.seed, config.hyperparameters)
    return PreparedTrain(located, trial, chosen, nodes, left_out)


def _local_nodes(
    config: SweepConfig | TrainConfig, faults: list[str], *, apart: bool
) -> tuple[list[Gpu], list[str], list[Node] | None]:
    """Return the GPUs of this machine that are used, a line for each that cannot be, and the nodes that they make.

    None in place of nodes where the cluster is not local, or a fault was added.
    """
    with _noted(faults):
        if config.cluster.is_local:
            chosen, left_out = host.computing(chosen_gpus(config))
            require_precision(config, chosen)
            return chosen, left_out, host.nodes(chosen, apart=apart)
        if config.gpu.devices != "all":
            faults.append("gpu.devices: chooses GPUs of this machine; a cluster's nodes are started with theirs")
    return [], [], None


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


def least(config: SweepConfig) -> Fraction | None:
    """Return the smallest number of GPUs on which a trial of the sweep runs; None where its share is chosen."""
    return None if config.gpu.fraction == "auto" else snap(config.gpu.fraction).part


def chosen_gpus(config: ProblemConfig) -> list[Gpu]:
    """Return the GPUs of this machine that `gpu.devices` names. Raises BadInput."""
    all_gpus = gpus()
    return select(all_gpus, config.gpu.devices, os.environ.get("CUDA_VISIBLE_DEVICES") if all_gpus else None)


def require_precision(config: ProblemConfig, chosen: Sequence[Gpu]) -> None:
    """Raise BadInput if a GPU lacks `gpu.precision`."""
    lacking = [gpu.name for gpu in chosen if gpu.capability is not None and gpu.capability < AMPERE]
    if config.gpu.precision == "bf16" and lacking:
        raise BadInput(
            [f"gpu.precision: read bf16, which a {name} does not have: use fp16" for name in dict.fromkeys(lacking)]
        )


def _located(config: AnyConfig, stem: str, faults: list[str], *, resuming: bool) -> AnyConfig:
    """Return the configuration with a name and absolute paths.

    Raises BadInput with the faults so far, and one for each path that cannot be used.
    """
    if isinstance(config, SweepConfig | TrainConfig) and not resuming and config.direction is None:
        faults += _direction_faults(config.metric)
    if isinstance(config, SweepConfig) and not resuming and not config.directions:
        faults += [
            f"directions: not given, and {name!r} does not say whether more is better; give one for each metric, as in"
            ' directions = ["max", "min"]'
            for name, _ in config.further_metrics
            if direction_of(name) is None
        ]
    if config.command is not None:
        faults += _command_faults(config)
    uri = config.tracking.uri
    if config.tracking.enabled:
        with _noted(faults):
            uri = absolute(config.tracking.found().uri)
            _check_store(config, uri)
    where: dict[str, str] = {"runs_dir": str(Path(config.runs_dir).resolve())}
    with _noted(faults):
        where |= _stored(config)
    if not resuming:
        faults += _folder_faults(config, Path(where["runs_dir"]))
    if faults:
        raise BadInput(faults)
    return config.model_copy(
        update={
            "name": config.name or automatic_name(Path(where["runs_dir"]), stem),
            "tracking": config.tracking.model_copy(update={"uri": uri}),
            **where,
        }
    )


def _check_store(config: ProblemConfig, uri: str) -> None:
    """Check the MLflow store. Raises BadInput, with advice where a job measures on a node that may not reach it."""
    try:
        check(uri)
    except TrackingError as error:
        if is_job() and isinstance(config, PackConfig | PlaceConfig):
            raise BadInput(f"{error}; {NOT_FROM_WORKERS.format(config.COMMAND)}") from error
        raise


def _direction_faults(metric: str) -> list[str]:
    """Return a fault if a metric's name does not say whether a larger value is better."""
    if direction_of(metric) is not None:
        return []
    return [
        f"direction: not given, and {metric!r}{suggestion(metric, [*PARTS])} does not say whether more is better; give"
        ' direction = "max" or "min"'
    ]


def _stored(config: ProblemConfig) -> dict[str, str]:
    """Return the settings for a run's storage, unless it is runs_dir alone. Raises BadInput if it is unusable."""
    if not isinstance(config, StoredConfig) or config.storage == LOCAL:
        return {}
    storage = Storage.at(config.storage)
    if storage.path is None:
        try:
            storage.check()
        except BadInput as error:
            if is_job() or not isinstance(config, PackConfig | PlaceConfig):
                raise
            raise BadInput(f"{error}; {MEASURED_HERE}") from error
        return {"storage": storage.uri}
    return {"storage": LOCAL, "runs_dir": str(config.runs_folder())}


def _command_faults(config: ProblemConfig) -> list[str]:
    assert config.command is not None
    try:
        used = placeholders(config.command)
    except BadInput as error:
        return list(error.faults)
    names = getattr(config, config.TABLE)
    faults = [
        f"command: {{{name}}} is no hyper-parameter; [{config.TABLE}] has: {', '.join(sorted(names)) or 'none'}"
        for name in sorted(used - {*names, *OWN_PLACEHOLDERS})
    ]
    if not isinstance(config, SweepConfig):
        return faults
    if config.repeats > 1 and "seed" not in used:
        faults.append(
            f"repeats: read {config.repeats}, which differ in their seed alone, and command does not use it; write"
            " {seed} where the script reads it"
        )
    return faults + _fold_faults(config.folds, used, names)


def _fold_faults(folds: int | None, used: Collection[str], names: Collection[str]) -> list[str]:
    """Return a fault of a script that does not learn its fold, or that asks for one without a cross-validation.

    used: placeholders of the command. names: the hyper-parameters.
    """
    if folds is not None:
        advice = "a script cuts its own data: give it --fold {fold} --folds {folds} in the command, or leave out folds"
        return [] if "fold" in used else [f"folds: read {folds}; {advice}"]
    return [
        f"command: {{{name}}} is for a cross-validation; give folds, as in folds = 5"
        for name in FOLD_PLACEHOLDERS
        if name in used and name not in names
    ]


def _folder_faults(config: ProblemConfig, runs_dir: Path) -> list[str]:
    try:
        existing = next(folder for folder in (runs_dir, *runs_dir.parents) if folder.exists())
        tempfile.TemporaryDirectory(dir=existing).cleanup()  # the rights alone do not tell of a read-only file system
    except OSError as error:
        return [f"runs_dir: {runs_dir} cannot be written ({error.strerror}); choose another --runs-dir"]
    if config.name is not None and slurm_job.is_taken(runs_dir / config.name):
        path = runs_dir / config.name
        return [f"name: {path} exists already; go on with it by --resume {path}, or choose another --name"]
    return []
