"""The checks of a command before it is sent to Slurm, and its batch job."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from raygpu import config
from raygpu.cli.command import Command
from raygpu.cli.flags import Arguments, Flags, as_flag
from raygpu.config import SlurmSection, SubmitConfig
from raygpu.config.loading import SLURM
from raygpu.config.slurm_section import contradictions, tasks
from raygpu.engines.slurm.batch_script import BatchJob
from raygpu.errors import BadInput
from raygpu.records.run_directory import RunDirectory
from raygpu.tracking.stores import scheme, sqlite_path
from raygpu.workflow.promotion import store_to_be
from raygpu.workflow.slurm_course import RESUMED
from raygpu.workflow.submission import job_name, own_settings, require_job_flags, submitted_file

FLAGS = Flags({}, {}, SubmitConfig)
"""The --slurm flags."""
PREFIX = f"--{SLURM}."


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split a command line into its --slurm flags with their values, and all other words."""
    ours: list[str] = []
    others: list[str] = []
    bools = {as_flag(name) for name, field in config.fields(SubmitConfig) if field.annotation is bool}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith((PREFIX, f"--no-{SLURM}.")):
            others.append(word)
            continue
        ours.append(word)
        name = as_flag(word[2:])
        has_value = "=" not in word and rest and not rest[0].startswith("-")
        if has_value and (name not in bools or rest[0].lower() in ("true", "false")):
            ours.append(rest.pop(0))
    return ours, others


def table_of(command: Command, words: Sequence[str]) -> tuple[str, Mapping[str, object]] | None:
    """Return the configuration file of a command line, and its [slurm] table; None without one. Raises BadInput."""
    file = submitted_file(command, command.flags.parse(words))
    if file is None or not file.is_file():
        return None
    table = config.read_toml(file).get(SLURM)
    if table is None:
        return None
    if not isinstance(table, dict):
        raise BadInput(f"{file}: {SLURM}: read {table!r}, but it is a table: [{SLURM}]")
    return str(file), table


def section(command: Command, words: Sequence[str], slurm_words: Sequence[str]) -> SlurmSection:
    """Return what is asked of Slurm: the file's [slurm] table, with the --slurm flags over it. Raises BadInput."""
    flags = FLAGS.parse(slurm_words).overrides
    where, table = table_of(command, words) or ("command line", {})
    values = dict(table) | {name.partition(".")[2]: value for name, value in flags.items()}
    slurm_section = config.validated({SLURM: values}, SubmitConfig, where, flags).slurm
    if faults := contradictions(slurm_section):
        raise BadInput(faults)
    return slurm_section


def checked_job(
    command: Command, words: Sequence[str], slurm_words: Sequence[str], options: Mapping[str, str]
) -> BatchJob:
    """Return the job of a command line. Raises BadInput with a line for each fault that can be seen from here.

    words: the command's own. slurm_words: the --slurm flags. options: of raygpu.submit.
    """
    arguments = command.flags.parse([word for word in words if word != "--dry-run"])
    slurm = section(command, words, slurm_words)
    _require_allowed(command, arguments, slurm, options)
    if "resume" in arguments.options:
        return _resumed(command, arguments, slurm)
    file = submitted_file(command, arguments)
    is_promotion = "from" in arguments.options
    problem = own_settings(arguments, file) if is_promotion else config.load(file, arguments.overrides, command.schema)
    assert isinstance(problem, config.StoredConfig)
    name = job_name(problem.name, file, command)
    job_keys = ("name", "seed") if slurm.array is not None else ("name",)
    overrides = {key: value for key, value in arguments.overrides.items() if key not in job_keys}
    folder = problem.runs_folder() / name
    _require_new(folder, slurm)
    file_words = [str(file)] if arguments.file is not None else []
    seed = None if is_promotion and "seed" not in problem.model_fields_set else problem.seed
    return _job(command, name, [*file_words, *arguments.argv(overrides)], folder, slurm, seed)


def store_of(command: Command, job: BatchJob) -> str:
    """Return the SQLite file that a job logs to; empty for another store, or none. Raises BadInput."""
    arguments = command.flags.parse(job.words)
    if "resume" in arguments.options:
        earlier = RunDirectory.existing(arguments.options["resume"], command.name, current=False)
        problem = config.load(earlier.config, arguments.overrides, command.schema)
    elif "from" in arguments.options:
        file = submitted_file(command, arguments)
        return _file_of(store_to_be(arguments.options["from"], arguments.overrides, file))
    else:
        file = submitted_file(command, arguments)
        problem = config.load(file, arguments.overrides, command.schema)
    return _file_of(problem.tracking)


def _file_of(tracking: config.TrackingSection) -> str:
    settings = tracking.found()
    return str(sqlite_path(settings.uri)) if settings.enabled and scheme(settings.uri) == "sqlite" else ""


def _require_allowed(command: Command, arguments: Arguments, slurm: SlurmSection, options: Mapping[str, str]) -> None:
    require_job_flags(arguments)
    if "requirements" in options:
        raise BadInput("--requirements: is for a Ray cluster; packages of a Slurm job come from slurm.wheelhouse")
    if "cluster.address" in arguments.overrides:
        raise BadInput("--cluster.address: a Slurm job starts a Ray of its own on its nodes; leave it out")
    if slurm.array is not None and (command.name not in RESUMED or "resume" in arguments.options):
        raise BadInput(f"slurm.array: is for new runs of {' and '.join(RESUMED)}")
    if slurm.nodes > 1 and "cluster" not in command.schema.model_fields:
        raise BadInput(f"slurm.nodes: read {slurm.nodes}; {command.name} uses the GPUs of one node")


def _require_new(folder: Path, slurm: SlurmSection) -> None:
    folders = [folder] if slurm.array is None else [Path(f"{folder}-{index}") for index in tasks(slurm.array)]
    for each in dict.fromkeys([folder, *folders]):
        if each.exists():
            raise BadInput(f"name: {each} exists already; go on with it by --resume {each}, or choose another --name")


def _resumed(command: Command, arguments: Arguments, slurm: SlurmSection) -> BatchJob:
    """Return the job that goes on with a run."""
    earlier = RunDirectory.existing(arguments.options["resume"], command.name, current=False)
    return _job(command, earlier.name, arguments.argv(arguments.overrides), earlier.path, slurm, 0, goes_on=True)


def _job(
    command: Command,
    name: str,
    words: Sequence[str],
    folder: Path,
    slurm: SlurmSection,
    seed: int | None,
    *,
    goes_on: bool = False,
) -> BatchJob:
    return BatchJob(
        command=command.name,
        name=name,
        words=words,
        seed=seed,
        folder=folder,
        working_folder=Path.cwd(),
        python=sys.executable,
        python_path=os.environ.get("PYTHONPATH", ""),
        slurm=slurm,
        goes_on=goes_on,
    )
