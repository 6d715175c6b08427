"""End the service of `raygpu up`, after the commands that use it.

python -m raygpu.down
python -m raygpu.down --now       at once; commands that use it end with it
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from raygpu.cli.command import framed, reader_may_leave
from raygpu.cli.flags import Flags
from raygpu.config.command_names import as_typed, typed
from raygpu.errors import BadInput
from raygpu.workflow.service_start import end

SWITCHES = {"now": "End it at once, with the commands that use it."}
FLAGS = Flags(SWITCHES, {})


def run(*, now: bool = False) -> str:
    """End the service, and return a line on what was done. Raises RaygpuError if it does not end."""
    return end(now=now)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code: 0, too, where no service runs."""
    words = list(sys.argv[1:] if argv is None else argv)
    with reader_may_leave():
        return framed(lambda: _main(words), "interrupted; raygpu status shows the service")
    return 0


def _main(argv: list[str]) -> int:
    arguments = FLAGS.parse(argv)
    if "help" in arguments.switches:
        print(FLAGS.parser(f"{typed('down')} [flags]", as_typed(__doc__ or "")).format_help())
        return 0
    if arguments.words:
        raise BadInput(f"read {arguments.words[0]!r}; allowed: --now")
    print(run(now="now" in arguments.switches))
    return 0


if __name__ == "__main__":
    sys.exit(main())
