"""Compare placements of one model's parts on several devices: is a training faster with a part on each, or on one?

python -m raygpu.place conf/place/reviews.toml --data.synthetic
python -m raygpu.place conf/place/reviews.toml --devices 4 --rounds 7
python -m raygpu.place runs/digits/best.toml          any experiment, on one device and with alternating parts

Each placement is trained by turns, and some of its steps are profiled: how long an epoch takes, what memory each
device needs, how many copies go between devices and what they cost. Two placements are always there: all on one device,
and the smallest parts on one device after the other, the worst case. Where GPUs are missing, logical devices take their
place, and the verdict says what they cannot show.
"""

from __future__ import annotations

import contextlib
import csv
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raygpu.cli import placement_view
from raygpu.cli.command import Command, Outcome
from raygpu.cli.console import LiveConsole
from raygpu.cli.flags import Arguments
from raygpu.cli.formatting import hyperparameters
from raygpu.cli.process_exit import run_and_exit
from raygpu.cli.run_description import measurement_description
from raygpu.config import PlaceConfig
from raygpu.config.sections import PIPELINES
from raygpu.config.source import Source
from raygpu.engines.cluster.service.handover import served
from raygpu.engines.profiling.workload import Workload
from raygpu.errors import BadInput
from raygpu.experiment import Experiment, Splits, reads_later
from raygpu.planning.model_placements import ComparedPlacements, MeasuredPlacement, Placements, compare
from raygpu.planning.pipelines import Unit, balanced, fewest_stages
from raygpu.records.run_directory import RunDirectory
from raygpu.records.run_files import rounded
from raygpu.training.model_placement import placements
from raygpu.training.torch.experiment import own_methods
from raygpu.workflow.data_parts import cut_lines, part_of
from raygpu.workflow.ray_startup import measuring_ray, require_no_ray
from raygpu.workflow.run_folder import published, removed_if_failed
from raygpu.workflow.run_report import report_of
from raygpu.workflow.user_code import find, tried_step
from raygpu.workflow.validation import PreparedPlace, prepare_place

if TYPE_CHECKING:
    from raygpu.engines.profiling.placement_benchmark import PlacementBenchmark

DEFAULT = Path("conf/place/reviews.toml")
SWITCHES = {
    "json": "Print the summary as JSON on standard output, and all else on standard error.",
    "dry-run": "Check everything, print the placements, and stop.",
}


@dataclass(frozen=True, slots=True)
class PlacementResult:
    """The result of a comparison: its summary and its run's folder."""

    summary: dict[str, Any]
    """The content of `summary.json`."""
    folder: Path
    verdict: list[str]


@dataclass(frozen=True, slots=True)
class _Planned:
    """A comparison about to begin."""

    prepared: PreparedPlace
    workload: Workload
    placements: Placements
    has_pipeline: bool
    """Whether a pipeline is measured too."""

    @property
    def simulated(self) -> bool:
        """Whether the devices are logical ones."""
        return len(self.prepared.gpus) < self.prepared.num_devices

    @property
    def device(self) -> str:
        """Name of the devices."""
        gpus = self.prepared.gpus
        if not gpus:
            return "this machine's CPU"
        names = ", ".join(dict.fromkeys(gpu.name for gpu in gpus))
        return f"one {names}" if self.simulated else names


def run(
    config: PlaceConfig, *, stem: str = "place", source_folder: Path | None = None, console: LiveConsole | None = None
) -> PlacementResult:
    """Train each placement by turns, and leave table, plot, traces and data in `runs/<name>/`.

    stem: first part of the name of a run that is not named. source_folder: the start of the experiment's relative
    paths. Raises BadInput, with a line for each fault.
    """
    console = console or LiveConsole()
    planned = _plan(config, stem, source_folder, console)
    config = planned.prepared.config
    folder = RunDirectory.create_for(config)
    with removed_if_failed(folder):
        done = _measured(planned, console)
    measured, comparison = done.placements, compare(done.placements)
    console.results(["", *placement_view.table(measured, comparison), "", *placement_view.details(measured)])
    folder.trials.rmdir()
    RunDirectory(folder.path).write_config(config, (source_folder or Path.cwd()).resolve(), kind="place")
    files = _write(measured, folder)
    verdict = placement_view.verdict(measured, comparison, simulated=planned.simulated, device=planned.device)
    verdict += placement_view.memory_lines(measured, done.fewest_devices)
    summary = _summary(planned, measured, comparison) | {"verdict": verdict, "fewest_devices": done.fewest_devices}
    folder.write_summary(summary)
    files += report_of(folder, console.line, console.warn)
    try:
        with published(folder, console.warn) as kept:
            console.result(f"table, plot and traces (for ui.perfetto.dev) in {kept}")
            if config.tracking.enabled:
                from raygpu.tracking.measurement_run import log_placements

                shown = measurement_description(config, kept, verdict)
                url = log_placements(config, planned.device, measured, comparison, files, shown)
                console.result(f"MLflow: {url}")
    finally:
        console.results(verdict)  # the last words, whatever the tracking server says
    return PlacementResult(summary, folder.path, verdict)


