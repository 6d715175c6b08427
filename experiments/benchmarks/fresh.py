"""Measurements in processes of their own, so that neither threads nor compiled programs are left from another one.

Parent and child talk through pipes: the child prepares and says so, waits for the word, measures, and answers with one
line of JSON. So several children can begin at the same moment, and be looked at while they wait.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from typing import Any

from raygpu.training.base import thread_environment

READY = "ready"


class Fresh:
    """A process of `python -m module --one CASE`."""

    def __init__(self, module: str, case: Mapping[str, Any], threads: int) -> None:
        self.case = case
        self._errors = tempfile.TemporaryFile(mode="w+")  # noqa: SIM115 - open as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, "--one", json.dumps(case)],
            env=os.environ | thread_environment(threads),
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


class Server:
    """A process of `python -m module --serve`, which answers lines of JSON by lines of JSON until its input ends.

    For measurements whose processes cost more to start than to be measured, as those that use a GPU.
    """

    def __init__(self, module: str, threads: int, environment: Mapping[str, str] | None = None) -> None:
        self._errors = tempfile.TemporaryFile(mode="w+")  # noqa: SIM115 - open as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, "--serve"],
            env=os.environ | thread_environment(threads) | dict(environment or {}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    @property
    def lives(self) -> bool:
        return self._process.poll() is None

    def ask(self, request: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except OSError:
            pass  # it has ended: `answer` says so, with its last words

    def answer(self, within_s: float) -> dict[str, Any]:
        """The next answer. Raises RuntimeError if none comes in time; the process has ended then."""
        try:
            line = self._lines.get(timeout=within_s)
        except queue.Empty:
            self.kill()
            raise RuntimeError(f"no answer within {within_s:.0f} s") from None
        if line is None:
            self.kill()
            self._errors.seek(0)
            raise RuntimeError(self._errors.read()[-600:].strip() or "the process ended without a word")
        found: dict[str, Any] = json.loads(line)
        return found

    def close(self) -> None:
        """End its input, and wait a little for its end."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except OSError:
            pass
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):  # whatever else a library prints is no answer
                self._lines.put(line)
        self._lines.put(None)


def serve(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """In the child: answer until the input ends."""
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)
