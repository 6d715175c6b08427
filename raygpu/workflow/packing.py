"""The training that a pack measures: found, checked, and measured in every way to share a device, and on several."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raygpu.cli.formatting import hyperparameters
from raygpu.config import PackConfig
from raygpu.config.sections import Way
from raygpu.devices import host, mps
from raygpu.devices.fitness import packing_refusal
from raygpu.devices.mps import Access, Mps, NoMps
from raygpu.engines.cluster.hardware import local_hardware
from raygpu.engines.profiling.profile_key import subject, versions_of
from raygpu.engines.profiling.workload import Repetitions, Workload
from raygpu.errors import BadInput
from raygpu.experiment import Experiment, reads_later
from raygpu.planning.advice import Scaling
from raygpu.planning.profiles import Profile, Subject
from raygpu.records.run_directory import RunDirectory
from raygpu.search.trials import Trial
from raygpu.training.start import signature
from raygpu.workflow.data_parts import cut_lines, part_of, require_own_settings
from raygpu.workflow.ray_startup import measuring_ray, require_no_ray
from raygpu.workflow.user_code import find, tried_step
from raygpu.workflow.validation import PreparedPack, chosen_gpus, prepare_pack, require_precision

if TYPE_CHECKING:
    from raygpu.devices.nvml import Gpu


@dataclass(frozen=True, slots=True)
class MeasuredTraining:
    """The training that is measured."""

    prepared: PreparedPack
    workload: Workload
    code: Any
    """The resolved experiment or function; None for a script."""
    subject: Subject

    @property
    def samples_per_epoch(self) -> int | None:
        """Training samples of an epoch; None if raygpu does not load the data."""
        return None if self.workload.splits is None else self.workload.splits.samples_per_epoch


def plan_pack(
    config: PackConfig, stem: str, source_folder: Path | None, say: Callable[[Sequence[str]], None]
) -> tuple[MeasuredTraining, list[Way], list[str]]:
    """Return the training, the ways to measure, and why others are not; print what it is. Raises BadInput."""
    measuring = find_training(config, stem, source_folder, say)
    say(_lines(measuring))
    if measuring.prepared.gpus and (refusal := packing_refusal(measuring.prepared.gpus[0])) is not None:
        raise BadInput(f"gpu: nothing can be measured: {refusal}")
    return measuring, *_ways(measuring)


def find_training(
    config: PackConfig, stem: str, source_folder: Path | None, say: Callable[[Sequence[str]], None]
) -> MeasuredTraining:
    """Find the code and the data, and try a first step of an experiment. Raises BadInput."""
    require_no_ray()
    prepared = prepare_pack(config, stem)
    workload, code, profile_key = subject_of(prepared.config, prepared.trial, prepared.gpus, source_folder, say)
    return MeasuredTraining(prepared, workload, code, profile_key)


def subject_of(
    config: PackConfig,
    trial: Trial,
    gpus: Sequence[Gpu],
    source_folder: Path | None,
    say: Callable[[Sequence[str]], None],
) -> tuple[Workload, Any, Subject]:
    """Load a training's code and data and try a first step; return them with the key of its profile. Raises BadInput.

    gpus: the GPU that the profile is of; empty for a simulated one.
    """
    source, code = find(config, (source_folder or Path.cwd()).resolve())
    splits = None
    if not isinstance(code, Experiment):
        require_own_settings(config, source)
    else:
        step = tried_step(config, source, code, trial.hyperparameters)
        splits = part_of(config, step.splits, trial.hyperparameters)
        say([*step.notes, *cut_lines(step.splits, splits)])
    shaped_by = signature(source, code, splits, trial)
    hardware = replace(local_hardware(gpus, [host.node(1)]), num_cpus=host.num_cpus())
    workload = Workload(source, splits, trial, config.gpu.precision)
    return workload, code, subject(workload, versions_of(source, code), shaped_by, hardware)


def _lines(measuring: MeasuredTraining) -> list[str]:
    config, profile_key = measuring.prepared.config, measuring.subject
    chosen = hyperparameters(measuring.prepared.trial.hyperparameters)
    data = ", synthetic data" if config.data.synthetic else ""
    where = profile_key.device if measuring.prepared.gpus else f"one simulated GPU, the CPU: {profile_key.device}"
    return [
        f"pack {config.name}: {config.code_name}{data}; {chosen or 'no hyper-parameters'}",
        f"on {where}, {profile_key.num_cpus:g} CPUs",
    ]


def _ways(measuring: MeasuredTraining) -> tuple[list[Way], list[str]]:
    """Return the ways that exist for this training here, and why others do not. Raises BadInput if none does."""
    asked = measuring.prepared.config.chosen_ways
    kind = measuring.workload.source.kind
    notes: dict[Way, str] = {}
    if kind != "torch":
        notes["fused"] = "only a TorchExperiment can be fused"
    elif "fused" in asked and (reason := _obstacle(measuring)) is not None:
        notes["fused"] = reason
    if kind != "keras":
        notes["split"] = "only a KerasExperiment runs on TensorFlow's logical devices"
    if kind not in ("torch", "keras"):
        notes["threads"] = "only an experiment's training shares a process"
    splits = measuring.workload.splits
    if kind == "keras" and splits is not None and reads_later(splits.train_inputs):
        notes |= dict.fromkeys(("split", "threads"), "Keras trainings that share a process take arrays")
    if not measuring.prepared.gpus:
        notes["mps"] = "no NVIDIA GPU here"
    elif "mps" in asked and (reason := mps.unavailable(measuring.prepared.gpus[0].uuid)) is not None:
        notes["mps"] = reason
    ways = [way for way in asked if way not in notes]
    if not ways:
        raise BadInput([f"ways: {way}: {notes[way]}" for way in asked])
    every = measuring.prepared.config.ways == "all"
    told = {"fused"} | ({"mps"} if measuring.prepared.gpus else set())
    lines = [f"{way}: not measured: {why}" for way, why in notes.items() if way in asked and (not every or way in told)]
    return ways, lines


def _obstacle(measuring: MeasuredTraining) -> str | None:
    from raygpu.training.fused.groups import TorchGrouper

    assert measuring.workload.splits is not None
    trial = measuring.prepared.trial
    twice = [trial, replace(trial, trial_id="again", seed=trial.seed + 1)]
    grouper = TorchGrouper(
        measuring.code,
        measuring.workload.splits,
        measuring.prepared.config.gpu.precision,
        measuring.workload.source.folder,
    )
    return grouper.groups(twice)[0].reason


def measure(
    measuring: MeasuredTraining, ways: Sequence[Way], notes: Sequence[str], scratch: str, say: Callable[[str], None]
) -> Profile:
    """Measure the training in these ways; return its profile. scratch: a folder where functions and scripts may
    write."""
    config = measuring.prepared.config
    from raygpu.engines.profiling.concurrency_benchmark import ConcurrencyBenchmark
    from raygpu.engines.profiling.probe_workers import ProbeProcesses

    ways, notes = list(ways), list(notes)
    with contextlib.ExitStack() as ending:
        access: Access | None = None
        if "mps" in ways:
            gpu = measuring.prepared.gpus[0]
            try:
                access = ending.enter_context(Mps.start(gpu.uuid)).access
            except NoMps as error:
                ways.remove("mps")
                notes.append(f"mps: not measured: {error}")
        gpus = measuring.prepared.gpus
        cluster = ending.enter_context(measuring_ray(config, gpus, say, of=visible_to_a_service(config)))
        probe = ProbeProcesses(cluster, cluster.devices[0], measuring.workload, scratch)
        ending.callback(probe.close)
        repetitions = Repetitions(config.window_s, config.rounds)
        benchmark = ConcurrencyBenchmark(
            probe, ways, repetitions, most=config.most, mps=access, numbers=config.chosen_numbers, say=say
        )
        benchmark.run()
        benchmark.compile()
    return Profile(
        measuring.subject,
        measuring.samples_per_epoch,
        tuple(benchmark.points),
        (*notes, *benchmark.notes),
        datetime.now(UTC).isoformat(timespec="seconds"),
        config.data.synthetic,
    )


def visible_to_a_service(config: PackConfig) -> list[Gpu]:
    """Return the GPUs that a service has which was started in this environment."""
    return host.computing(
        chosen_gpus(config.model_copy(update={"gpu": config.gpu.model_copy(update={"devices": "all"})}))
    )[0]


def measure_scaling(measuring: MeasuredTraining, folder: RunDirectory, say: Callable[[str], None]) -> Scaling:
    """Measure one training on several devices, or bound its speed-up by parts of its batch on one."""
    from raygpu.engines.profiling.scaling_benchmark import ScalingBenchmark

    config, workload = measuring.prepared.config, measuring.workload
    if workload.splits is None:
        note = "one training on several devices: not measured: only an experiment's batch can be divided over devices"
        return Scaling(notes=(note,))
    gpus = host.computing(chosen_gpus(config))[0]
    require_precision(config, gpus)
    asked = config.workers if config.workers != "all" else len(gpus) or 1
    gpus = gpus[:asked]
    with measuring_ray(config, gpus, say) as cluster:
        benchmark = ScalingBenchmark(cluster, workload, folder.shared_checkpoints, config.rounds, config.window_s, say)
        return benchmark.scaling(len(gpus) or asked)
