"""End the service of `raygpu up`, after the commands that use it.

python -m raygpu.down
python -m raygpu.down --now       at once; commands that use it end with it
"""

from __future__ import annotations

import sys

from raygpu.cli.command import PlainCommand
from raygpu.cli.flags import Arguments, Flags
from raygpu.workflow.service_start import end

SWITCHES = {"now": "End it at once, with the commands that use it."}


def _main(arguments: Arguments) -> int:
    """End the service; return the exit code: 0, too, where none runs. Raises RaygpuError if it does not end."""
    print(end(now="now" in arguments.switches))
    return 0


COMMAND = PlainCommand(
    "down",
    "[flags]",
    __doc__,
    Flags(SWITCHES, {}),
    _main,
    "interrupted; raygpu status shows the service",
    allowed="--now",
)
main = COMMAND.main


if __name__ == "__main__":
    sys.exit(main())
