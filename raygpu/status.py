"""Show the service of `raygpu up`: its GPUs, its idle workers, and the commands that use it or wait.

python -m raygpu.status
python -m raygpu.status --json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from raygpu.cli.command import framed, reader_may_leave
from raygpu.cli.flags import Flags
from raygpu.cli.service_view import NONE, status_lines
from raygpu.config.command_names import as_typed, typed
from raygpu.errors import BadInput
from raygpu.workflow.service_start import state

SWITCHES = {"json": "Print the state as JSON; null without a service."}
FLAGS = Flags(SWITCHES, {})


def run() -> dict[str, Any] | None:
    """Return the state of this user's service; None where none runs. Raises RaygpuError if it does not answer."""
    return state()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code: 1 where no service runs."""
    words = list(sys.argv[1:] if argv is None else argv)
    with reader_may_leave():
        return framed(lambda: _main(words), "interrupted")
    return 0


def _main(argv: list[str]) -> int:
    arguments = FLAGS.parse(argv)
    if "help" in arguments.switches:
        print(FLAGS.parser(f"{typed('status')} [flags]", as_typed(__doc__ or "")).format_help())
        return 0
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
