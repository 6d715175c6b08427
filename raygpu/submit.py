"""Run a command on a Ray cluster that is reached by HTTP alone, as a job that outlives this terminal.

python -m raygpu.submit sweep conf/sweep/digits.toml --trials 16 --address http://127.0.0.1:8265
python -m raygpu.submit logs -f sweep-digits-20261122-101500
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from raygpu import balance, config, pack, sweep, train
from raygpu.cli import console as views
from raygpu.cli import flags
from raygpu.cli.command import Command, framed
from raygpu.engines.cluster import ray_environment
from raygpu.errors import BadInput
from raygpu.records.run_directory import RunDirectory
from raygpu.redaction import redacted
from raygpu.storage import LOCAL, Storage

if TYPE_CHECKING:
    from raygpu.engines.cluster.jobs import Job, Jobs, Submission

COMMANDS: dict[str, Command] = {
    command.name: command for command in (sweep.COMMAND, pack.COMMAND, train.COMMAND, balance.COMMAND)
}
VERBS = {
    "status": "JOB: whether it runs, since when, and how it ended.",
    "logs": "JOB [-f]: what it has printed; with -f, follow it until it ends.",
    "stop": "JOB: end it as Ctrl-C does, with what it has so far.",
    "list": "The jobs that were submitted so.",
}
OPTIONS = {
    "address": "That of the Ray dashboard, as in http://127.0.0.1:8265. Default: RAY_API_SERVER_ADDRESS.",
    "env": "Names of variables that the job gets from here, by commas: AWS_ACCESS_KEY_ID,MLFLOW_TRACKING_PASSWORD.",
    "requirements": "A file of Python packages that nodes install first, as pip reads it.",
}
SWITCHES = {"detach": "Come back once the job is submitted, and do not follow it."}
ADDRESS_VARIABLE = "RAY_API_SERVER_ADDRESS"
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
LOCAL_ALONE = {
    "json": "of a job, all output is one; its summary.json is in the storage",
    "write": "of a job, it would be a file of the head node; the run's folder has it as train.toml",
}
"""Flags of commands that a job cannot have, and why."""
DRIVER_GPUS = {"pack": 1.0}
"""GPUs of the job's own process: a measurement runs in it, others have workers."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """A command line, split into words, options and switches."""

    words: list[str]
    options: dict[str, str]
    switches: set[str]

    @property
    def address(self) -> str:
        """Address of the Ray dashboard, from --address or the environment. Raises BadInput without one."""
        found = self.options.get("address") or os.environ.get(ADDRESS_VARIABLE, "")
        if not found:
            raise BadInput(f"--address: not given, and no {ADDRESS_VARIABLE} either; {OPTIONS['address']}")
        return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code, of a job that was followed to its end the job's own."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return framed(lambda: _main(words), "interrupted; nothing was submitted")
    except BrokenPipeError:  # the reader of its output, as `head`, has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _main(argv: list[str]) -> int:
    asked = _split(argv)
    if not asked.words or "help" in asked.switches:
        _print_help()
        return 0 if "help" in asked.switches else 2
    what, *rest = asked.words
    if what not in COMMANDS and what not in VERBS:
        known = [*COMMANDS, *VERBS]
        raise BadInput(f"read {what!r}{config.suggestion(what, known)}; allowed: {', '.join(known)}")
    if what in COMMANDS:
        return _submit(COMMANDS[what], rest, asked)
    follow = what == "logs" and "-f" in rest
    names = [word for word in rest if not (follow and word == "-f")]
    if what == "list" and names:
        raise BadInput(f"list: read {' '.join(names)!r}; it takes nothing")
    if what != "list" and (len(names) != 1 or names[0].startswith("-")):
        raise BadInput(f"{what}: read {' '.join(rest) or 'nothing'}; the name of one job is wanted: list shows them")
    jobs = _jobs(asked.address)
    match what:
        case "list":
            return _list(jobs)
        case "status":
            return _status(jobs, names[0])
        case "stop":
            return _stop(jobs, names[0])
    return _follow(jobs, names[0]) if follow else _logs(jobs, names[0])


