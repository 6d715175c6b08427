"""Any script as a training: run unchanged, with metrics from `raygpu.report` or from JSON lines on its output."""

from __future__ import annotations

import json
import os
import selectors
import shlex
import shutil
import signal
import string
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raygpu import scratch
from raygpu.errors import BadInput
from raygpu.reporting import CHECKPOINT_VARIABLE, REPORT_VARIABLE, Kept
from raygpu.search.trials import EpochResult, Trial
from raygpu.training.base import Settings, surroundings
from raygpu.training.callable import supervisor

OUTPUT_FILE = "output.txt"
LONGEST_LINE = 64 * 1024
"""Largest number of bytes of a line from which metrics are read."""
OWN_PLACEHOLDERS = ("trial_id", "seed", "epochs")


def placeholders(command: str) -> set[str]:
    """Return the names in braces in a command line. Raises BadInput if it cannot be split or has stray braces."""
    try:
        names = {name for word in shlex.split(command) for _, name, _, _ in string.Formatter().parse(word)} - {None}
    except ValueError as error:
        raise BadInput(f"command: read {command!r}; {error}") from error
    if "" in names:
        raise BadInput(
            f"command: read {command!r}; {{}} names no hyper-parameter; literal braces are doubled: {{{{}}}}"
        )
    return {str(name) for name in names}


def render(command: str, values: Mapping[str, Any]) -> list[str]:
    """Return the command's words with hyper-parameters filled in.

    A word whose hyper-parameter this trial does not have is left out, and so is an option right before it.
    """
    words: list[str] = []
    for word in shlex.split(command):
        names = [name for _, name, _, _ in string.Formatter().parse(word) if name]
        if all(name in values for name in names):
            words.append(_filled(word, values))
        elif word == f"{{{names[0]}}}" and words and words[-1].startswith("-"):
            words.pop()
    return words


def _filled(word: str, values: Mapping[str, Any]) -> str:
    """Replace the placeholders of a word; names are taken whole: `{net.lr}` is the hyper-parameter `net.lr`."""
    parts = string.Formatter().parse(word)
    return "".join(text + (format(values[name], spec or "") if name else "") for text, name, spec, _ in parts)


