"""The lines of `raygpu status`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raygpu.cli.formatting import duration

NONE = "service: none runs; raygpu up starts one"


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
