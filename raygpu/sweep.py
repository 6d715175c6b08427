"""Search for hyper-parameters, with trials packed on fractions of the GPUs and every trial in MLflow.

python -m raygpu.sweep conf/sweep/digits.toml --trials 16 --gpu.fraction 0.2
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from raygpu.cli.command import Command, Outcome
from raygpu.cli.flags import Arguments
from raygpu.cli.plan_view import architecture_lines, search_lines, sweep_lines
from raygpu.cli.process_exit import run_and_exit
from raygpu.cli.sweep_view import SweepConsole
from raygpu.config import SweepConfig
from raygpu.config.source import require_there
from raygpu.engines.cluster.hardware import local_hardware
from raygpu.engines.cluster.service.handover import served
from raygpu.engines.profiling.measurer import Measurer
from raygpu.errors import BadInput
from raygpu.records.clock import Stages
from raygpu.records.run_directory import RunDirectory
from raygpu.search.architectures import architectures
from raygpu.tracking.opening import StoreOpening
from raygpu.workflow.planner import Planner
from raygpu.workflow.population_checks import require_population
from raygpu.workflow.ray_startup import ray_starting
from raygpu.workflow.resumed_runs import LIMITS, in_the_time_left, require_no_fewer, require_same_sweep
from raygpu.workflow.sweep_run import PlannedSweep, SweepUnderWay
from raygpu.workflow.sweep_run import SweepResult as SweepResult
from raygpu.workflow.trial_groups import grouped
from raygpu.workflow.user_code import find, problem
from raygpu.workflow.validation import apart, least, prepare

DEFAULT = Path("conf/sweep/digits.toml")
SWITCHES = {
    "dry-run": "Print the plan and start nothing.",
    "json": "Print the summary as JSON on standard output, and all else on standard error.",
}
OPTIONS = {
    "resume": "Go on with the sweep in this folder: finished trials stay, the others run. With --trials N, it goes on"
    " to N trials in all, with --repeats N to N repeats of each set.",
    "retry": "With --resume: failed, for the trials that failed, from their beginning.",
}


def run(
    config: SweepConfig,
    *,
    stem: str = "sweep",
    source_folder: Path | None = None,
    resume: RunDirectory | None = None,
    retry_failed: bool = False,
    dry_run: bool = False,
    console: SweepConsole | None = None,
) -> SweepResult:
    """Run a sweep, or go on with one, and leave its results in `runs/<name>/` and in MLflow.

    stem: first part of the name of a sweep that is not named. source_folder: the start of the experiment's relative
    paths, by default the working directory. retry_failed: whether the failed trials of the resumed sweep run again.
    Raises BadInput, with a line for each fault.
    """
    console = console or SweepConsole()
    source_folder = (source_folder or Path.cwd()).resolve()
    prepared = prepare(config, stem, resume)
    config = prepared.config
    show = console.results if dry_run else console.lines  # the plan is the result of a dry run
    simulated = config.cluster.is_local and not prepared.gpus
    show([*sweep_lines(config, simulated=simulated), *search_lines(config, prepared.space), *prepared.notes])
    console.warnings(prepared.left_out)
    require_there(config.experiment, source_folder)
    stages = Stages()
    stages.end("start")
    with ray_starting(
        config,
        prepared.gpus,
        source_folder,
        console,
        apart=apart(config),
        least=least(config),
        wanted=not dry_run,
    ) as starting:
        source, code = find(config, source_folder)
        if starting is not None:
            starting.trains(source)
        user_code = problem(prepared, source, code)  # imports torch, while Ray's processes start
        console.lines(user_code.notes)
        stages.end("data")
        groups = grouped(config, prepared.space, prepared.sampler, source, code, user_code.splits, user_code.folds)
        console.lines(require_population(config, prepared.sampler, source, code, groups.read, is_new=resume is None))
        if groups.sharing == "fused":
            show(architecture_lines(architectures(prepared.space, groups.groups), drawn=groups.drawn))
        measurer = Measurer(config, source, code, user_code.splits, groups.groups)
        effective_config = starting.config if starting is not None else config
        planner = Planner(effective_config, prepared.sampler.num_trials, groups, measurer, show)
        if prepared.nodes is not None:
            planner.ahead(local_hardware(prepared.gpus, prepared.nodes), dry=dry_run)
        if starting is None:
            if user_code.splits is None:
                console.result(f"the {source.kind} itself was not tried: it runs in the sweep alone")
            return SweepResult({}, None, [])
        stages.end("dry_run")
        cluster = starting.wait()
        stages.end("ray")
        console.details(cluster.detail_lines())
        decision = planner.on(cluster)
        stages.end("plan")
        store = StoreOpening.of(config)
        planned = PlannedSweep(
            prepared, user_code, groups, decision, planner.lines, cluster, store, source_folder, resume, retry_failed
        )
        sweep_run = SweepUnderWay(planned, console)
        sweep_run.run(stages)
        sweep_run.begin_end_of_ray()
        return sweep_run.finish()


def _main(arguments: Arguments) -> Outcome:
    result = _run(arguments)
    return Outcome(result.exit_code, result.summary or None)


def _run(arguments: Arguments) -> SweepResult:
    console = SweepConsole(json="json" in arguments.switches)
    retry = arguments.options.get("retry")
    if "resume" in arguments.options:
        if "dry-run" in arguments.switches:
            raise BadInput("--dry-run: shows the plan of a new sweep; leave out --resume")
        overrides = COMMAND.read_resumed(arguments)
        if retry not in (None, "failed"):
            raise BadInput(f"--retry: read {retry!r}; allowed: failed")
        earlier = RunDirectory.existing(arguments.options["resume"])
        config = in_the_time_left(earlier, resumed_config(earlier, overrides))
        return run(
            config,
            source_folder=earlier.source_folder,
            resume=earlier,
            retry_failed=retry is not None,
            console=console,
        )
    if retry is not None:
        raise BadInput("--retry: goes with --resume, the folder of a sweep")
    config, stem, folder = COMMAND.read(arguments)
    return run(config, stem=stem, source_folder=folder, dry_run="dry-run" in arguments.switches, console=console)


def resumed_config(earlier: RunDirectory, overrides: Mapping[str, str]) -> SweepConfig:
    """Return the configuration of a sweep that goes on, with the fields that may change. Raises BadInput for others,
    for fewer trials than the sweep has, and for a sweep that another version of raygpu began."""
    COMMAND.require_resumable(overrides)
    config = earlier.read_config(overrides)
    require_no_fewer(earlier, config)
    require_same_sweep(earlier)
    return config


COMMAND = Command(
    "sweep",
    __doc__,
    SweepConfig,
    DEFAULT,
    SWITCHES,
    _main,
    OPTIONS,
    ("trials", "repeats", "retry", *LIMITS),
    interrupted="interrupted before any trial had begun; nothing was kept",
)
main = COMMAND.main


if __name__ == "__main__":
    run_and_exit(lambda: served([COMMAND.name, *sys.argv[1:]], main))