def _split(argv: list[str]) -> _Asked:
    """Take this command's own flags out; the others belong to the submitted command."""
    asked = _Asked([], {}, set())
    words = list(argv)
    while words:
        word = words.pop(0)
        name, has_value, value = word.removeprefix("--").partition("=")
        if word in ("-h", "--help"):
            asked.switches.add("help")
        elif word.startswith("--") and name in SWITCHES and not has_value:
            asked.switches.add(name)
        elif word.startswith("--") and name in OPTIONS:
            if not has_value:
                if not words or words[0].startswith("--"):
                    raise BadInput(f"--{name}: no value given; {OPTIONS[name]}")
                value = words.pop(0)
            asked.options[name] = value
        else:
            asked.words.append(word)
    return asked


def _print_help() -> None:
    lines = [(__doc__ or "").strip(), "", "usage: python -m raygpu.submit COMMAND [CONFIG] [its flags] --address URL"]
    lines += [f"       python -m raygpu.submit {verb:<7} {text}" for verb, text in VERBS.items()]
    lines += ["", f"COMMAND is one of {', '.join(COMMANDS)}; python -m raygpu.COMMAND --help lists its flags.", ""]
    lines += [f"  --{name:<13} {text}" for name, text in (OPTIONS | SWITCHES).items()]
    lines += ["", "The cluster's token is read from RAY_AUTH_TOKEN, or from the file that RAY_AUTH_TOKEN_PATH names."]
    print("\n".join(lines))


def _jobs(address: str) -> Jobs:
    ray_environment.prepare()
    from raygpu.engines.cluster.jobs import Jobs, unprotected

    jobs = Jobs(address)
    if unprotected(jobs.address):
        views.faults([f"the token goes to {jobs.address} unencrypted: https, or kubectl port-forward, keeps it hidden"])
    return jobs


def _submit(command: Command, words: list[str], asked: _Asked) -> int:
    submission = _submission(command, words, asked)
    jobs = _jobs(asked.address)
    job_id = jobs.submit(submission)
    here = f"--address {jobs.address}"
    print(f"submitted {job_id} to {jobs.address}, with what is in {submission.source_folder}", flush=True)
    if "detach" in asked.switches:
        print(f"follow it: python -m raygpu.submit logs -f {job_id} {here}")
        return 0
    return _follow(jobs, job_id)


def _submission(command: Command, words: list[str], asked: _Asked) -> Submission:
    """Return the submission to the cluster. Raises BadInput with a line for each fault that can be seen from here."""
    from raygpu.engines.cluster.jobs import Submission

    arguments = flags.split(words, command.schema, switches=list(command.switches), options=list(command.options))
    environment, requirements = _environment(asked.options), _requirements(asked.options)
    for name in (*arguments.switches, *arguments.options):
        if name in LOCAL_ALONE:
            raise BadInput(f"--{name}: {LOCAL_ALONE[name]}")
    resumed = arguments.options.get("resume")
    file = _file(command, arguments)
    folder, asked_name = Path.cwd(), arguments.overrides.get("name")
    if file is not None:
        if "from" in arguments.options:
            config.read_toml(file)  # what it lacks comes from the sweep
        else:
            found = config.load(file, arguments.overrides | _there(command), command.schema)
            folder, asked_name = flags.source_folder(found.experiment, file).resolve(), found.name
            _require_kept(found)
    _require_elsewhere(arguments, folder)
    name = asked_name or f"{file.stem if file is not None else command.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    if not re.fullmatch(config.NAME_PATTERN, name):
        raise BadInput(f"--name: read {name!r}; letters, digits and ._- are wanted")
    argv = list(words)
    if arguments.file is not None:
        argv.remove(arguments.file)
    if resumed is None:
        argv += ["--name", name]
    else:
        name = f"{Storage(resumed).name}-again-{time.strftime('%H%M%S')}"
    for field, value in _there(command).items():
        argv += [f"--{field}", value]
    return Submission(
        command.name, name, argv, folder, file, environment, requirements, DRIVER_GPUS.get(command.name, 0)
    )


def _there(command: Command) -> dict[str, str]:
    """Return the settings by which a job uses the cluster that it runs in."""
    return {"cluster.address": "auto"} if "cluster" in command.schema.model_fields else {}


