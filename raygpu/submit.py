"""Run a command as a job that outlives this terminal: on a Ray cluster that is reached by HTTP alone, or behind Slurm.

python -m raygpu.submit sweep conf/sweep/digits.toml --trials 16 --address http://127.0.0.1:8265
python -m raygpu.submit sweep conf/sweep/digits.toml --slurm.gpus-per-node 4 --slurm.time 2:00:00 --slurm.account def-me
python -m raygpu.submit logs -f sweep-digits-20261122-101500
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from raygpu import balance, config, pack, place, sweep, train
from raygpu.cli import job_view
from raygpu.cli.command import Command, framed, reader_may_leave
from raygpu.cli.console import print_faults
from raygpu.cli.flags import Arguments, Flags
from raygpu.config.command_names import as_typed, typed
from raygpu.engines.cluster import ray_environment
from raygpu.engines.slurm import commands
from raygpu.engines.slurm.batch_script import script
from raygpu.engines.slurm.jobs import SlurmJobs
from raygpu.errors import BadInput, suggestion
from raygpu.records.slurm_job import SlurmJob
from raygpu.records.submitted_job import SubmittedJobs
from raygpu.tracking import carried_store
from raygpu.workflow import slurm_submission
from raygpu.workflow.submission import checked_submission

if TYPE_CHECKING:
    from raygpu.engines.cluster.jobs import Jobs

COMMANDS: dict[str, Command] = {
    command.name: command for command in (sweep.COMMAND, pack.COMMAND, train.COMMAND, balance.COMMAND, place.COMMAND)
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
FLAGS = Flags(SWITCHES, OPTIONS)
"""The flags of this command; all others are those of the submitted one."""
ADDRESS_VARIABLE = "RAY_API_SERVER_ADDRESS"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code, of a job that was followed to its end the job's own."""
    words = list(sys.argv[1:] if argv is None else argv)
    with reader_may_leave():
        return framed(lambda: _main(words), "interrupted; nothing was submitted")
    return 0


def _main(argv: list[str]) -> int:
    asked = FLAGS.parse(argv)
    if "help" in asked.switches or not asked.words:
        _print_help()
        return 0 if "help" in asked.switches else 2
    verb, *words = asked.words
    if verb in COMMANDS:
        return _submit(COMMANDS[verb], words, asked)
    if verb not in VERBS:
        choices = [*COMMANDS, *VERBS]
        raise BadInput(f"read {verb!r}{suggestion(verb, choices)}; allowed: {', '.join(choices)}")
    if verb == "list":
        if words:
            raise BadInput(f"list: read {' '.join(words)!r}; it takes nothing")
        return _list(asked.options)
    follow = verb == "logs" and "-f" in words
    names = [word for word in words if not (follow and word == "-f")]
    if len(names) != 1 or names[0].startswith("-"):
        raise BadInput(f"{verb}: read {' '.join(words) or 'nothing'}; the name of one job is wanted: list shows them")
    run = _follow if follow else {"status": _status, "stop": _stop, "logs": _logs}[verb]
    return run(_jobs_with(names[0], asked.options), names[0])


def _print_help() -> None:
    submit = typed("submit")
    usage = f"{submit} COMMAND [CONFIG] [its flags] --address URL\n"
    usage += f"       {submit} COMMAND [CONFIG] [its flags] --slurm.time 2:00:00 ... [--dry-run]\n"
    usage += "".join(f"       {submit} {verb:<7} {text}\n" for verb, text in VERBS.items())
    usage += f"\nCOMMAND is one of {', '.join(COMMANDS)}; {typed('COMMAND')} --help lists its flags."
    token = "The cluster's token is read from RAY_AUTH_TOKEN, or from the file that RAY_AUTH_TOKEN_PATH names."
    with_slurm = Flags(SWITCHES, OPTIONS, config.SubmitConfig)
    print(with_slurm.parser(usage, as_typed(__doc__ or ""), token).format_help())


def _jobs(options: Mapping[str, str]) -> Jobs:
    """Connect to the cluster at --address, or at the environment's. Raises BadInput without one."""
    address = options.get("address") or os.environ.get(ADDRESS_VARIABLE, "")
    if not address:
        raise BadInput(
            f"--address: not given, and no {ADDRESS_VARIABLE} either; the Ray dashboard's is wanted, as in"
            " http://127.0.0.1:8265. For Slurm: --slurm.time 2:00:00, or a [slurm] table; none answers here by itself"
        )
    ray_environment.prepare()
    from raygpu.engines.cluster.jobs import Jobs, unprotected

    jobs = Jobs(address)
    if unprotected(jobs.address):
        print_faults([f"the token goes to {jobs.address} unencrypted: https, or kubectl port-forward, keeps it hidden"])
    return jobs


def _jobs_with(name: str, options: Mapping[str, str]) -> SubmittedJobs:
    """Return the jobs among which a job of this name is: Slurm's, if it was submitted there and no address is given."""
    slurm = SlurmJobs()
    address = options.get("address") or os.environ.get(ADDRESS_VARIABLE)
    if "address" not in options and (slurm.has(name) or (not address and commands.answers_here())):
        return slurm
    return _jobs(options)


