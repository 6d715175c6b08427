"""The folder of the code that a configuration file names."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path

from raygpu.config.problem_schema import ProblemConfig
from raygpu.config.source import PICKLED
from raygpu.storage import is_job

SCRIPTS = (".py", ".sh", ".R", ".jl", ".lua")
"""Endings of the files that a command runs; its other files are data or settings."""


def code_folder(
    config: ProblemConfig, file: Path, overrides: Mapping[str, str], say: Callable[[str], None] = lambda line: None
) -> Path:
    """Return the folder at which relative paths of an experiment or a script start.

    It is the working folder, or the configuration file's own if the experiment's file or module is there and not here.
    For a file in a run's folder it is that of the run if the code is in neither. overrides: values that came from
    flags; code that a flag names is not the run's. say: gets a line where the run's code and that here are two.
    """
    here, beside = Path.cwd(), file.resolve().parent
    experiment = config.experiment
    if experiment is not None and experiment.endswith(PICKLED):
        return here
    if (of_run := _folder_of_run(beside)) is not None and not {"experiment", "command"} & overrides.keys():
        return _beside_folder_of_run(config, beside, of_run, say)
    if experiment is None:
        return here
    module = experiment.rpartition(":")[0]
    parts = [module] if module.endswith(".py") else [f"{module.split('.')[0]}.py", module.split(".")[0]]
    is_here = any((here / part).exists() for part in parts)
    return beside if not is_here and any((beside / part).exists() for part in parts) else here


def _beside_folder_of_run(config: ProblemConfig, beside: Path, of_run: Path, say: Callable[[str], None]) -> Path:
    """Return the first folder that has the code of a run's file: the working folder, the file's, or the run's. A
    command's code is its script: its first word that is a relative path of a source file."""
    module = (config.experiment or "").rpartition(":")[0]
    stem = module.replace(".", "/")
    names = [module] if module.endswith(".py") else [f"{stem}.py", f"{stem}/__init__.py"]
    if config.command is not None:
        relative = [word for word in shlex.split(config.command) if not word.startswith(("-", "/")) and "{" not in word]
        names = [word for word in relative if Path(word).suffix in SCRIPTS][:1]
    folders = [folder for folder in (Path.cwd(), beside) if any((folder / name).is_file() for name in names)]
    if not folders:
        if of_run.resolve() != Path.cwd().resolve():
            say(f"code: {config.code_name} of {of_run}, as of the run in {beside}; there is none in {Path.cwd()}")
        return of_run
    if folders[0].resolve() != of_run.resolve():
        say(f"code: {config.code_name} of {folders[0]}; the run in {beside} has that of {of_run}")
    return folders[0]


def _folder_of_run(beside: Path) -> Path | None:
    """Return the folder of the code of the run in this folder; None if no run is there, or its code is elsewhere."""
    try:
        folder = Path(json.loads((beside / "run.json").read_bytes())["source_folder"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return folder if folder.is_dir() and not is_job() else None
