"""All commands by one name: `raygpu sweep ...` is `python -m raygpu.sweep ...`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import NoReturn

from raygpu import __version__
from raygpu.records.output import open_closed_streams

COMMANDS = {
    "init": "Write examples, experiments and configurations, into this folder.",
    "sweep": "Search for hyper-parameters, with trials that share GPUs.",
    "pack": "Measure how many trainings one GPU carries, and in which way.",
    "train": "Train one set of hyper-parameters on all GPUs.",
    "balance": "Measure how to split a batch over unequal GPUs.",
    "place": "Compare placements of a model's parts on several devices.",
    "up": "Keep a Ray with its workers ready, so that the next commands begin within seconds.",
    "down": "End what raygpu up has started.",
    "status": "Show what raygpu up has started, and who uses it.",
    "doctor": "Check this machine: GPUs, libraries, folders, limits, ports.",
    "gpus": "Show the GPUs, here or of a cluster, and what runs on them; run a command on the emptiest.",
    "report": "Write a run's report for a browser again, or compare several runs.",
    "deliver": "Deliver to MLflow what it lacks of a run.",
    "submit": "Run one of the other commands on a Ray cluster, or on a supercomputer behind Slurm.",
}
SERVED = ("sweep", "train", "pack", "balance", "place")
"""Commands that a process of the service may run which has imported everything already."""
MODULES = {"report": "write_report"}
"""Module of a command whose name is that of a function of raygpu."""
USAGE = "\n".join(
    [
        "usage: raygpu COMMAND [CONFIG] [flags]",
        "",
        *(f"  {name:<8} {text}" for name, text in COMMANDS.items()),
        "",
        "raygpu COMMAND --help lists a command's flags; raygpu --version prints the version.",
    ]
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that the first word names; return its exit code, 2 for a name that is none."""
    words = sys.argv[1:] if argv is None else list(argv)
    open_closed_streams()
    try:
        if argv is None and words and words[0] in SERVED:
            from raygpu.engines.cluster.service.handover import served

            return served(words, lambda: run(words))
        return run(words)
    except KeyboardInterrupt:  # while the first modules are imported; later ones are told by the command
        print("raygpu: interrupted before anything had begun", file=sys.stderr)
        return 130


def run(words: Sequence[str]) -> int:
    """Run a command line in this process; return the exit code."""
    from raygpu.cli.command import framed

    return framed(lambda: _run(words), "interrupted")


def _run(words: Sequence[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(USAGE)
        return 0 if words else 2
    name, *rest = words
    if name == "--version":
        print(f"raygpu {__version__}")
        return 0
    if name not in COMMANDS:
        from raygpu.errors import BadInput, suggestion

        commands = list(COMMANDS)
        raise BadInput(f"read {name!r}{suggestion(name, commands)}; allowed: {', '.join(commands)}")
    code: int = importlib.import_module(f"raygpu.{MODULES.get(name, name)}").main(rest)
    return code


def program() -> NoReturn:
    """Run a command line as this process's program, as the script `raygpu` does."""
    from raygpu.cli.process_exit import run_and_exit

    run_and_exit(main)


if __name__ == "__main__":
    program()
