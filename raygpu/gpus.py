"""Show the GPUs of this machine, or of every node of a Ray cluster that runs, and under each what runs on it.

python -m raygpu.gpus                       a live table on a terminal, else once
python -m raygpu.gpus --once
python -m raygpu.gpus --watch 5             every 5 seconds
python -m raygpu.gpus --json                a list of nodes
python -m raygpu.gpus --address auto        the nodes of a Ray cluster
python -m raygpu.gpus --for FILE            how many of that file's trainings have room on each GPU
python -m raygpu.gpus --pick 1 -- python train.py --lr 0.1      run a command on the emptiest GPU

Shown are the nodes of the cluster at --address or RAY_ADDRESS, or of the one that this user's `ray start` has begun on
this machine; else this machine alone, and CUDA_VISIBLE_DEVICES chooses its GPUs. "busy" is the share of time in which
any kernel ran, as nvidia-smi shows it; SM (busy multiprocessors), occupancy (warps on them) and DRAM (memory traffic),
on Hopper and newer, say how full the GPU is. What a card does not tell is a dash. A running sweep has room for as many
more trainings as fit the free memory and still gain by its profile.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Never, TextIO

from rich.console import Console
from rich.live import Live

from raygpu.cli.command import PlainCommand
from raygpu.cli.console import print_faults
from raygpu.cli.flags import Arguments, Flags, number, whole_number
from raygpu.errors import BadInput
from raygpu.records import interrupts
from raygpu.workflow.gpu_nodes import Ask, NodeStatus, nodes
from raygpu.workflow.gpu_rooms import WantedTraining, with_rooms
from raygpu.workflow.gpu_status import machine_status, pick, visible_gpus
from raygpu.workflow.gpu_table import view

SWITCHES = {"once": "Print the table once, and end.", "json": "Print the state once, as JSON: a list of nodes."}
OPTIONS = {
    "watch": "Seconds between two tables. Default: 2, on a terminal.",
    "address": "The Ray cluster whose nodes are shown: auto or HOST:PORT; local, this machine alone. Default:"
    " RAY_ADDRESS, else the cluster that was started on this machine, else local.",
    "for": "A sweep's, pack's or training's file: how many of its trainings have room, by its kept profile.",
    "pick": "Number of GPUs for the command after --, which sees them alone; the emptiest ones are taken.",
}
FLAGS = Flags(SWITCHES, OPTIONS)
WATCH_S = 2.0
ANSWER_S = 30.0
"""Seconds for which a single table waits for the nodes of a cluster."""
TICK_S = 1.0
"""Seconds for which each of the tables that follow each other waits for nodes that have not answered yet."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code. With `--pick`, the command takes this process' place."""
    words = sys.argv[1:] if argv is None else list(argv)
    place = words.index("--") if "--" in words else len(words)
    command = PlainCommand(
        "gpus",
        "[flags] [-- COMMAND ...]",
        __doc__,
        FLAGS,
        lambda arguments: _main(arguments, words[place:]),
        allowed="--once, --json, --watch S, --address ADDRESS, --for FILE, --pick N -- COMMAND ...",
    )
    return command.main(words[:place])


@dataclass(frozen=True, slots=True)
class _Asked:
    """A command line that is checked."""

    json: bool
    watch_s: float | None
    """Seconds between two tables; None for one."""
    address: str | None
    file: str | None
    """File of a configuration whose trainings' room is asked for."""


def _main(arguments: Arguments, pick: Sequence[str]) -> int:
    """Show the GPUs, or run a command on some. pick: the words from `--` on."""
    if "pick" in arguments.options:
        if others := [f"--{name}" for name in (*arguments.switches, *arguments.options) if name != "pick"]:
            raise BadInput(f"--pick, {others[0]}: give one of them; --pick takes a GPU of this machine")
        _become(pick[1:], whole_number("pick", arguments.options["pick"], 1024, "a whole number from 1"))
    if pick:
        raise BadInput("--: a command is run with --pick only, as in: --pick 1 -- python train.py")
    with interrupts.terminable():
        _show(_checked(arguments.switches, arguments.options))
    return 0


