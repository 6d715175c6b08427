"""End the service of `raygpu up`, after the commands that use it.

python -m raygpu.down
python -m raygpu.down --now       at once; commands that use it end with it
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from raygpu.cli.command import PlainCommand
from raygpu.cli.flags import Arguments, Flags
from raygpu.errors import BadInput
from raygpu.workflow.service_start import end

SWITCHES = {"now": "End it at once, with the commands that use it."}
FLAGS = Flags(SWITCHES, {})
COMMAND = PlainCommand("down", "[flags]", __doc__, FLAGS, "interrupted; raygpu status shows the service")


def run(*, now: bool = False) -> str:
    """End the service, and return a line on what was done. Raises RaygpuError if it does not end."""
    return end(now=now)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code: 0, too, where no service runs."""
    return COMMAND.main(argv, _main)


def _main(arguments: Arguments) -> int:
    if arguments.words:
        raise BadInput(f"read {arguments.words[0]!r}; allowed: --now")
    print(run(now="now" in arguments.switches))
    return 0


if __name__ == "__main__":
    sys.exit(main())
