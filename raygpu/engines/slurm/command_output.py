"""Output of Slurm's commands, as values. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from raygpu.records.slurm_job import SlurmJob
from raygpu.records.submitted_job import SubmittedJob

PENDING = ("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD")
RUNNING = ("RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING")
CANCELLED = ("CANCELLED", "REVOKED")
HOPELESS = {
    "PartitionTimeLimit": "the time is above the partition's limit",
    "PartitionNodeLimit": "the partition has not that many nodes, or does not allow them",
    "PartitionConfig": "the partition does not allow what was asked for",
    "BadConstraints": "no node has what was asked for",
    "InvalidAccount": "the account does not exist, or is not yours",
    "InvalidQOS": "the quality of service does not exist, or is not yours",
    "AssocMaxWallDurationPerJobLimit": "the time is above the account's limit",
    "QOSMaxWallDurationPerJobLimit": "the time is above the limit of the quality of service",
}
"""Reasons for which a job waits for ever, in words."""
_PAIR = re.compile(r"([A-Za-z][\w/:]*)=(.*?)(?=\s+[A-Za-z][\w/:]*=|\s*$)", re.DOTALL)
_SUBMITTED = re.compile(r"Submitted batch job (\d+)")
_PREFIX = re.compile(
    r"^(sbatch|squeue|scontrol|scancel|srun|sacct|slurm_load_jobs)?:? ?(fatal|error)?: ?", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class State:
    """The state of a job as Slurm knows it."""

    word: str
    """Slurm's own word, such as PENDING."""
    reason: str = ""
    """Why it waits, or why it ended."""
    nodes: str = ""
    exit_code: int | None = None
    script: str = ""
    """The batch script, where it was asked for."""

    @property
    def is_live(self) -> bool:
        """Whether the job waits or runs."""
        return self.word in PENDING or self.word in RUNNING


def job_number(printed: str) -> str | None:
    """Return the id in what sbatch prints; None without one."""
    match = _SUBMITTED.search(printed)
    return match[1] if match is not None else None


def own_words(printed: str) -> str:
    """Return the errors that one of Slurm's commands prints as one line, without their prefixes."""
    lines = [_PREFIX.sub("", line.strip()) for line in printed.splitlines() if line.strip()]
    return "; ".join(dict.fromkeys(lines))


def of_queue(printed: str) -> dict[str, State]:
    """Return the states in what squeue prints with `--format=%i|%T|%r|%N|%o`, by job id."""
    states: dict[str, State] = {}
    for line in printed.splitlines():
        number, word, reason, nodes, script = (*line.strip().split("|", 4), "", "", "", "")[:5]
        if number and word:
            reason = "" if reason == "None" else reason.replace("_", " ")
            states[number] = State(word, reason, nodes, script=script)
    return states


def queued_by_hand(record: SlurmJob, live: Mapping[str, State]) -> SlurmJob:
    """Return the record of a job as that of its next start, if its script was queued again after its end.

    live: this user's jobs that wait or run, by id. The job itself notes its new id when it begins.
    """
    if record.exit_code is None or not record.script:
        return record
    _, _, index = record.slurm_id.partition("_")
    for number, state in live.items():
        if state.script == record.script and number != record.slurm_id and number.partition("_")[2] == index:
            return replace(record, slurm_id=number, exit_code=None, ended=None, message="")
    return record


def of_control(printed: str) -> dict[str, str]:
    """Return the fields in what `scontrol --oneliner show job ID` prints."""
    return {name: value.strip() for name, value in _PAIR.findall(printed.splitlines()[0] if printed.strip() else "")}


def state_of(shown: Mapping[str, str]) -> State | None:
    """Return the state in the fields of `scontrol show job`; None without one."""
    if not (word := shown.get("JobState")):
        return None
    code = shown.get("ExitCode", "").partition(":")[0]
    reason, nodes = shown.get("Reason", ""), shown.get("NodeList", "")
    return State(
        word,
        "" if reason == "None" else reason.replace("_", " "),
        "" if nodes == "(null)" else nodes,
        int(code) if code.isdecimal() else None,
    )