def _checked(switches: set[str], options: dict[str, str]) -> _Asked:
    once, as_json = "once" in switches, "json" in switches
    if "watch" in options and (once or as_json):
        raise BadInput(f"--{'once' if once else 'json'}, --watch: give one of them")
    watch_s = None
    if "watch" in options:
        watch_s = number("watch", options["watch"], lambda s: 0.1 <= s <= 86400, "seconds, from 0.1 to 86400")
    elif sys.stdout.isatty() and not once and not as_json:
        watch_s = WATCH_S
    return _Asked(as_json, watch_s, options.get("address"), options.get("for"))


def _become(command: Sequence[str], number: int) -> None:
    """Replace this process by a command that sees the emptiest GPUs. Raises BadInput."""
    if not command:
        raise BadInput("--pick: no command; write it after two dashes, as in: --pick 1 -- python train.py")
    if shutil.which(command[0]) is None:
        raise BadInput(f"--pick: {command[0]!r} is no program that can be run")
    shown = visible_gpus(os.environ.get("CUDA_VISIBLE_DEVICES"))
    if not shown:
        raise BadInput("--pick: no NVIDIA GPU here")
    chosen = pick(machine_status(shown), number)
    print(f"raygpu: on {', '.join(f'GPU {gpu.label} ({gpu.name})' for gpu in chosen)}", file=sys.stderr, flush=True)
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ",".join(gpu.uuid for gpu in chosen)}
    os.execvpe(command[0], list(command), environment)


def _show(asked: _Asked) -> None:
    """Print the table or the JSON, and the table again every so many seconds until Ctrl-C. Raises BadInput."""
    wanted = None
    if asked.file is not None:
        from raygpu.workflow.profile_lookup import wanted_training  # imports what trainings need

        wanted = wanted_training(Path(asked.file))
    with (
        nodes(asked.address, lambda line: print_faults([line])) as ask,
        _only(sys.stdout) as shown,
    ):
        if asked.json:
            print(json.dumps([_as_json(node) for node in _told(ask, ANSWER_S, wanted)]), file=shown)
            return
        console = Console(file=shown, highlight=False)
        if asked.watch_s is not None and console.is_terminal:
            _follow(console, asked.watch_s, ask, wanted)
        while True:
            console.print(view(_told(ask, ANSWER_S, wanted), console.width, wanted))
            if asked.watch_s is None:
                return
            shown.flush()
            time.sleep(asked.watch_s)


@contextlib.contextmanager
def _only(output: TextIO) -> Iterator[TextIO]:
    """Yield the output, and discard what others print meanwhile: Ray prints the last words of a node that is lost."""
    with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing):
        yield output


def _follow(console: Console, watch_s: float, ask: Ask, wanted: WantedTraining | None) -> Never:
    """Show the live table until Ctrl-C; at the beginning, show each node of a cluster as soon as it answers."""
    began_s = time.monotonic()
    with Live(console=console, auto_refresh=False, redirect_stdout=False) as live:
        while True:
            node_statuses = _told(ask, TICK_S, wanted)
            live.update(view(node_statuses, console.width, wanted), refresh=True)
            starting = any(node.pending for node in node_statuses) and time.monotonic() - began_s < ANSWER_S
            time.sleep(0.0 if starting else watch_s)


def _told(ask: Ask, timeout_s: float, wanted: WantedTraining | None) -> list[NodeStatus]:
    """Return the state of the nodes with the rooms of their GPUs."""
    return [
        each if each.status is None else replace(each, status=with_rooms(each.status, wanted))
        for each in ask(timeout_s)
    ]


def _as_json(node: NodeStatus) -> dict[str, Any]:
    """Return a node as one flat object: its name, its address, why its state is not known, and the state."""
    state = {"gpus": None, "elsewhere": None} if node.status is None else asdict(node.status)
    return {"node": node.name, "address": node.address, "node_id": node.node_id, "fault": node.fault, **state}


if __name__ == "__main__":
    sys.exit(main())
