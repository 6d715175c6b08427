"""Measure how many trainings one GPU carries, in every way to share it, and keep the answer for later sweeps.

python -m raygpu.pack conf/pack/digits.toml
python -m raygpu.pack conf/sweep/digits_cnn.toml --gpu.devices 1     a sweep's file says what to train, too
python -m raygpu.pack conf/pack/digits.toml --compare                kept profiles of several devices, side by side

Each point is measured in several rounds, and stated with its 95 % confidence interval. The verdict names the smallest
number that the best is not shown to exceed. A point that its own windows or its neighbours contradict is measured
again; where it stays so, it is shown as in doubt, and neither the verdict nor the fit nor the kept profile uses it.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raygpu.cli import profile_view
from raygpu.cli.command import Command, Outcome
from raygpu.cli.console import LiveConsole
from raygpu.cli.flags import Arguments
from raygpu.cli.formatting import hyperparameters
from raygpu.config import PackConfig
from raygpu.config.command_names import typed
from raygpu.config.sections import Way
from raygpu.devices import host
from raygpu.devices.fitness import packing_refusal
from raygpu.devices.mps import Access, Mps, NoMps
from raygpu.devices.rgu import rgu
from raygpu.engines.cluster import ray_environment
from raygpu.engines.cluster.sites import local_site
from raygpu.engines.profiling.profile_key import subject
from raygpu.engines.profiling.workload import Repetitions, Workload
from raygpu.errors import BadInput
from raygpu.experiment import Experiment
from raygpu.planning.profiles import Profile, Subject
from raygpu.records import interrupts
from raygpu.records.run_directory import RunDirectory
from raygpu.training.start import signature
from raygpu.workflow.user_code import find, tried_step
from raygpu.workflow.validation import PreparedPack, prepare_pack

if TYPE_CHECKING:
    from raygpu.engines.cluster.cluster import Cluster

DEFAULT = Path("conf/pack/digits.toml")
SWITCHES = {
    "dry-run": "Check the code, print what would be measured, and start nothing.",
    "compare": "Measure nothing: overlay the kept profiles of this training on all devices.",
    "json": "Print the profile (with --compare a list of them) as JSON on standard output, all else on standard error.",
}


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a measurement: its profile, folder and verdict."""

    profile: Profile
    folder: Path
    verdict: list[str]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The kept profiles of one training on several devices."""

    profiles: list[Profile]
    plot: Path


@dataclass(frozen=True, slots=True)
class _Measuring:
    """The training that is measured."""

    prepared: PreparedPack
    workload: Workload
    code: Any
    """The resolved experiment or function; None for a script."""
    subject: Subject


def run(
    config: PackConfig, *, stem: str = "pack", source_folder: Path | None = None, console: LiveConsole | None = None
) -> Result:
    """Measure a training on one device, keep the profile, and leave table, plot and data in `runs/<name>/`.

    stem: first part of the name of a run that is not named. source_folder: the start of the experiment's relative
    paths. Raises BadInput, with a line for each fault.
    """
    console = console or LiveConsole()
    measuring, ways, notes = _planned(config, stem, source_folder, console.lines)
    config = measuring.prepared.config
    folder = RunDirectory.create(Path(config.runs_dir), str(config.name))
    epochs = config.epochs or 1
    try:
        profile = _measured(measuring, ways, notes, str(folder.trials), console.line)
        if config.ways == "all":
            profile = profile.without_threads_that_lose()
        files = _write(profile, folder, epochs)
    except BaseException:
        folder.remove()
        raise
    console.lines(
        [
            "",
            *profile_view.table(profile, epochs),
            "",
            *profile_view.laws(profile),
            *profile_view.doubts(profile),
            *profile.notes,
        ]
    )
    kept = measuring.prepared.profiles.keep(profile) if profile.best() is not None else None
    console.line(f"table, plot and data in {folder.path}" + (f"; the profile, for sweeps, is {kept}" if kept else ""))
    verdict = profile_view.verdict(profile)
    try:
        if config.tracking.enabled:
            from raygpu.tracking import profile_run as tracking

            best = profile.best()
            metrics = {"pack/best/n": best and best.n, "pack/best/gain": best and best.gain}
            console.line(f"MLflow: {tracking.log(config, profile, metrics, files)}")
    finally:
        console.lines(verdict)  # the last words, whatever the tracking server says
    return Result(profile, folder.path, verdict)


def dry_run(config: PackConfig, *, stem: str, source_folder: Path, console: LiveConsole) -> None:
    """Check the training by a first step, and print what would be measured. Raises BadInput."""
    measuring, ways, notes = _planned(config, stem, source_folder, console.lines)
    chosen = config.chosen_numbers
    numbers = ", ".join(map(str, chosen)) if chosen is not None else f"1 to {config.most}"
    console.lines([f"would measure {numbers} trainings at once, by: {', '.join(ways)}", *notes])
    if measuring.workload.splits is None:
        console.line(f"the {measuring.workload.source.kind} itself was not tried: it runs in the measurement alone")


def _planned(
    config: PackConfig, stem: str, source_folder: Path | None, say: Callable[[Sequence[str]], None]
) -> tuple[_Measuring, list[Way], list[str]]:
    """Return the training, the ways to measure, and why others are not; print what it is. Raises BadInput."""
    measuring = _found(config, stem, source_folder, say)
    say(_lines(measuring))
    if measuring.prepared.gpus and (refusal := packing_refusal(measuring.prepared.gpus[0])) is not None:
        raise BadInput(f"gpu: nothing can be measured: {refusal}")
    return measuring, *_ways(measuring)


def _write(profile: Profile, folder: RunDirectory, epochs: int) -> list[Path]:
    files = [folder.path / "profile.json", folder.path / "points.csv", folder.path / "curve.png"]
    files[0].write_text(json.dumps(profile.as_dict(), indent=1))
    profile_view.write_csv(profile, files[1])
    profile_view.plot(profile, files[2], epochs)
    with contextlib.suppress(OSError):  # not empty: what scripts wrote
        folder.trials.rmdir()
    return files


def compare(
    config: PackConfig, *, stem: str = "pack", source_folder: Path | None = None, console: LiveConsole | None = None
) -> Comparison:
    """Overlay the kept profiles of this training on all devices, per device and per Reference GPU Unit."""
    console = console or LiveConsole()
    measuring = _found(config, stem, source_folder, console.lines)
    store = measuring.prepared.profiles
    found = [p for p in store.all() if p.subject.same_training(measuring.subject) and p.best() is not None]
    if not found:
        raise BadInput(
            f"--compare: {store.folder} has no profile of this training; measure it here by {typed('pack')}, and"
            " put the files of other machines' profiles there too"
        )
    units = [None if (gib := p.subject.device_gib) is None else rgu(p.subject.device, gib) for p in found]
    console.lines(profile_view.comparison(found, units))
    folder = RunDirectory.create(Path(measuring.prepared.config.runs_dir), str(measuring.prepared.config.name))
    folder.trials.rmdir()
    path = folder.path / "devices.png"
    profile_view.compare(found, units, path)
    console.line(f"plot: {path}")
    return Comparison(found, path)


def _found(
    config: PackConfig, stem: str, source_folder: Path | None, say: Callable[[Sequence[str]], None]
) -> _Measuring:
    prepared = prepare_pack(config, stem)
    config = prepared.config
    source, code = find(config, (source_folder or Path.cwd()).resolve())
    splits = None
    if isinstance(code, Experiment):
        step = tried_step(config, source, code, prepared.trial.hyperparameters)
        say(step.notes)
        splits = step.splits.part(config.data.fraction, config.seed)
    shaped_by = signature(source, code, splits, prepared.trial)
    site = replace(local_site(prepared.gpus, [host.node(1)]), num_cpus=host.num_cpus())
    workload = Workload(source, splits, prepared.trial, config.gpu.precision)
    return _Measuring(prepared, workload, code, subject(workload, code, shaped_by, site))


def _lines(measuring: _Measuring) -> list[str]:
    config, what = measuring.prepared.config, measuring.subject
    chosen = hyperparameters(measuring.prepared.trial.hyperparameters)
    data = ", synthetic data" if config.data.synthetic else ""
    where = what.device if measuring.prepared.gpus else f"one simulated device, on the CPU: {what.device}"
    return [
        f"pack {config.name}: {config.code_name}{data}; {chosen or 'no hyper-parameters'}",
        f"on {where}, {what.num_cpus:g} CPUs",
    ]


def _ways(measuring: _Measuring) -> tuple[list[Way], list[str]]:
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
    if not measuring.prepared.gpus:
        notes["mps"] = "no NVIDIA GPU here"
    ways = [way for way in asked if way not in notes]
    if not ways:
        raise BadInput([f"ways: {way}: {notes[way]}" for way in asked])
    every = measuring.prepared.config.ways == "all"
    told = [
        f"{way}: not measured: {why}" for way, why in notes.items() if way in asked and (not every or way == "fused")
    ]
    return ways, told


def _obstacle(measuring: _Measuring) -> str | None:
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


def _measured(
    measuring: _Measuring, ways: Sequence[Way], notes: Sequence[str], scratch: str, say: Callable[[str], None]
) -> Profile:
    """Measure the training in these ways; return its profile. scratch: a folder where functions and scripts may
    write."""
    config = measuring.prepared.config
    ray_environment.prepare(local=True)
    from raygpu.engines.cluster.local_cluster import start_local
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
        cluster: Cluster = start_local(measuring.prepared.gpus)
        interrupts.retake_signals()
        ending.callback(cluster.close)
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
        measuring.workload.splits.num_train if measuring.workload.splits is not None else None,
        tuple(benchmark.points),
        (*notes, *benchmark.notes),
        datetime.now(UTC).isoformat(timespec="seconds"),
        config.data.synthetic,
    )


COMMAND = Command("pack", __doc__, PackConfig, DEFAULT, SWITCHES)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    return COMMAND.main(argv, _main)


def _main(arguments: Arguments) -> Outcome:
    config, stem, folder = COMMAND.read(arguments)
    console = LiveConsole(json="json" in arguments.switches)
    if "compare" in arguments.switches:
        compared = compare(config, stem=stem, source_folder=folder, console=console)
        return Outcome(0, [profile.as_dict() for profile in compared.profiles])
    if "dry-run" in arguments.switches:
        dry_run(config, stem=stem, source_folder=folder, console=console)
        return Outcome(0)
    result = run(config, stem=stem, source_folder=folder, console=console)
    return Outcome(int(result.profile.best() is None), result.profile.as_dict())


if __name__ == "__main__":
    sys.exit(main())
