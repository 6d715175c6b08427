"""Show the service of `raygpu up`: its GPUs, its idle workers, and the commands that use it or wait.

python -m raygpu.status
python -m raygpu.status --json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from raygpu.cli.command import PlainCommand
from raygpu.cli.flags import Arguments, Flags
from raygpu.cli.formatting import duration
from raygpu.workflow.service_start import state

NONE = "service: none runs; raygpu up starts one"
SWITCHES = {"json": "Print the state as JSON; null without a service."}


def status_lines(state: Mapping[str, Any]) -> list[str]:
    """Return the lines on a service's state, as it tells it."""
    devices = ", ".join(dict.fromkeys(state["gpus"]))
    lines = [
        f"service: pid {state['pid']}, since {state['begun']}",
        f"GPUs: {state['free_gpus']:g} of {state['num_gpus']} free ({devices})",
        f"workers: {state['idle_workers']} of {state['workers']} idle;"
        f" the next command's process {'is ready' if state['standby'] else 'is not ready'}",
    ]
    lines += [f"used by: {user['what']}, pid {user['pid']}: {user['gpus']:g} GPUs" for user in state["used_by"]]
    lines += [f"waiting: {user['what']}, pid {user['pid']}" for user in state["waiting"]]
    if state["ending"]:
        lines.append("ends: after the commands that use it")
    elif state["ends_in_s"] is not None:
        lines.append(f"ends: in {duration(state['ends_in_s'])}, unless a command comes")
    return [*lines, f"Ray dashboard: {state['dashboard'] or '-'}", f"logs: {state['output']}, {state['logs']}"]


def _main(arguments: Arguments) -> int:
    """Print the state; return the exit code: 1 where no service runs. Raises RaygpuError if it does not answer."""
    service_state = state()
    if "json" in arguments.switches:
        print(json.dumps(service_state))
    else:
        print("\n".join([NONE] if service_state is None else status_lines(service_state)))
    return 1 if service_state is None else 0


COMMAND = PlainCommand("status", "[flags]", __doc__, Flags(SWITCHES, {}), _main, allowed="--json")
main = COMMAND.main


if __name__ == "__main__":
    sys.exit(main())
