"""The batch script of a Slurm job: readable, and run by hand with `sbatch FILE`. Pure: text in, text out."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from raygpu.config.slurm_section import SlurmSection
from raygpu.records.slurm_job import SCRIPT, SEED_OFFSET, log_of

TASK = "$SLURM_ARRAY_TASK_ID"
UNQUOTED = re.compile(r"[\w@%+=:,./$-]+")
TELEMETRY = "export RAY_USAGE_STATS_ENABLED=0 MLFLOW_DISABLE_TELEMETRY=true DO_NOT_TRACK=true"
NODE_DISK = "export RAYGPU_NODE_DISK=${SLURM_TMPDIR:-${TMPDIR:-/tmp}}/raygpu-$(id -u)-$SLURM_JOB_ID"
"""A folder of the job's own in any case: the driver deletes it, and $SLURM_TMPDIR may have other files."""
ENVIRONMENT = """\
# A virtual environment on each node's own disk, from wheels that lie here: no internet is needed.
srun --ntasks-per-node=1 bash -e -c '
  mkdir -p -m 700 "$RAYGPU_NODE_DISK"
  if command -v virtualenv >/dev/null; then virtualenv --quiet --no-download "$RAYGPU_NODE_DISK/env"
  else python3 -m venv "$RAYGPU_NODE_DISK/env"; fi
  "$RAYGPU_NODE_DISK/env/bin/pip" install --quiet --no-index --find-links {wheelhouse} {packages}
' || exit 1
python=$RAYGPU_NODE_DISK/env/bin/python
export PATH=$RAYGPU_NODE_DISK/env/bin:$PATH
"""


@dataclass(frozen=True, slots=True)
class BatchJob:
    """A raygpu command that Slurm is to run."""

    command: str
    name: str
    """Name of the run; of an array, that of its jobs without their index."""
    words: Sequence[str]
    """The command's own arguments, without the run's name and its seed."""
    seed: int | None
    """Seed of the run; of an array, that of index 0. None in an array of a sweep's trial: its jobs read its seed."""
    folder: Path
    """The run's folder; of an array, the one that has the script."""
    working_folder: Path
    python: str
    """Python that submits, of the same environment on all nodes."""
    python_path: str
    """PYTHONPATH of the process that submits; empty for none."""
    slurm: SlurmSection
    goes_on: bool = False
    """Whether the words name a run that goes on, and so no name."""

    @property
    def job_id(self) -> str:
        """Name of the job, COMMAND-NAME."""
        return f"{self.command}-{self.name}"


def script(job: BatchJob) -> str:
    """Return the batch script of a job."""
    is_array = job.slurm.array is not None
    file = job.folder / SCRIPT
    lines = [
        "#!/bin/bash",
        f"# raygpu {job.command}, written by raygpu submit. It runs, or goes on with what it has begun, by:",
    ]
    lines.append(f"#     sbatch {shlex.quote(str(file))}")
    lines += [f"#SBATCH {option}" for option in options(job)]
    lines += ["", "trap '' USR1  # Slurm's signal before the end is for raygpu, once that runs"]
    lines += ["", "# Ray and MLflow report nothing to their makers.", TELEMETRY, NODE_DISK]
    if job.slurm.modules:
        lines.append(f"module load {' '.join(map(shlex.quote, job.slurm.modules))}")
    lines += job.slurm.setup
    lines.append("")
    if job.slurm.wheelhouse is not None:
        wheelhouse = _within(str(Path(job.slurm.wheelhouse).absolute()))
        lines += ENVIRONMENT.format(wheelhouse=wheelhouse, packages=" ".join(map(_within, job.slurm.packages))).split(
            "\n"
        )
    else:
        lines += [f"python={shlex.quote(job.python)}", f"export PATH={shlex.quote(str(Path(job.python).parent))}:$PATH"]
    if job.python_path and job.slurm.wheelhouse is None:
        lines.append(f"export PYTHONPATH={shlex.quote(job.python_path)}")
    if is_array and job.seed is None:
        lines.append(f"export {SEED_OFFSET}={TASK}")
    folder = shlex.quote(str(job.folder)) if not is_array else _with_task(f"{job.folder}-{TASK}")
    most = job.slurm.max_restarts if job.slurm.requeue else 0
    lines += [
        "",
        "# Starts Ray on the job's nodes, runs the command, and queues the job again.",
        f'exec "$python" -m raygpu.job --slurm {folder} --max-restarts {most} -- \\',
        f"  {command_line(job)}",
    ]
    return "\n".join(lines) + "\n"


def command_line(job: BatchJob) -> str:
    """Return the command in bash: of an array, with each job's own name, and its seed if that is known."""
    words = [shlex.quote(word) for word in (job.command, *job.words)]
    if job.goes_on:
        return " ".join(words)
    if job.slurm.array is None:
        return " ".join([*words, "--name", shlex.quote(job.name)])
    words += ["--name", _with_task(f"{job.name}-{TASK}")]
    if job.seed is not None:
        words += ["--seed", f'"$(({job.seed} + {TASK[1:]}))"']
    return " ".join(words)


def options(job: BatchJob) -> list[str]:
    """Return sbatch's options, one for each line of the script."""
    slurm, is_array = job.slurm, job.slurm.array is not None
    log = str(log_of(job.folder)).replace("%", "%%")
    if is_array:
        log = str(log_of(Path(f"{str(job.folder).replace('%', '%%')}-%a")))
    values: dict[str, str | int | None] = {
        "job-name": job.job_id,
        "output": log,
        "open-mode": "append",
        "chdir": str(job.working_folder),
        "nodes": slurm.nodes,
        "ntasks-per-node": 1,
        "gpus-per-node": slurm.gpus_per_node,
        "cpus-per-task": slurm.cpus_per_task,
        "mem": slurm.mem,
        "time": slurm.time,
        "partition": slurm.partition,
        "account": slurm.account,
        "qos": slurm.qos,
        "constraint": slurm.constraint,
        "array": slurm.array,
        "signal": f"B:USR1@{slurm.signal_s}",
    }
    flags = [f"--{name}={_quoted(str(value))}" for name, value in values.items() if value is not None]
    return [*flags, "--requeue" if slurm.requeue else "--no-requeue", *slurm.options]


def _quoted(value: str) -> str:
    """Return a value as sbatch reads it in a script: in double quotes where it has spaces or the like."""
    return value if UNQUOTED.fullmatch(value) or not re.search(r"[\s'\"\\#]", value) else f'"{value}"'


def _within(word: str) -> str:
    """Quote a word for bash inside single quotes."""
    return shlex.quote(word).replace("'", "'\\''")


def _with_task(text: str) -> str:
    """Quote a text for bash in which the index of the array's job is filled in."""
    head, _, tail = text.partition(TASK)
    return f'{shlex.quote(head)}"{TASK}"{shlex.quote(tail) if tail else ""}'
