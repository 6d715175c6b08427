"""The checks of a command before it is sent to a cluster: what can be seen from here is refused here."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from raygpu import config
from raygpu.cli.command import Command
from raygpu.cli.flags import Arguments
from raygpu.config.code_folder import code_folder
from raygpu.errors import BadInput, redacted
from raygpu.records.run_directory import RunDirectory
from raygpu.records.submitted_job import Submission
from raygpu.storage import LOCAL, Storage

VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
LOCAL_ALONE = {
    "json": "of a job, all output is one; its summary.json is in the storage",
    "write": "of a job, it would be a file of the head node; the run's folder has it as train.toml",
}
"""Flags of commands that a job cannot have, and why."""
OWN = ("name", "seed", "runs_dir", "storage")
"""Fields of a training that say which run it is and where, with --from too."""
IN_THE_JOB = ("pack", "place")
"""Commands that use GPUs in the job's own process; others have workers."""


def require_job_flags(arguments: Arguments) -> None:
    """Raise BadInput if a flag is one that a job cannot have."""
    for flag in (*arguments.switches, *arguments.options):
        if flag in LOCAL_ALONE:
            raise BadInput(f"--{flag}: {LOCAL_ALONE[flag]}")


def job_name(name: str | None, file: Path | None, command: Command) -> str:
    """Return the name of a job's run: the one given, or that of the configuration's file, or of the command, with the
    time. Raises BadInput if it is no name of a folder."""
    name = name or f"{file.stem if file is not None else command.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    if not re.fullmatch(config.NAME_PATTERN, name):
        raise BadInput(f"--name: read {name!r}; letters, digits and ._- are wanted")
    return name


def checked_submission(
    command: Command, arguments: Arguments, options: Mapping[str, str], say: Callable[[str], None]
) -> Submission:
    """Return what is to be submitted. Raises BadInput with a line for each fault that can be seen from here.

    arguments: of the command. options: of raygpu.submit.
    """
    environment, requirements = _environment(options), _requirements(options)
    require_job_flags(arguments)
    own_cluster = {"cluster.address": "auto"} if "cluster" in command.schema.model_fields else {}
    file = submitted_file(command, arguments)
    num_gpus = float(command.name in IN_THE_JOB)
    folder, name = Path.cwd(), arguments.overrides.get("name")
    if "from" in arguments.options:
        own = own_settings(arguments, file)
        name = own.name
        _require_reachable(own.storage, command, say)
    elif file is not None:
        problem = config.load(file, arguments.overrides | own_cluster, command.schema)
        folder, name = code_folder(problem, file, arguments.overrides, say).resolve(), problem.name
        assert isinstance(problem, config.StoredConfig)
        _require_reachable(problem.storage, command, say)
        if isinstance(problem, config.PlaceConfig) and problem.devices != "all":
            num_gpus = problem.devices
    _require_elsewhere(arguments, folder)
    name = job_name(name, file, command)
    overrides = arguments.overrides | {"name": name} | own_cluster
    if "resume" in arguments.options:
        name = f"{Storage(arguments.options['resume']).name}-again-{time.strftime('%H%M%S')}"
        del overrides["name"]
    return Submission(
        command=command.name,
        name=name,
        argv=arguments.argv(overrides),
        source_folder=folder,
        config=file,
        environment=environment,
        requirements=requirements,
        num_gpus=num_gpus,
    )


def submitted_file(command: Command, arguments: Arguments) -> Path | None:
    """Return the configuration that is submitted with the command; None if the command reads none."""
    if arguments.file is not None:
        return Path(arguments.file)
    return None if {"resume", "from"} & arguments.options.keys() else command.default


def own_settings(arguments: Arguments, file: Path | None) -> config.StoredConfig:
    """Return name, seed, runs_dir and storage of a training of a sweep's trial, by its flags and its file; all other
    fields, which the sweep may give, are left out. Raises BadInput."""
    values = {**(config.read_toml(file) if file is not None else {}), **arguments.overrides}
    own = {key: value for key, value in values.items() if key in OWN}
    return config.validated(
        {"experiment": "any:Any", **own}, config.StoredConfig, str(file or "command line"), arguments.overrides
    )


def _require_reachable(storage: str, command: Command, say: Callable[[str], None]) -> None:
    """Raise BadInput if results would go to a folder of the job's own; say so if they stay on the job's node."""
    if storage == LOCAL:
        node = "the node that measures" if command.name in IN_THE_JOB else "the cluster's head node"
        say(f"results stay on {node}, as long as Ray keeps the job's folder: see --storage")
    elif "://" in storage:
        Storage.at(storage)
    elif not Path(storage).is_absolute():
        raise BadInput(f"storage: read {storage!r}; of a job, a folder that all nodes share is an absolute path")


def _environment(options: Mapping[str, str]) -> dict[str, str]:
    """Return the variables to submit. Their values are never on a command line. Raises BadInput."""
    names = [name.strip() for name in options.get("env", "").split(",") if name.strip()]
    for name in names:
        if not VARIABLE.fullmatch(name):
            raise BadInput(
                "--env: names of variables by commas are wanted, without values: their values come from here"
            )
        if name not in os.environ:
            raise BadInput(f"--env: {name} is not set here")
    return {name: os.environ[name] for name in names}


def _requirements(options: Mapping[str, str]) -> list[str]:
    if "requirements" not in options:
        return []
    try:
        lines = Path(options["requirements"]).read_text().splitlines()
    except OSError as error:
        raise BadInput(f"--requirements: {options['requirements']} cannot be read: {error.strerror}") from error
    requirements = [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]
    if any(redacted(line) != line for line in requirements):
        raise BadInput("--requirements: a line has a password, which Ray would list; set up the index on the nodes")
    return requirements


def _require_elsewhere(arguments: Arguments, folder: Path) -> None:
    """Raise BadInput for a named run that the cluster cannot reach, such as one in `folder`: runs are not submitted."""
    for option in ("resume", "from"):
        named = arguments.options.get(option)
        if named is None or "://" in named or not Path(named).is_dir():
            continue
        path = Path(named).resolve()
        if Path(named).is_absolute() and not path.is_relative_to(folder):
            continue
        run_id = RunDirectory(path).read_run().get("mlflow_run_id")
        other = f", or its MLflow run's id, {run_id}" if option == "from" and run_id else ""
        raise BadInput(f"--{option}: {named} is on this machine; name it in the storage that the nodes share{other}")