def is_cancelled(shown: Mapping[str, str], num_requeues: int) -> bool:
    """Return whether somebody has cancelled a job that Slurm ends, by the fields of `scontrol show job`.

    Its state is COMPLETING in any case. Slurm names its own reason, as TimeLimit, notes the time of a preemption, or
    counts one restart more than `num_requeues`.
    """
    own_reason = shown.get("Reason", "None") != "None" or shown.get("PreemptTime", "None") != "None"
    return bool(shown) and not own_reason and int(shown.get("Restarts", "0")) <= num_requeues


def of_accounting(printed: str) -> State | None:
    """Return the state in what `sacct --parsable2 --noheader --format=State,ExitCode` prints for a job."""
    word, _, code = (printed.strip().splitlines() or [""])[0].partition("|")
    if not word:
        return None
    number = code.partition(":")[0]
    return State(word.split()[0], exit_code=int(number) if number.isdecimal() else None)


def submitted_job(record: SlurmJob, state: State | None) -> SubmittedJob:
    """Return a job as `raygpu submit` shows it. state: None where Slurm does not know the job any more."""
    status, message = _status(record, state)
    over = status in ("SUCCEEDED", "FAILED", "STOPPED")
    return SubmittedJob(
        job_id=record.job_id,
        status=status,
        command=record.command,
        started=_time(record.started),
        ended=_time(record.ended) if over else None,
        driver_exit_code=record.exit_code if over else None,
        message=message,
    )


def _status(record: SlurmJob, state: State | None) -> tuple[str, str]:
    number = f"Slurm job {record.slurm_id}"
    times = "once" if record.restarts == 1 else f"{record.restarts} times"
    again = f" (queued again {times})" if record.restarts else ""
    if state is not None and state.word in PENDING:
        why = HOPELESS.get(state.reason, "")
        return "PENDING", f"{number}{again} waits: {state.reason or 'to be scheduled'}{f' ({why})' if why else ''}"
    if state is not None and state.is_live and record.exit_code is None:
        nodes = f" on {state.nodes}" if state.nodes else ""
        return "RUNNING", f"{number}{again} runs{nodes}"
    if record.exit_code is not None:
        said = f": {record.message}" if record.message else ""
        if record.exit_code == 130:
            return "STOPPED", f"{number}{again} was stopped{said}"
        return "SUCCEEDED" if record.exit_code in (0, 3) else "FAILED", f"{number}{again} has ended{said}"
    by_hand = f"; it goes on by: sbatch {record.script}" if record.script else ""
    if state is None and record.ended is not None:
        return "STOPPED", f"{number}{again} was ended by Slurm{by_hand}"
    if state is None:
        return "FAILED", f"{number}{again}: Slurm does not know it any more, and it has left no word{by_hand}"
    if state.word in CANCELLED:
        return "STOPPED", f"{number}{again} was cancelled{by_hand}"
    if state.word == "COMPLETED":
        return "SUCCEEDED", f"{number}{again} has ended"
    reason = f" ({state.reason})" if state.reason else ""
    return "FAILED", f"{number}{again} ended as {state.word}{reason}{by_hand}"


def host_names(printed: str) -> list[str]:
    """Return the nodes in what `scontrol show hostnames` prints."""
    return [line.strip() for line in printed.splitlines() if line.strip()]


def hopeless(states: Sequence[State]) -> list[str]:
    """Return a line for each reason for which a job waits in vain."""
    reasons = dict.fromkeys(state.reason for state in states if state.word in PENDING and state.reason in HOPELESS)
    return [f"Slurm: {reason}: {HOPELESS[reason]}, so the job waits for ever" for reason in reasons]


def _time(seconds: float | None) -> datetime | None:
    return datetime.fromtimestamp(seconds, UTC) if seconds is not None else None
