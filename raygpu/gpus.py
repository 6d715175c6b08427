"""Show this machine's GPUs: memory, use, power, clocks, and the processes on each, with raygpu's trials by name.

python -m raygpu.gpus                       a live table on a terminal, else once
python -m raygpu.gpus --once
python -m raygpu.gpus --watch 5             every 5 seconds
python -m raygpu.gpus --json
python -m raygpu.gpus --pick 1 -- python train.py --lr 0.1      run a command on the emptiest GPU

CUDA_VISIBLE_DEVICES chooses GPUs. "busy" is the share of time in which any kernel ran, as nvidia-smi shows it; SM
(busy multiprocessors), occupancy (warps on them) and DRAM (memory traffic), on Hopper and newer, say how full the GPU
is. What a card does not tell is a dash.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from raygpu.cli.command import framed, reader_may_leave
from raygpu.cli.flags import Flags
from raygpu.cli.formatting import throughput
from raygpu.config.command_names import as_typed, typed
from raygpu.devices.nvml import Gpu, gpus
from raygpu.devices.selection import select
from raygpu.errors import BadInput
from raygpu.workflow.gpu_status import (
    GpuProcess,
    GpuStatus,
    MachineStatus,
    emptiest,
    machine_status,
    take,
    taken_by_picks,
)

SWITCHES = {"once": "Print the table once, and end.", "json": "Print the state once, as JSON."}
OPTIONS = {
    "watch": "Seconds between two tables. Default: 2, on a terminal.",
    "pick": "Number of GPUs for the command after --, which sees them alone; the emptiest ones are taken.",
}
FLAGS = Flags(SWITCHES, OPTIONS)
WATCH_S = 2.0
COLUMNS = ("GPU", "model", "GiB used", "busy", "SM", "occup.", "DRAM", "W", "°C", "MHz", "RGU")
UNKNOWN = "-"
SHOWN_TRIALS = 3


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code. With `--pick`, the command takes this process' place."""
    words = list(sys.argv[1:] if argv is None else argv)
    with reader_may_leave():
        return framed(lambda: _main(words), "interrupted")
    return 0


def _main(argv: list[str]) -> int:
    own, dashes, command = _divided(argv)
    arguments = FLAGS.parse(own)
    if "help" in arguments.switches:
        print(FLAGS.parser(f"{typed('gpus')} [flags] [-- COMMAND ...]", as_typed(__doc__ or "")).format_help())
        return 0
    if arguments.words:
        raise BadInput(f"read {arguments.words[0]!r}; allowed: --once, --json, --watch S, --pick N -- COMMAND ...")
    shown = _visible()
    if "pick" in arguments.options:
        _become(command, _whole("--pick", arguments.options["pick"]), shown)
    if dashes:
        raise BadInput("--: a command is run with --pick only, as in: --pick 1 -- python train.py")
    if "json" in arguments.switches:
        print(json.dumps(asdict(machine_status(shown))))
        return 0
    _show(shown, _interval(arguments.options.get("watch"), once="once" in arguments.switches))
    return 0


def _divided(argv: list[str]) -> tuple[list[str], bool, list[str]]:
    if "--" not in argv:
        return argv, False, []
    place = argv.index("--")
    return argv[:place], True, argv[place + 1 :]


def _visible() -> list[Gpu]:
    found = gpus()
    return select(found, "all", os.environ.get("CUDA_VISIBLE_DEVICES") if found else None)


def _interval(watch: str | None, *, once: bool) -> float | None:
    """Return the seconds between two tables; None for one table."""
    if once and watch is not None:
        raise BadInput("--once, --watch: give one of them")
    if watch is None:
        return WATCH_S if sys.stdout.isatty() and not once else None
    try:
        seconds = float(watch)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 86400:
        raise BadInput(f"--watch: read {watch!r}; allowed: seconds, from 0.1 to 86400")
    return seconds


