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

from raygpu.cli.command import PlainCommand
from raygpu.cli.flags import Arguments, Flags, number, whole_number
from raygpu.workflow.service_start import IDLE_MINUTES, start_in_background, start_in_foreground

SWITCHES = {"foreground": "Stay in this terminal until Ctrl-C, with the service's lines."}
OPTIONS = {
    "idle-minutes": f"Minutes without a command after which the service ends. Default: {IDLE_MINUTES}.",
    "workers": "Number of idle workers that are kept ready. Default: one for each CPU, 8 at most, and one more.",
}
MOST_WORKERS = 64


def _main(arguments: Arguments) -> int:
    """Start the service; return when it is ready, or with --foreground when it has ended. Raises BadInput if a service
    runs already, RaygpuError if it does not start."""
    options, workers = arguments.options, None
    text = options.get("idle-minutes", str(IDLE_MINUTES))
    minutes = number("idle-minutes", text, lambda n: 0 < n <= 43200, "minutes, above 0 and at most 43200")
    if "workers" in options:
        workers = whole_number("workers", options["workers"], MOST_WORKERS, f"a whole number from 1 to {MOST_WORKERS}")
    if "foreground" in arguments.switches:
        start_in_foreground(minutes, workers)
    else:
        for line in start_in_background(minutes, workers):
            print(line)
    return 0


COMMAND = PlainCommand(
    "up",
    "[flags]",
    __doc__,
    Flags(SWITCHES, OPTIONS),
    _main,
    "interrupted; no service was started",
    allowed="--foreground, --idle-minutes N, --workers N",
)
main = COMMAND.main


if __name__ == "__main__":
    sys.exit(main())