def _submit(command: Command, words: Sequence[str], asked: Arguments) -> int:
    slurm_words, others = slurm_submission.split(words)
    on_slurm = _is_for_slurm(command, slurm_words, others, asked.options)
    if on_slurm and "--dry-run" in words:
        print(script(slurm_submission.checked_job(command, others, slurm_words, asked.options)), end="")
        return 0
    jobs, job_ids = _submitted(command, words, asked.options, partial(print, flush=True))
    if "detach" in asked.switches or len(job_ids) > 1:
        print(job_view.hints(job_ids[0], jobs.address)[0], flush=True)
        return 0
    return _follow(jobs, job_ids[0])


def submitted(
    command: str, words: Sequence[str], options: Mapping[str, str], say: Callable[[str], None]
) -> tuple[SubmittedJobs, str]:
    """Submit a command as a job; return the jobs of its cluster, and the id of this one.

    words: the command's own arguments, and --slurm flags. options: see OPTIONS. say: takes lines for a person. Raises
    BadInput.
    """
    if command not in COMMANDS:
        raise BadInput(f"read {command!r}; allowed: {', '.join(COMMANDS)}")
    jobs, job_ids = _submitted(COMMANDS[command], words, options, say)
    return jobs, job_ids[0]


def _submitted(
    command: Command, words: Sequence[str], options: Mapping[str, str], say: Callable[[str], None]
) -> tuple[SubmittedJobs, list[str]]:
    slurm_words, others = slurm_submission.split(words)
    if not _is_for_slurm(command, slurm_words, others, options):
        submission = checked_submission(command, command.flags.parse(words), options, say)
        jobs = _jobs(options)
        job_id = jobs.submit(submission)
        say(f"submitted {job_id} to {jobs.address}, with what is in {submission.source_folder}")
        return jobs, [job_id]
    job = slurm_submission.checked_job(command, others, slurm_words, options)
    slurm = SlurmJobs()
    job_ids = slurm.submit(job, slurm_submission.store_of(command, job), say)
    shown = job_ids[0] if len(job_ids) == 1 else f"{len(job_ids)} jobs, {job_ids[0]} to {job_ids[-1]}"
    say(f"submitted {shown}; its script is {job.folder / 'slurm/job.sh'}")
    for line in slurm.waits_in_vain(job_ids):
        print_faults([line])
    return slurm, job_ids


def _is_for_slurm(
    command: Command, slurm_words: Sequence[str], words: Sequence[str], options: Mapping[str, str]
) -> bool:
    """Return whether a command line is for Slurm: by its flags, by its file, or as the only one that is there."""
    if "address" in options:
        if slurm_words:
            raise BadInput("--address, --slurm: one names a Ray cluster, the other Slurm; give one of both")
        return False
    if slurm_words or slurm_submission.table_of(command, words) is not None:
        return True
    return not os.environ.get(ADDRESS_VARIABLE) and commands.answers_here()


def _follow(jobs: SubmittedJobs, job_id: str) -> int:
    """Print the job's output until it ends; Ctrl-C leaves the job running."""
    try:
        job = jobs.follow(job_id, partial(print, end="", flush=True))
    except KeyboardInterrupt:
        follow, stop = job_view.hints(job_id, jobs.address)
        print_faults([f"{job_id} runs on; {follow}", stop])
        return 130
    if job.exit_code and job.driver_exit_code is None:
        print_faults([f"{job_id} ended as {job.status}: {job.message}"])
    return job.exit_code


def _logs(jobs: SubmittedJobs, job_id: str) -> int:
    job = jobs.job(job_id)
    if job.is_lost:
        print_faults([f"{job_id}: {job.message}; what it printed is lost too"])
        return 1
    print(jobs.logs(job_id), end="")
    return 0


def _status(jobs: SubmittedJobs, job_id: str) -> int:
    job = jobs.job(job_id)
    print("\n".join([*job_view.lines([job]), *([job.message] if job.message else [])]))
    return 0


def _stop(jobs: SubmittedJobs, job_id: str) -> int:
    job = jobs.stop(job_id)
    if job is not None:
        if isinstance(jobs, SlurmJobs):
            _release_store(jobs.record(job_id))
        print(f"{job_id}: {job.message}")
        return 0
    print(f"{job_id} is asked to end; it writes what it has first: {typed('submit')} logs -f {job_id}")
    return 0


def _release_store(record: SlurmJob) -> None:
    """Give up the claim on MLflow's store that a job keeps between two starts, once there is no next one."""
    if record.store:
        carried_store.release(Path(record.store), record.slurm_id)


def _list(options: Mapping[str, str]) -> int:
    """Print the jobs of Slurm, if that is here and no address is given, and those of the cluster that is known."""
    address = options.get("address") or os.environ.get(ADDRESS_VARIABLE)
    where: list[SubmittedJobs] = [SlurmJobs()] if "address" not in options and commands.answers_here() else []
    if address or not where:
        where.append(_jobs(options))
    num_jobs = 0
    for jobs in where:
        submitted_jobs = jobs.all()
        num_jobs += len(submitted_jobs)
        if submitted_jobs:  # at once: the other ones may be out of reach
            print("\n".join(job_view.lines(submitted_jobs)), flush=True)
    if not num_jobs:
        print(f"no job was submitted to {' or to '.join(jobs.address or 'Slurm' for jobs in where)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