def _file(command: Command, arguments: flags.Arguments) -> Path | None:
    """Return the configuration that is submitted with the command; None if the command reads none."""
    if arguments.file is not None:
        return Path(arguments.file)
    return None if {"resume", "from"} & arguments.options.keys() else command.default


def _require_kept(found: config.ProblemConfig) -> None:
    """Raise BadInput if results would go to a folder of the job's own; warn if they stay on the head node."""
    if not isinstance(found, config.StoredConfig):
        return
    if found.storage == LOCAL:
        print(
            "results stay on the cluster's head node, as long as Ray keeps the job's folder: see --storage", flush=True
        )
    elif "://" not in found.storage and not Path(found.storage).is_absolute():
        raise BadInput(f"storage: read {found.storage!r}; of a job, a folder that all nodes share is an absolute path")


def _environment(options: dict[str, str]) -> dict[str, str]:
    """Return the variables to submit. Their values are never on a command line. Raises BadInput."""
    names = [name.strip() for name in options.get("env", "").split(",") if name.strip()]
    for name in names:
        if not NAME.fullmatch(name):
            raise BadInput(
                "--env: names of variables by commas are wanted, without values: their values come from here"
            )
        if name not in os.environ:
            raise BadInput(f"--env: {name} is not set here")
    return {name: os.environ[name] for name in names}


def _requirements(options: dict[str, str]) -> list[str]:
    if "requirements" not in options:
        return []
    try:
        lines = Path(options["requirements"]).read_text().splitlines()
    except OSError as error:
        raise BadInput(f"--requirements: {options['requirements']} cannot be read: {error.strerror}") from error
    found = [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]
    if any(redacted(line) != line for line in found):
        raise BadInput("--requirements: a line has a password, which Ray would list; set up the index on the nodes")
    return found


def _require_elsewhere(arguments: flags.Arguments, folder: Path) -> None:
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


def _follow(jobs: Jobs, job_id: str) -> int:
    """Print the job's output until it ends; Ctrl-C leaves the job running."""
    here = f"--address {jobs.address}"
    try:
        job = jobs.follow(job_id, lambda text: print(text, end="", flush=True))
    except KeyboardInterrupt:
        views.faults(
            [
                f"{job_id} runs on; follow it: python -m raygpu.submit logs -f {job_id} {here}",
                f"end it: python -m raygpu.submit stop {job_id} {here}",
            ]
        )
        return 130
    if job.status != "SUCCEEDED" and job.exit_code is None:
        views.faults([f"{job_id} ended as {job.status}: {job.message}"])
    return _exit_code(job)


def _exit_code(job: Job) -> int:
    if job.status == "SUCCEEDED":
        return 0
    return 130 if job.status == "STOPPED" else job.exit_code or 1


def _logs(jobs: Jobs, job_id: str) -> int:
    job = jobs.job(job_id)
    if job.is_lost:
        views.faults([f"{job_id}: {job.message}; what it printed is lost too"])
        return 1
    print(jobs.logs(job_id), end="")
    return 0


def _status(jobs: Jobs, job_id: str) -> int:
    job = jobs.job(job_id)
    print(_line(job))
    if job.message:
        print(job.message)
    return 0


def _stop(jobs: Jobs, job_id: str) -> int:
    jobs.stop(job_id)
    print(f"{job_id} is asked to end; it writes what it has first: python -m raygpu.submit logs -f {job_id}")
    return 0


def _list(jobs: Jobs) -> int:
    found = jobs.all()
    width = max((len(job.job_id) for job in found), default=0)
    print("\n".join(_line(job, width) for job in found) or f"no job was submitted to {jobs.address}")
    return 0


def _line(job: Job, width: int = 0) -> str:
    if job.started is None:
        return f"{job.job_id:<{width}}  {job.status.lower()}"
    if job.is_lost:
        return f"{job.job_id:<{width}}  {job.status.lower():<9}  its node was lost"
    took = views.duration(((job.ended or datetime.now(UTC)) - job.started).total_seconds())
    since = job.started.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    return f"{job.job_id:<{width}}  {job.status.lower():<9}  since {since}, {took}"


if __name__ == "__main__":
    sys.exit(main())
