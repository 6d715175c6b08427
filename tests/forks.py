"""Pieces of code in processes of their own that have imported the same before: an import takes seconds."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping

EACH = """
import json, os, sys
first, pieces = json.loads(sys.argv[1])
scope = {}
exec(first, scope)
for name, code in pieces.items():
    sys.stdout.flush()
    child = os.fork()
    if not child:
        error = None
        try:
            exec(code, scope)
        except BaseException as raised:
            error = repr(raised)
        print(json.dumps([name, error]), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""


def faults_in_forks(first: str, pieces: Mapping[str, str], environment: Mapping[str, str] | None = None) -> list[str]:
    """Run `first`, and then each piece by its name in a child that has run it; return a line for each that raised, or
    ended without a word."""
    command = [sys.executable, "-c", EACH, json.dumps([first, dict(pieces)])]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    ended = dict(json.loads(line) for line in done.stdout.splitlines())
    return [f"{name}: {ended.get(name, 'ended')}" for name in pieces if ended.get(name, "ended") is not None]