def _plan(config: PlaceConfig, stem: str, source_folder: Path | None, console: LiveConsole) -> _Planned:
    """Check everything, by a first step and a look at the model's parts, and print it. Raises BadInput."""
    require_no_ray()
    prepared = prepare_place(config, stem)
    config = prepared.config
    source, code = find(config, (source_folder or Path.cwd()).resolve())
    _require_experiment(source, code)
    if source.kind == "keras" and config.gpu.precision == "fp16":
        raise BadInput("gpu.precision: read fp16; placements of a KerasExperiment take float32, tf32 or bf16")
    step = tried_step(config, source, code, config.hyperparameters)
    splits = part_of(config, step.splits, config.hyperparameters)
    parts = placements(source, code, splits, prepared.trial, config.placements, prepared.num_devices)
    has_pipeline = _has_pipeline(prepared, source, code, splits)
    planned = _Planned(prepared, Workload(source, splits, prepared.trial, config.gpu.precision), parts, has_pipeline)
    data = ", synthetic data" if config.data.synthetic else ""
    logical = "logical devices of " if planned.simulated else ""
    pipelines = ", ".join(["", *PIPELINES]) if has_pipeline else ""
    if source.kind == "torch" and (reason := _no_pipeline(config, source, code, splits)):
        pipelines = f"; no pipeline: {reason}"
    console.lines(
        [
            f"place {config.name}: {config.code_name}{data}; {hyperparameters(config.hyperparameters)}",
            *prepared.left_out,
            *step.notes,
            *cut_lines(step.splits, splits),
            f"on {prepared.num_devices} {logical}{planned.device}; placements: {', '.join(parts)}{pipelines}",
        ]
    )
    return planned


def _require_experiment(source: Source, code: Any) -> None:
    if not isinstance(code, Experiment):
        kind, key = ("script", "command") if code is None else ("function", "experiment")
        raise BadInput(f"{key}: {source.name} is a {kind}; a placement needs a TorchExperiment or a KerasExperiment")


def _no_pipeline(config: PlaceConfig, source: Source, code: Any, splits: Splits) -> str:
    """Return why a TorchExperiment has no pipeline; empty if it has one."""
    if own := own_methods(code):
        return f"a pipeline does not use {source.name}'s own {', '.join(own)}"
    if config.gpu.precision in ("bf16", "fp16"):
        return f"it is traced in the model's own precision, not in {config.gpu.precision}"
    if reads_later(splits.train_inputs):
        return "a pipeline takes arrays, not the data of dataset_splits"
    if config.hyperparameters.get("ema_decay") is not None:
        return "a pipeline keeps no average of the parameters, as ema_decay asks for"
    return ""


def _has_pipeline(prepared: PreparedPlace, source: Source, code: Any, splits: Splits) -> bool:
    """Return whether a pipeline is measured too. Raises BadInput for stages that do not suit the model or the
    devices."""
    config, stages = prepared.config, prepared.config.chosen_stages or ()
    if source.kind != "torch":
        if stages:
            raise BadInput(f"stages: read {config.stages}; only a TorchExperiment has a pipeline")
        return False
    if reason := _no_pipeline(config, source, code, splits):
        if stages:
            raise BadInput(f"stages: read {config.stages}; {reason}")
        return False
    if len(stages) + 1 > prepared.num_devices:
        raise BadInput(f"stages: read {config.stages}, {len(stages) + 1} stages for {prepared.num_devices} devices")
    if stages:
        from raygpu.training.torch.pipeline_cut import require_submodules

        require_submodules(code.model(config.hyperparameters), stages)
    return bool(config.stages != "none")


@dataclass(frozen=True, slots=True)
class _Measured:
    """All placements with their turns."""

    placements: list[MeasuredPlacement]
    fewest_devices: int | None = None
    """Smallest number of devices that holds the stages of a pipeline, by the measured memory of the model's parts."""


