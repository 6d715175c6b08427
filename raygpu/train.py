"""Train one set of hyper-parameters for production, data-parallel over all devices, and keep the model.

python -m raygpu.train --from runs/digits                          the best trial of a sweep
python -m raygpu.train conf/train/digits.toml --workers 2 --ratios 3,2
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

from raygpu.cli.command import INCOMPLETE, Command, Outcome, incomplete, print_line
from raygpu.cli.flags import Arguments
from raygpu.cli.process_exit import run_and_exit
from raygpu.cli.training_view import TrainConsole, beginning
from raygpu.config import TrainConfig, load
from raygpu.config.code_folder import code_folder
from raygpu.engines.cluster.service.handover import served
from raygpu.errors import BadInput
from raygpu.records.clock import Stages
from raygpu.records.device import SIMULATED
from raygpu.records.run_directory import RunDirectory
from raygpu.storage import Storage
from raygpu.tracking.session import open_store
from raygpu.workflow.checkpoint_models import require_fitting, require_one_fitting, warm_start_lines
from raygpu.workflow.promotion import named_store, promoted, with_own_seed
from raygpu.workflow.ray_startup import ray_starting
from raygpu.workflow.resumed_runs import require_same_training
from raygpu.workflow.training_code import require_trainable
from raygpu.workflow.training_layout import layout, require_layout
from raygpu.workflow.training_run import PlannedTraining, TrainingRun
from raygpu.workflow.training_run import TrainingResult as TrainingResult
from raygpu.workflow.user_code import find, training_problem
from raygpu.workflow.validation import prepare_train
from raygpu.workflow.warm_start import kept as kept_start

DEFAULT = Path("conf/train/digits.toml")
SWITCHES = {
    "dry-run": "Print the plan and start nothing.",
    "warm-start": "With --from: begin with the trial's parameters, and not with new ones.",
    "json": "Print the summary as JSON on standard output, and all else on standard error.",
}
OPTIONS = {
    "from": "A sweep's folder, runs/<sweep>, or its MLflow run's id: train its best trial. Or a trial's run's id.",
    "register": "Put the model into MLflow's registry under this name, if it beats the trial's score.",
    "resume": "Go on with the training in this folder, from its last checkpoint.",
}


def run(
    config: TrainConfig,
    *,
    stem: str = "train",
    source_folder: Path | None = None,
    warm_start: Path | None = None,
    resume: RunDirectory | None = None,
    dry_run: bool = False,
    console: TrainConsole | None = None,
) -> TrainingResult:
    """Train, or go on with a training, and leave its checkpoints in `runs/<name>/` and its curves in MLflow.

    stem: first part of the name of a run that is not named. source_folder: the start of the experiment's relative
    paths, by default the working directory. warm_start: folder of a checkpoint with the initial parameters. Raises
    BadInput, with a line for each fault.
    """
    console = console or TrainConsole()
    source_folder = (source_folder or Path.cwd()).resolve()
    prepared = prepare_train(config, stem, resuming=resume is not None)
    config = prepared.config
    show = console.results if dry_run else console.lines  # the plan is the result of a dry run
    show(beginning(config, simulated=config.cluster.is_local and not prepared.gpus))
    console.warnings(prepared.left_out)
    source, code = find(config, source_folder)
    stages = Stages()
    stages.end("start")
    require_trainable(config, source, code, warm_start=warm_start is not None)
    local, simulated = prepared.nodes, not prepared.gpus
    if local is not None:
        require_layout(config, source.kind, local, simulated=simulated)
    with ray_starting(config, prepared.gpus, source_folder, console, apart=False, wanted=not dry_run) as starting:
        if starting is not None:
            starting.trains(source)
        problem = training_problem(prepared, source, code)  # imports torch, while Ray's processes start
        console.lines(problem.notes)
        stages.end("data")
        if warm_start is not None:
            require_fitting(problem, prepared.trial, Storage(str(warm_start)), "--warm-start")
            console.warnings(warm_start_lines(problem, prepared.trial))
        if resume is not None:
            require_one_fitting(problem, prepared.trial, resume.training_checkpoints())
            kept_start(resume)
        begun = resume.read_run().get("global_batch") if resume is not None else None
        effective_config = starting.config if starting is not None else config
        planned = (
            layout(effective_config, problem, local, simulated=simulated, global_batch=begun)
            if local is not None
            else None
        )
        if starting is None:
            console.results(planned.lines([gpu.name for gpu in prepared.gpus] or [SIMULATED]) if planned else [])
            return TrainingResult({}, None, False)
        tree = open_store(config)
        stages.end("tracking")
        cluster = starting.wait()
        stages.end("ray")
        console.details(cluster.detail_lines())
        if planned is None:
            simulated = any(device.uuid is None for device in cluster.devices)
            planned = layout(config, problem, cluster.nodes, simulated=simulated, global_batch=begun)
        plan = PlannedTraining(prepared, problem, planned, cluster, tree, source_folder, resume, warm_start, stages)
        training = TrainingRun(plan, console)
        ended = training.run()
    return training.finish(ended)


def _main(arguments: Arguments) -> Outcome:
    result = _run(arguments)
    return Outcome(_exit_code(result), result.summary or None)


def _exit_code(result: TrainingResult) -> int:
    """Return the exit code: 0; 1 without a checkpoint of a finite score; 3 if MLflow lacks a part; 130 after Ctrl-C."""
    if result.interrupted:
        return 130
    if result.summary and result.summary["best"] is None:
        return 1
    return INCOMPLETE if incomplete(result.summary) else 0


def _run(arguments: Arguments) -> TrainingResult:
    console = TrainConsole(json="json" in arguments.switches)
    options = arguments.options
    if "resume" in options:
        overrides = COMMAND.read_resumed(arguments)
        earlier = RunDirectory.existing(options["resume"], "train")
        config = load(earlier.config, overrides, TrainConfig)
        require_same_training(earlier, config)
        return run(config, source_folder=earlier.source_folder, resume=earlier, console=console)
    warm = "warm-start" in arguments.switches
    path = Path(arguments.file) if arguments.file else None if "from" in options else DEFAULT
    tracking = partial(named_store, arguments.overrides, path)
    origin = promoted(options["from"], tracking, warm) if "from" in options else None
    if warm and (origin is None or origin.checkpoint is None):
        fault = "has no checkpoint of that trial" if origin is not None else "is not given"
        raise BadInput(f"--warm-start: takes the parameters of a sweep's best trial, and --from {fault}")
    if "register" in options:
        arguments.overrides["registered_name"] = options["register"]
    given = with_own_seed(origin.values, os.environ) if origin is not None else None
    config = load(path, arguments.overrides, TrainConfig, given, print_line)
    if origin is not None:
        folder = origin.source_folder
    else:
        folder = code_folder(config, path or DEFAULT, arguments.overrides, print_line)
    return run(
        config,
        stem=path.stem if path is not None else f"{origin.name if origin is not None else ''}-train",
        source_folder=folder,
        warm_start=origin.checkpoint if origin is not None and warm else None,
        dry_run="dry-run" in arguments.switches,
        console=console,
    )


COMMAND = Command(
    "train",
    __doc__,
    TrainConfig,
    DEFAULT,
    SWITCHES,
    _main,
    OPTIONS,
    interrupted="interrupted before its end; a training that has a checkpoint goes on by --resume",
)
main = COMMAND.main


if __name__ == "__main__":
    run_and_exit(lambda: served([COMMAND.name, *sys.argv[1:]], main))
