"""The [slurm] table of a configuration file, and the --slurm flags of `raygpu submit`: what is asked of Slurm.

A command leaves the table out; `raygpu submit` alone reads it. Names and values are those of sbatch's options.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, field_validator

from raygpu.config.sections import Section

TIME = re.compile(r"(?:(\d+)-(\d+)(?::(\d+)(?::(\d+))?)?|(\d+)(?::(\d+)(?::(\d+))?)?)")
"""Times as sbatch takes them: minutes, m:s, h:m:s, days-h, days-h:m, days-h:m:s."""
GPUS = re.compile(r"([A-Za-z0-9_.-]+:)?[1-9]\d*")
MEMORY = re.compile(r"\d+[KMGT]?")
ARRAY = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*(%[1-9]\d*)?")
MOST_TASKS = 10_000
PLAIN = re.compile(r"[\w./:@+,=&|*()\[\]!-]+")
"""Values that stand in a #SBATCH line as they are."""


def _words(value: Any) -> Any:
    """Split a text at its commas: flags have no lists."""
    return [word.strip() for word in value.split(",") if word.strip()] if isinstance(value, str) else value


def _lines(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _text(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Words = Annotated[tuple[str, ...], BeforeValidator(_words)]
Lines = Annotated[tuple[str, ...], BeforeValidator(_lines)]
Text = Annotated[str, BeforeValidator(_text)]


class SlurmSection(Section):
    """A job of Slurm: its nodes, its time, and how it sets up Python."""

    partition: str | None = None
    """The partition, or several by commas. Default: Slurm's own."""
    account: str | None = None
    """The account that is charged, as in def-me."""
    qos: str | None = None
    """The quality of service."""
    constraint: str | None = None
    """Features that the nodes must have, as Slurm names them."""
    nodes: Annotated[int, Field(ge=1)] = 1
    """Number of nodes. On one node, Ray stays on loopback; over several, it starts on all of them."""
    gpus_per_node: Text | None = None
    """GPUs of each node, with a type or without: 4, or h100:4."""
    cpus_per_task: Annotated[int, Field(ge=1)] | None = None
    """CPUs of each node: raygpu has one task on each."""
    mem: Text | None = None
    """Memory of each node: 64G, or 0 for all of it."""
    time: Text | None = None
    """The wall time of each start: 2:00:00, or 1-12 for one and a half days. Default: the partition's."""
    signal_s: Annotated[int, Field(ge=1, le=65535)] = 120
    """Seconds before the end of the wall time at which the run writes its checkpoints and is queued again. Slurm may be
    up to a minute early."""
    requeue: bool = True
    """Queue a sweep or a training again, from its checkpoints, until it is done: at the end of the wall time, after a
    preemption, and after a node has failed."""
    max_restarts: Annotated[int, Field(ge=0)] = 50
    """The most times that a job is queued again."""
    array: Text | None = None
    """Indices of an array of jobs, as in 0-3: each job is the same run with its index added to the seed and to the
    name. They write no database: raygpu deliver gathers them."""
    modules: Words = ()
    """Modules to load, by commas: python/3.11,cuda."""
    wheelhouse: str | None = None
    """Folder of wheels, made by make wheelhouse: each node then makes a virtual environment from it on its own disk,
    without internet. Default: the Python that submits."""
    packages: Words = ("raygpu[torch]",)
    """Packages that are installed from the wheelhouse, by commas."""
    setup: Lines = ()
    """Lines of bash that run on the first node before raygpu, after the modules."""
    options: Lines = ()
    """Further options of sbatch, each as it is written there: --mail-type=END."""

    @field_validator("partition", "account", "qos", "constraint")
    @classmethod
    def _plain(cls, value: str | None) -> str | None:
        if value is not None and not PLAIN.fullmatch(value):
            raise ValueError("a name as sbatch takes it is wanted, without spaces and quotes")
        return value

    @field_validator("gpus_per_node")
    @classmethod
    def _gpus(cls, value: str | None) -> str | None:
        if value is not None and not GPUS.fullmatch(value):
            raise ValueError("a number of GPUs is wanted, or a type and a number, as in h100:4")
        return value

    @field_validator("mem")
    @classmethod
    def _memory(cls, value: str | None) -> str | None:
        if value is not None and not MEMORY.fullmatch(value):
            raise ValueError("a size as sbatch takes it is wanted, as in 64G, or 0 for all memory of a node")
        return value

    @field_validator("time")
    @classmethod
    def _time(cls, value: str | None) -> str | None:
        if value is not None and not TIME.fullmatch(value):
            raise ValueError("a time as sbatch takes it is wanted: minutes, 2:00:00 or 1-12:00:00")
        return value

    @field_validator("array")
    @classmethod
    def _array(cls, value: str | None) -> str | None:
        if value is not None and not ARRAY.fullmatch(value):
            raise ValueError("indices are wanted, as in 0-3, 1,3,5 or 0-99%10")
        if value is not None and not 0 < len(tasks(value)) <= MOST_TASKS:
            raise ValueError(f"from 1 to {MOST_TASKS:,} jobs are allowed; a range counts upward")
        return value

    @field_validator("options")
    @classmethod
    def _options(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for option in value:
            if not option.startswith("-") or "\n" in option:
                raise ValueError(f"{option!r} is no option of sbatch, such as --mail-type=END")
        return value


class SubmitConfig(Section):
    """The table of a configuration file that `raygpu submit` reads beside the command's own."""

    slurm: SlurmSection = SlurmSection()


def contradictions(section: SlurmSection) -> list[str]:
    """Return a line for each pair of values that do not go together."""
    lines = []
    if section.time is not None and 0 < seconds(section.time) <= section.signal_s:
        lines.append(
            f"slurm.time: read {section.time!r}; it has to be longer than slurm.signal_s, the {section.signal_s} s that"
            " the run has for its end"
        )
    if section.nodes > 1 and section.gpus_per_node is None:
        lines.append(
            f"slurm.nodes: read {section.nodes}; several need slurm.gpus_per_node: without GPUs, a run uses one node"
        )
    return lines


def seconds(time: str) -> int:
    """Return a time of sbatch in seconds; 0 is no limit. Raises ValueError if it is none."""
    match = TIME.fullmatch(time)
    if match is None:
        raise ValueError(f"{time!r} is no time of sbatch")
    days, hours, minutes, rest = (int(part or 0) for part in match.groups()[:4])
    if match[1] is not None:
        return ((days * 24 + hours) * 60 + minutes) * 60 + rest
    first, second, third = (int(part) if part is not None else None for part in match.groups()[4:])
    assert first is not None
    if third is not None and second is not None:
        return (first * 60 + second) * 60 + third
    return first * 60 + (second or 0)


def tasks(array: str) -> list[int]:
    """Return the indices of an array of jobs, "0-3,7%2" for one."""
    indices: list[int] = []
    for part in array.partition("%")[0].split(","):
        first, _, last = part.partition("-")
        indices += range(int(first), min(int(last or first), int(first) + MOST_TASKS) + 1)
    return indices