def _measured(planned: _Planned, console: LiveConsole) -> _Measured:
    """Train all placements by turns on a local Ray."""
    from raygpu.engines.profiling.placement_benchmark import PlacementBenchmark, PlacementSettings

    config = planned.prepared.config
    settings = PlacementSettings(
        config.rounds, planned.prepared.num_devices, config.epochs or config.rounds, config.memory_gib
    )
    with contextlib.ExitStack() as ending:
        cluster = ending.enter_context(measuring_ray(config, planned.prepared.gpus, console.line))
        benchmark = PlacementBenchmark(cluster, planned.workload, settings, console.line)
        ending.callback(benchmark.close)
        placements = [MeasuredPlacement(name, parts) for name, parts in planned.placements.items()]
        units: list[Unit] = []
        if planned.has_pipeline:
            units, pipelines = _pipelines(benchmark, planned)
            placements += pipelines
        measured = benchmark.measure(placements)
        limit = config.memory_gib or cluster.device_memory_gib(cluster.nodes[0].device_type)
    return _Measured(measured, fewest_stages([unit.memory_gib for unit in units], limit) if units else None)


def _pipelines(benchmark: PlacementBenchmark, planned: _Planned) -> tuple[list[Unit], list[MeasuredPlacement]]:
    """Return the units of the model, and the pipelines to measure, with a fault where there are no stages."""
    from raygpu.engines.profiling.placement_benchmark import fault_line
    from raygpu.engines.profiling.probe_actor import Fault

    config, stages, fault = planned.prepared.config, planned.prepared.config.chosen_stages, None
    answer = benchmark.units()
    units = [] if isinstance(answer, Fault) else answer
    if isinstance(answer, Fault):
        fault = fault_line(answer)
    elif stages is None:
        try:
            stages = balanced(units, planned.prepared.num_devices)
        except BadInput as error:
            fault = str(error)
    if stages:
        fault = None
    return units, [MeasuredPlacement(name, {}, stages or (), config.micro_batches, fault=fault) for name in PIPELINES]


def _write(measured: Sequence[MeasuredPlacement], folder: RunDirectory) -> list[Path]:
    """Write the turns and the traces; return their paths."""
    files = [folder.turns_csv]
    with files[0].open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["placement", "turn", "epoch_s", "loss"])
        for each in measured:
            writer.writerows([each.name, i, turn.epoch_s, turn.loss] for i, turn in enumerate(each.turns, 1))
    for each in measured:
        if each.turns and (trace := each.turns[0].trace) is not None:
            files.append(folder.path / f"{each.name}.trace.json.gz")
            files[-1].write_bytes(trace)
    return files


def _summary(planned: _Planned, measured: Sequence[MeasuredPlacement], found: ComparedPlacements) -> dict[str, Any]:
    """Return the content of `summary.json`."""
    return {
        "name": planned.prepared.config.name,
        "devices": planned.prepared.num_devices,
        "device": planned.device,
        "logical": planned.simulated,
        "best": found.best.name if found.best is not None else None,
        "placements": {
            each.name: {
                "parts": dict(each.parts),
                "stages": each.stages,
                "bubble": None if (bubble := each.bubble) is None else round(bubble, 4),
                "fault": each.fault,
                "epoch_s": [rounded(turn.epoch_s, 4) for turn in each.turns],
                "loss": [turn.loss for turn in each.turns],
                "memory_gib": [float(f"{gib:.4g}") for gib in each.memory_gib],
                "speedup": None if (speedup := found.speedups.get(each.name)) is None else asdict(speedup),
                "step": None if (profile := each.profile) is None else asdict(profile),
            }
            for each in measured
        },
    }


def _main(arguments: Arguments) -> Outcome:
    config, stem, folder = COMMAND.read(arguments)
    console = LiveConsole(json="json" in arguments.switches)
    if "dry-run" in arguments.switches:
        planned = _plan(config, f"{stem}-place", folder, console)
        console.results([f"{name}: {placement_view.parts(parts)}" for name, parts in planned.placements.items()])
        return Outcome(0)
    result = run(config, stem=f"{stem}-place", source_folder=folder, console=console)
    return Outcome(int(result.summary["best"] is None), result.summary)


COMMAND = Command("place", __doc__, PlaceConfig, DEFAULT, SWITCHES, _main)
main = COMMAND.main


if __name__ == "__main__":
    run_and_exit(lambda: served([COMMAND.name, *sys.argv[1:]], main))
