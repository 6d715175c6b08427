"""Measurements in processes of their own, so that neither threads nor compiled programs are left from another one.

Parent and child talk through pipes: the child prepares and says so, waits for the word, measures, and answers with one
line of JSON. So several children can begin at the same moment, and be looked at while they wait.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

from raygpu.training.base import surroundings

READY = "ready"


class Fresh:
    """A process of `python -m module --one CASE`."""

    def __init__(self, module: str, case: Mapping[str, Any], threads: int) -> None:
        self.case = case
        self._errors = tempfile.TemporaryFile(mode="w+")  # noqa: SIM115 - open as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, "--one", json.dumps(case)],
            env=os.environ | surroundings(threads),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def prepare(self) -> None:
        """Come back when the process is ready."""
        assert self._process.stdout is not None
        while line := self._process.stdout.readline():
            if line.strip() == READY:
                return
        self._fail()

    def go(self) -> None:
        """Give the word."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """What it measured; the process has ended."""
        output, _ = self._process.communicate()
        if self._process.returncode:
            self._fail()
        found: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
        return found

    def _fail(self) -> None:
        self._process.kill()
        self._process.wait()
        self._errors.seek(0)
        raise RuntimeError(f"{self.case} failed:\n{self._errors.read()[-3000:]}")


def together(module: str, cases: list[dict[str, Any]], threads: int) -> list[dict[str, Any]]:
    """Measure in as many processes at once, which begin at the same moment."""
    processes = [Fresh(module, case, threads) for case in cases]
    for process in processes:
        process.prepare()
    for process in processes:
        process.go()
    return [process.answer() for process in processes]


def wait_for_the_word() -> None:
    """In the child: all is prepared."""
    print(READY, flush=True)
    sys.stdin.readline()
