"""Measure how many trainings one GPU carries, in every way to share it, and keep the answer for later sweeps.

python -m raygpu.pack conf/pack/digits.toml
python -m raygpu.pack conf/sweep/digits_cnn.toml --gpu.devices 1     a sweep's file says what to train, too
python -m raygpu.pack conf/pack/digits.toml --compare                kept profiles of several devices, side by side
python -m raygpu.pack conf/pack/digits.toml --advise                 one GPU, several trainings on it, or several GPUs?

Each point is measured in several rounds, and stated with its 95 % confidence interval. The verdict names the smallest
number that the best is not shown to exceed. A point that its own windows or its neighbours contradict is measured
again; where it stays so, it is shown as in doubt, and neither the verdict nor the fit nor the kept profile uses it.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from raygpu.cli import advice_view, profile_view
from raygpu.cli.command import Command, Outcome
from raygpu.cli.console import LiveConsole
from raygpu.cli.flags import Arguments
from raygpu.cli.process_exit import run_and_exit
from raygpu.cli.report.pack_figures import device_figures
from raygpu.cli.report.pictures import draw
from raygpu.cli.run_description import measurement_description
from raygpu.config import PackConfig
from raygpu.config.command_names import typed
from raygpu.config.sections import Way
from raygpu.devices import nvml
from raygpu.devices.host import available_memory_gib
from raygpu.devices.rgu import rgu
from raygpu.engines.cluster.service.handover import served
from raygpu.errors import BadInput
from raygpu.planning.advice import Advice, Scaling
from raygpu.planning.advice import advise as judge
from raygpu.planning.cost_model import FreeMemory
from raygpu.planning.profile_coverage import fibonacci, lacking, tried
from raygpu.planning.profiles import Profile
from raygpu.records.run_directory import RunDirectory
from raygpu.workflow.packing import MeasuredTraining, find_training, measure, measure_scaling, plan_pack
from raygpu.workflow.run_folder import published, removed_if_failed
from raygpu.workflow.run_report import report_of

DEFAULT = Path("conf/pack/digits.toml")
SWITCHES = {
    "dry-run": "Check the code, print what would be measured, and start nothing.",
    "compare": "Measure nothing: overlay the kept profiles of this training on all devices.",
    "advise": "Say whether one training is too small for one GPU, right for one, or worth several, and how many.",
    "json": "Print the profile, the profiles or the advice as JSON on standard output, all else on standard error.",
}


@dataclass(frozen=True, slots=True)
class PackResult:
    """The result of a measurement: its profile, folder and verdict."""

    profile: Profile
    folder: Path
    verdict: list[str]


@dataclass(frozen=True, slots=True)
class ComparedProfiles:
    """The kept profiles of one training on several devices."""

    profiles: list[Profile]
    plot: Path


@dataclass(frozen=True, slots=True)
class Advised:
    """An advice, the profile that it rests on, and the folder with the evidence."""

    advice: Advice
    profile: Profile
    folder: Path
    verdict: str


def run(
    config: PackConfig, *, stem: str = "pack", source_folder: Path | None = None, console: LiveConsole | None = None
) -> PackResult:
    """Measure a training on one device, keep the profile, and leave table, plot and data in `runs/<name>/`.

    stem: first part of the name of a run that is not named. source_folder: the start of the experiment's relative
    paths. Raises BadInput, with a line for each fault.
    """
    console = console or LiveConsole()
    measuring, ways, notes = plan_pack(config, stem, source_folder, console.lines)
    config = measuring.prepared.config
    folder = RunDirectory.create_for(config)
    with removed_if_failed(folder):
        profile = _profiled(measuring, ways, notes, folder, console)
        RunDirectory(folder.path).write_config(config, (source_folder or Path.cwd()).resolve(), kind="pack")
        files = _write(profile, folder)
    files += report_of(folder, console.line, console.warn)
    for_sweeps = f"; the profile is {measuring.prepared.profiles.told(profile)}" if profile.best() is not None else ""
    verdict = profile_view.verdict(profile)
    try:
        with published(folder, console.warn) as kept:
            console.result(f"table, plot and data in {kept}{for_sweeps}")
            _track(config, profile, {}, files, measurement_description(config, kept, verdict), console)
    finally:
        console.results(verdict)  # the last words, whatever the tracking server says
    return PackResult(profile, folder.path, verdict)


def advise(
    config: PackConfig, *, stem: str = "pack", source_folder: Path | None = None, console: LiveConsole | None = None
) -> Advised:
    """Say whether one training is too small for one GPU, right for one, or worth several, and how many.

    The kept profile is used if there is a whole one, else the training is measured. One that fills a device is also
    trained data-parallel on 1, 2, 4 ... devices; where there is one device alone, parts of a batch give upper bounds.
    The arguments, and the errors that are raised, are those of `run`.
    """
    console = console or LiveConsole()
    measuring, ways, notes = plan_pack(config, stem, source_folder, console.lines)
    config = measuring.prepared.config
    store = measuring.prepared.profiles
    profile = store.find(measuring.subject)
    if profile is not None:
        profile = profile.in_epochs_of(measuring.samples_per_epoch)
    chosen = config.chosen_numbers
    numbers = tried(ways, fibonacci() if chosen is None else sorted({1, *chosen}), config.most)
    gpus = measuring.prepared.gpus
    memory = nvml.memory(gpus[0].uuid) if gpus else None
    room = FreeMemory(available_memory_gib(), measuring.subject.device_gib if memory is None else memory.free_gib)
    is_kept = profile is not None and not lacking(profile, numbers, room)
    folder = RunDirectory.create_for(config)
    with removed_if_failed(folder):
        if profile is None or not is_kept:
            profile = _profiled(measuring, ways, notes, folder, console)
            if profile.best() is not None:
                console.line(f"the profile is {store.told(profile)}")
        advice = judge(profile)
        scaling = measure_scaling(measuring, folder, console.line) if advice.answer == "one" else Scaling()
        advice = judge(profile, scaling)
        RunDirectory(folder.path).write_config(config, (source_folder or Path.cwd()).resolve(), kind="pack")
        files = [*_write(profile, folder), folder.advice]
        folder.advice.write_text(json.dumps(asdict(advice) | {"kept": is_kept}, indent=1))
    files += report_of(folder, console.line, console.warn)
    console.results(["", *advice_view.table(advice), *advice_view.evidence(profile, advice, kept=is_kept)])
    verdict = advice_view.verdict(profile, advice)
    devices = {"pack/advice/devices": advice.devices} if advice.answer in ("one", "several") else {}
    try:
        with published(folder, console.warn) as kept:
            console.result(f"advice, plots and data in {kept}")
            _track(config, profile, devices, files, measurement_description(config, kept, [verdict]), console)
    finally:
        console.result(verdict)
    return Advised(advice, profile, folder.path, verdict)


def _track(
    config: PackConfig,
    profile: Profile,
    results: Mapping[str, float | None],
    files: Sequence[Path],
    description: str,
    console: LiveConsole,
) -> None:
    if not config.tracking.enabled:
        return
    from raygpu.tracking.measurement_run import log_profile

    best = profile.best()
    metrics: dict[str, float | None] = {"pack/best/n": None, "pack/best/gain": None}
    if best is not None:
        metrics = {"pack/best/n": best.n, "pack/best/gain": best.gain}
    console.result(f"MLflow: {log_profile(config, profile, {**metrics, **results}, files, description)}")


def _profiled(
    measuring: MeasuredTraining, ways: Sequence[Way], notes: Sequence[str], folder: RunDirectory, console: LiveConsole
) -> Profile:
    """Measure the training, and print the table of its points."""
    config = measuring.prepared.config
    profile = measure(measuring, ways, notes, str(folder.trials), console.line)
    if config.ways == "all":
        profile = profile.without_threads_that_lose()
    laws, doubts = profile_view.laws(profile), profile_view.doubts(profile)
    console.results(["", *profile_view.table(profile, config.epochs or 1), "", *laws, *doubts, *profile.notes])
    return profile


def dry_run(config: PackConfig, *, stem: str, source_folder: Path, console: LiveConsole) -> None:
    """Check the training by a first step, and print what would be measured. Raises BadInput."""
    measuring, ways, notes = plan_pack(config, stem, source_folder, console.lines)
    chosen = config.chosen_numbers
    numbers = ", ".join(map(str, chosen)) if chosen is not None else f"1 to {config.most}"
    console.results([f"would measure {numbers} trainings at once, by: {', '.join(ways)}", *notes])
    if measuring.workload.splits is None:
        console.result(f"the {measuring.workload.source.kind} itself was not tried: it runs in the measurement alone")


def _write(profile: Profile, folder: RunDirectory) -> list[Path]:
    files = [folder.profile, folder.points_csv]
    files[0].write_text(json.dumps(profile.as_dict(), indent=1))
    profile_view.write_csv(profile, files[1])
    with contextlib.suppress(OSError):  # not empty: what scripts wrote
        folder.trials.rmdir()
    return files


def compare(
    config: PackConfig, *, stem: str = "pack", source_folder: Path | None = None, console: LiveConsole | None = None
) -> ComparedProfiles:
    """Overlay the kept profiles of this training on all devices, per device and per Reference GPU Unit."""
    console = console or LiveConsole()
    measuring = find_training(config, stem, source_folder, console.lines)
    store = measuring.prepared.profiles
    alike = [p for p in store.all() if p.subject.same_shape(measuring.subject) and p.best() is not None]
    alike = [p.in_epochs_of(measuring.samples_per_epoch) for p in alike]
    profiles = [p for p in alike if p.subject.same_training(measuring.subject)]
    others = profile_view.device_names([p for p in alike if p not in profiles])
    if others:
        console.warn(f"left out, measured with other code of the experiment: {', '.join(others)}")
    if not profiles:
        raise BadInput(
            f"--compare: {store.folder} has no profile of this training; measure it here by {typed('pack')}, and"
            " put the files of other machines' profiles there too"
        )
    units = [None if (gib := p.subject.device_gib) is None else rgu(p.subject.device, gib) for p in profiles]
    console.results(profile_view.comparison(profiles, units))
    config = measuring.prepared.config
    folder = RunDirectory.create_for(config)
    folder.trials.rmdir()
    path = folder.path / "devices.png"
    data = ", synthetic data" if all(profile.synthetic for profile in profiles) else ""
    draw(f"{profiles[0].subject.source}{data}", device_figures(profiles, units), path)
    with published(folder, console.warn) as kept:
        console.result(f"plot: {kept.shared / path.name}")
    return ComparedProfiles(profiles, path)


def _main(arguments: Arguments) -> Outcome:
    config, stem, folder = COMMAND.read(arguments)
    console = LiveConsole(json="json" in arguments.switches)
    if {"compare", "advise"} <= arguments.switches:
        raise BadInput("--compare, --advise: one measures nothing, the other measures; give one of them")
    if "compare" in arguments.switches:
        compared = compare(config, stem=stem, source_folder=folder, console=console)
        return Outcome(0, [profile.as_dict() for profile in compared.profiles])
    if "dry-run" in arguments.switches:
        dry_run(config, stem=stem, source_folder=folder, console=console)
        return Outcome(0)
    if "advise" in arguments.switches:
        advised = advise(config, stem=stem, source_folder=folder, console=console)
        return Outcome(int(advised.profile.best() is None), asdict(advised.advice))
    result = run(config, stem=stem, source_folder=folder, console=console)
    return Outcome(int(result.profile.best() is None), result.profile.as_dict())


COMMAND = Command("pack", __doc__, PackConfig, DEFAULT, SWITCHES, _main)
main = COMMAND.main


if __name__ == "__main__":
    run_and_exit(lambda: served([COMMAND.name, *sys.argv[1:]], main))