def _whole(flag: str, text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1024:
        raise BadInput(f"{flag}: read {text!r}; allowed: a whole number from 1")
    return int(text)


def _become(command: Sequence[str], number: int, shown: Sequence[Gpu]) -> None:
    """Replace this process by a command that sees the emptiest GPUs. Raises BadInput."""
    if not command:
        raise BadInput("--pick: no command; write it after two dashes, as in: --pick 1 -- python train.py")
    if shutil.which(command[0]) is None:
        raise BadInput(f"--pick: {command[0]!r} is no program that can be run")
    if not shown:
        raise BadInput("--pick: no NVIDIA GPU here")
    status = machine_status(shown)
    chosen = emptiest(status, number, taken_by_picks(shown))
    take(chosen)
    print(f"raygpu: on {', '.join(f'GPU {gpu.index} ({gpu.name})' for gpu in chosen)}", file=sys.stderr, flush=True)
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ",".join(gpu.uuid for gpu in chosen)}
    os.execvpe(command[0], list(command), environment)


def _show(shown: Sequence[Gpu], every_s: float | None) -> None:
    """Print the table, and again every so many seconds until Ctrl-C; None for once."""
    console = Console(highlight=False)
    if every_s is None or not console.is_terminal:
        while True:
            console.print(view(machine_status(shown)))
            if every_s is None:
                return
            time.sleep(every_s)
    with Live(console=console, auto_refresh=False) as live:
        while True:
            live.update(view(machine_status(shown)), refresh=True)
            time.sleep(every_s)


def view(status: MachineStatus) -> Group:
    """Return the table of GPUs, each with its processes, for rich."""
    parts: list[Table | Text] = []
    if status.gpus:
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
        for column in COLUMNS:
            table.add_column(column, justify="left" if column == "model" else "right", no_wrap=True)
        for each in status.gpus:
            table.add_row(*_cells(each))
        parts.append(table)
    else:
        parts.append(Text("no NVIDIA GPU here"))
    for each in status.gpus:
        if each.clock.lowered_by:
            parts.append(Text(f"GPU {each.gpu.index}: its clock is lowered by {', '.join(each.clock.lowered_by)}"))
        parts += _texts(f"GPU {each.gpu.index}", each.processes)
    parts += _texts("on none of these" if status.gpus else "simulated GPU", status.elsewhere)
    return Group(*parts)


def _cells(status: GpuStatus) -> list[str]:
    window, memory, clock = status.window, status.memory, status.clock
    used = f"{memory.used_gib:.1f} of {memory.total_gib:.1f}" if memory is not None else UNKNOWN
    percentages = (window.util_pct, window.sm_util_pct, window.sm_occupancy_pct, window.dram_bandwidth_pct)
    return [
        str(status.gpu.index),
        status.gpu.name.removeprefix("NVIDIA "),
        used,
        *(f"{each:.0f}%" if each is not None else UNKNOWN for each in percentages),
        _number(window.power_w),
        _number(window.temperature_peak_c),
        _number(clock.mhz),
        f"{status.rgu:.1f}" if status.rgu is not None else UNKNOWN,
    ]


def _number(value: float | None) -> str:
    return f"{value:.0f}" if value is not None else UNKNOWN


def _texts(where: str, processes: Sequence[GpuProcess]) -> Iterator[Text]:
    for process in processes:
        gib = f" {process.gpu_memory_gib:.1f} GiB" if process.gpu_memory_gib is not None else ""
        line = f"{where}: {process.pid} {process.user or UNKNOWN}{gib}  {_training(process)}"
        yield Text(line, overflow="ellipsis", no_wrap=True)


def _training(process: GpuProcess) -> str:
    noted = process.activity
    if noted is None:
        return process.command or UNKNOWN
    trials = ", ".join(noted.trials[:SHOWN_TRIALS])
    if len(noted.trials) > SHOWN_TRIALS:
        trials += f" ... ({len(noted.trials)} trials)"
    share = f", share {noted.share:.2f}" if noted.share is not None else ""
    rate = f", {throughput(noted.samples_per_s)}" if noted.samples_per_s is not None else ""
    return f"{noted.run}: {trials}{share}{rate}"


if __name__ == "__main__":
    sys.exit(main())
