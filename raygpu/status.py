"""Show the service of `raygpu up`: its GPUs, its idle workers, and the commands that use it or wait.

python -m raygpu.status
python -m raygpu.status --json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from raygpu.cli.command import PlainCommand
from raygpu.cli.flags import Arguments, Flags
from raygpu.cli.service_view import NONE, status_lines
from raygpu.errors import BadInput
from raygpu.workflow.service_start import state

SWITCHES = {"json": "Print the state as JSON; null without a service."}
FLAGS = Flags(SWITCHES, {})
COMMAND = PlainCommand("status", "[flags]", __doc__, FLAGS)


def run() -> dict[str, Any] | None:
    """Return the state of this user's service; None where none runs. Raises RaygpuError if it does not answer."""
    return state()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code: 1 where no service runs."""
    return COMMAND.main(argv, _main)


def _main(arguments: Arguments) -> int:
    if arguments.words:
        raise BadInput(f"read {arguments.words[0]!r}; allowed: --json")
    found = run()
    if "json" in arguments.switches:
        print(json.dumps(found))
    else:
        print("\n".join([NONE] if found is None else status_lines(found)))
    return 1 if found is None else 0


if __name__ == "__main__":
    sys.exit(main())
