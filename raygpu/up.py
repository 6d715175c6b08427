"""Keep a Ray with its workers ready on this machine, so that the next commands begin within seconds.

python -m raygpu.up                       in the background; ends after 30 minutes without a command
python -m raygpu.up --idle-minutes 240
python -m raygpu.up --foreground          until Ctrl-C

The next sweep, train, pack, balance or place of the same user, environment and GPUs finds the service and uses its
workers, which have imported their libraries and hold no GPU memory. A command that cannot use it says why in a line,
and starts a Ray of its own. RAYGPU_SERVICE=off keeps a command off it. CUDA_VISIBLE_DEVICES chooses the service's GPUs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from raygpu.cli.command import PlainCommand
from raygpu.cli.flags import Arguments, Flags
from raygpu.errors import BadInput
from raygpu.workflow.service_start import IDLE_MINUTES, start_in_background, start_in_foreground

SWITCHES = {"foreground": "Stay in this terminal until Ctrl-C, with the service's lines."}
OPTIONS = {
    "idle-minutes": f"Minutes without a command after which the service ends. Default: {IDLE_MINUTES}.",
    "workers": "Number of idle workers that are kept ready. Default: one for each CPU, 8 at most, and one more.",
}
FLAGS = Flags(SWITCHES, OPTIONS)
COMMAND = PlainCommand("up", "[flags]", __doc__, FLAGS, "interrupted; no service was started")
MOST_WORKERS = 64


def run(*, idle_minutes: float = IDLE_MINUTES, workers: int | None = None, foreground: bool = False) -> None:
    """Start the service; return when it is ready, or with `foreground` when it has ended.

    workers: number of idle workers; None for one that suits this machine. Raises BadInput if a service runs already,
    RaygpuError if it does not start.
    """
    if foreground:
        start_in_foreground(idle_minutes, workers)
    else:
        for line in start_in_background(idle_minutes, workers):
            print(line)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    return COMMAND.main(argv, _main)


def _main(arguments: Arguments) -> int:
    if arguments.words:
        raise BadInput(f"read {arguments.words[0]!r}; allowed: --foreground, --idle-minutes N, --workers N")
    minutes = arguments.options.get("idle-minutes")
    workers = arguments.options.get("workers")
    run(
        idle_minutes=IDLE_MINUTES if minutes is None else _minutes(minutes),
        workers=None if workers is None else _workers(workers),
        foreground="foreground" in arguments.switches,
    )
    return 0


def _minutes(text: str) -> float:
    try:
        minutes = float(text)
    except ValueError:
        minutes = 0.0
    if not 0 < minutes <= 43200:
        raise BadInput(f"--idle-minutes: read {text!r}; allowed: minutes, above 0 and at most 43200")
    return minutes


def _workers(text: str) -> int:
    if not text.isdecimal() or not 1 <= float(text) <= MOST_WORKERS:
        raise BadInput(f"--workers: read {text!r}; allowed: a whole number from 1 to {MOST_WORKERS}")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