class ScriptTraining:
    """A `Training` of a script, in a process and a session of its own; all of it ends with this process."""

    def __init__(self, command: str, cwd: str, trial: Trial, settings: Settings) -> None:
        own = {"trial_id": trial.trial_id, "seed": trial.seed, "epochs": settings.epochs}
        self.words = render(command, {**own, **trial.hyperparameters})
        self.cwd = cwd
        self.epochs = settings.epochs
        self.epoch = 0
        self._output = (settings.folder / OUTPUT_FILE).open("ab", buffering=0)
        self._scratch = Path(tempfile.mkdtemp(prefix="script-", dir=scratch.home()))
        self._pipe = self._scratch / "report"
        self._checkpoints = self._scratch / "checkpoint"
        self._checkpoints.mkdir()
        os.mkfifo(self._pipe)
        self._reports: deque[dict[str, float]] = deque()
        self._lines: dict[int, bytes] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._selector = selectors.DefaultSelector()
        self._environment = _environment(trial, settings) | {
            REPORT_VARIABLE: str(self._pipe),
            CHECKPOINT_VARIABLE: str(self._checkpoints),
        }

    def run_epoch(self) -> EpochResult | None:
        """Wait for the script's next report. Raises RuntimeError if it ends with another status than 0."""
        if self.epochs is not None and self.epoch >= self.epochs:
            return None
        if not self._wait():
            return None
        self.epoch += 1
        metrics = self._reports.popleft()
        if self.epoch == self.epochs:
            self._wait()  # what comes after the last report, as saving a model, belongs to it; one more is too many
        return EpochResult(self.epoch, metrics)

    def _wait(self) -> bool:
        """Wait for a report; return False if the script has ended. Raises RuntimeError if it ended with a status other
        than 0."""
        process = self._process or self._start()
        while not self._reports:
            if not self._read(timeout_s=0.2) and process.poll() is not None and not self._read(timeout_s=0):
                self._take_rest()
                if process.returncode:
                    raise RuntimeError(self._failure(process.returncode))
                break
        return bool(self._reports)

    def _start(self) -> subprocess.Popen[bytes]:
        program = self.words[0]
        if shutil.which(program, path=self._environment["PATH"]) is None and not os.access(program, os.X_OK):
            raise RuntimeError(f"command: {program!r} cannot be started: no such program, or not executable")
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", supervisor.__file__, str(os.getpid()), *self.words],
            cwd=self.cwd,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._output,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        stdout = self._process.stdout.fileno()
        os.set_blocking(stdout, False)
        # Opened for writing too, so that it never ends when one of several writers leaves.
        reports = os.open(self._pipe, os.O_RDWR | os.O_NONBLOCK)
        for descriptor in (stdout, reports):
            self._selector.register(descriptor, selectors.EVENT_READ)
            self._lines[descriptor] = b""
        self._stdout = stdout
        return self._process

    def _read(self, timeout_s: float) -> bool:
        """Take in the script's output; return whether there was any."""
        found = False
        for key, _ in self._selector.select(timeout_s):
            data = os.read(key.fd, 65536)
            if not data:
                self._selector.unregister(key.fd)
                continue
            found = True
            if key.fd == self._stdout:
                self._output.write(data)
            *lines, rest = (self._lines[key.fd] + data).split(b"\n")
            self._lines[key.fd] = rest if len(rest) <= LONGEST_LINE else b""
            for line in lines:
                self._take(line)
        return found

    def _take(self, line: bytes) -> None:
        metrics = parse_metrics(line.decode(errors="replace"))
        if metrics:
            self._reports.append(metrics)

    def _take_rest(self) -> None:
        """Take in last lines without a line end."""
        for descriptor, line in self._lines.items():
            self._take(line)
            self._lines[descriptor] = b""

    def _failure(self, status: int) -> str:
        ended = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
        self._output.flush()
        with open(self._output.name, "rb") as file:
            file.seek(max(0, os.path.getsize(self._output.name) - LONGEST_LINE))
            lines = file.read().decode(errors="replace").splitlines()[-20:]
        return f"the script ended with {ended}: {shlex.join(self.words)}\n" + "\n".join(lines)

    def pause(self) -> None:
        """Stop the script in place, and forget its reports since the last epoch.

        Its supervisor goes on, so that it still ends all processes if this one dies.
        """
        if self._process is None:
            return
        leader = self._process.pid
        for process in [*Path("/proc").glob("[0-9]*"), *Path("/proc").glob("[0-9]*")]:  # twice: it may just have forked
            try:
                group = int((process / "stat").read_text().rpartition(")")[2].split()[2])
                if group == leader and int(process.name) != leader:
                    os.kill(int(process.name), signal.SIGSTOP)
            except (FileNotFoundError, ProcessLookupError):
                continue  # has ended meanwhile
        while self._read(timeout_s=0):
            pass
        self._reports.clear()

    def resume(self) -> None:
        """Let a paused script go on."""
        if self._process is not None:
            _signal_group(self._process.pid, signal.SIGCONT)

    def save(self, folder: Path) -> None:
        """Write the state of the script's last `raygpu.checkpoint`, if there is one."""
        kept = Kept.load(self._checkpoints)
        if kept is not None:
            kept.dump(folder)

    def has_saved(self, epoch: int) -> bool:
        """Return whether the state that `save` writes is of this epoch: a fast script may be past the last one
        reported."""
        kept = Kept.load(self._checkpoints)
        if kept is None:
            return False
        return kept.epoch == epoch or (epoch == self.epochs and kept.epoch > epoch)

    def load(self, folder: Path) -> None:
        """Take in a saved state: the script starts again at its beginning, and gets the state by `raygpu.load()`."""
        kept = Kept.load(folder)
        if kept is not None:
            self.epoch = kept.epoch
            kept.dump(self._checkpoints)

    def close(self) -> None:
        """End the script and its processes: SIGTERM, and SIGKILL for those left after `supervisor.GRACE_S` seconds."""
        process, self._process = self._process, None
        if process is not None:
            if process.poll() is None:
                _signal_group(process.pid, signal.SIGTERM)
                _signal_group(process.pid, signal.SIGCONT)
                try:
                    process.wait(supervisor.GRACE_S + supervisor.LAST_WORDS_S)
                except subprocess.TimeoutExpired:
                    pass
            _signal_group(process.pid, signal.SIGKILL)
            process.wait()
            while self._read(timeout_s=0):
                pass
            assert process.stdout is not None
            process.stdout.close()
            for descriptor in set(self._lines) - {self._stdout}:
                os.close(descriptor)
        self._selector.close()
        self._output.close()
        shutil.rmtree(self._scratch, ignore_errors=True)


def parse_metrics(line: str) -> dict[str, float]:
    """Return the numbers of a line that is a JSON object; empty for any other line."""
    if not line.lstrip().startswith("{"):
        return {}
    try:
        values = json.loads(line)
    except ValueError:
        return {}
    return {
        name: float(value)
        for name, value in values.items()
        if isinstance(value, float) or (type(value) is int and abs(value) < 2**1000)
    }


def _environment(trial: Trial, settings: Settings) -> dict[str, str]:
    """Return the script's environment: threads by its share of the CPUs, unbuffered output, our own Python first."""
    return os.environ | {
        **surroundings(settings.threads),
        "PYTHONUNBUFFERED": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "RAYGPU_TRIAL_ID": trial.trial_id,
        "RAYGPU_HYPERPARAMETERS": json.dumps(dict(trial.hyperparameters), default=str),
    }


def _signal_group(group: int, number: signal.Signals) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        pass
