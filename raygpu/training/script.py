"""Any script as a training: started as it is, its metrics read from `raygpu.report` or JSON lines on its output."""

from __future__ import annotations

import ctypes
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

from raygpu.errors import BadInput
from raygpu.reporting import CHECKPOINT_FILE, CHECKPOINT_VARIABLE, REPORT_VARIABLE
from raygpu.training.base import Settings
from raygpu.trials import EpochResult, Trial

OUTPUT_FILE = "output.txt"
GRACE_S = 10.0
OWN_PLACEHOLDERS = ("trial_id", "seed", "epochs")
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def placeholders(command: str) -> set[str]:
    """The names in braces in a command line. Raises BadInput if it cannot be split or has stray braces."""
    try:
        return {name for word in shlex.split(command) for _, name, _, _ in string.Formatter().parse(word) if name}
    except ValueError as error:
        raise BadInput(f"command: read {command!r}; {error}") from error


def render(command: str, values: Mapping[str, Any]) -> list[str]:
    """The command's words with hyper-parameters filled in.

    A word whose hyper-parameter this trial does not have is left out, and so is an option right before it.
    """
    words: list[str] = []
    for word in shlex.split(command):
        names = [name for _, name, _, _ in string.Formatter().parse(word) if name]
        if all(name in values for name in names):
            words.append(word.format_map(values))
        elif word == f"{{{names[0]}}}" and words and words[-1].startswith("-"):
            words.pop()
    return words


class ScriptTraining:
    """A `Training` of a script: a process of its own, in a session of its own, which ends with this process."""

    def __init__(self, command: str, cwd: str, trial: Trial, settings: Settings) -> None:
        own = {"trial_id": trial.trial_id, "seed": trial.seed, "epochs": settings.epochs}
        self.words = render(command, {**own, **trial.hyperparameters})
        self.cwd = cwd
        self.epochs = settings.epochs
        self.epoch = 0
        self._output = (settings.folder / OUTPUT_FILE).open("ab", buffering=0)
        self._scratch = Path(tempfile.mkdtemp(prefix="raygpu-script-"))
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
        process = self._process or self._start()
        while not self._reports:
            if not self._read(timeout_s=0.2) and process.poll() is not None and not self._read(timeout_s=0):
                if process.returncode:
                    raise RuntimeError(self._failure(process.returncode))
                break
        if not self._reports:
            return None
        self.epoch += 1
        return EpochResult(self.epoch, self._reports.popleft())

    def _start(self) -> subprocess.Popen[bytes]:
        try:
            self._process = subprocess.Popen(
                self.words,
                cwd=self.cwd,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=self._output,
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )
        except OSError as error:
            raise RuntimeError(f"command: {self.words[0]!r} cannot be started: {error.strerror}") from error
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
        """Take in what the script wrote; whether there was anything."""
        found = False
        for key, _ in self._selector.select(timeout_s):
            data = os.read(key.fd, 65536)
            if not data:
                self._selector.unregister(key.fd)
                continue
            found = True
            if key.fd == self._stdout:
                self._output.write(data)
            *lines, self._lines[key.fd] = (self._lines[key.fd] + data).split(b"\n")
            for line in lines:
                metrics = parse_metrics(line.decode(errors="replace"))
                if metrics:
                    self._reports.append(metrics)
        return found

    def _failure(self, status: int) -> str:
        ended = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
        self._output.flush()
        lines = Path(self._output.name).read_text(errors="replace").splitlines()[-20:]
        return f"the script ended with {ended}: {shlex.join(self.words)}\n" + "\n".join(lines)

    def save(self, folder: Path) -> None:
        """The script's last `raygpu.checkpoint`, and how many reports came before."""
        state = self._checkpoints / CHECKPOINT_FILE
        if state.is_file():
            shutil.copy(state, folder / CHECKPOINT_FILE)
        (folder / "epoch.json").write_text(json.dumps(self.epoch if state.is_file() else 0))

    def load(self, folder: Path) -> None:
        """The script starts again at its beginning, and finds its state by `raygpu.load()`."""
        self.epoch = json.loads((folder / "epoch.json").read_text())
        if (folder / CHECKPOINT_FILE).is_file():
            shutil.copy(folder / CHECKPOINT_FILE, self._checkpoints / CHECKPOINT_FILE)

    def close(self) -> None:
        """SIGTERM to the script and what it started; SIGKILL to what is left after GRACE_S seconds."""
        process, self._process = self._process, None
        if process is not None:
            if process.poll() is None:
                _signal_group(process.pid, signal.SIGTERM)
                try:
                    process.wait(GRACE_S)
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
    """The numbers of a line that is a JSON object; nothing of any other line."""
    if not line.lstrip().startswith("{"):
        return {}
    try:
        values = json.loads(line)
    except ValueError:
        return {}
    return {
        name: float(value)
        for name, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _environment(trial: Trial, settings: Settings) -> dict[str, str]:
    """The script's environment: threads from its share of the CPUs, output unbuffered, and our own Python first."""
    threads = str(settings.threads)
    return os.environ | {
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
        "PYTHONUNBUFFERED": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "RAYGPU_TRIAL_ID": trial.trial_id,
        "RAYGPU_HYPERPARAMETERS": json.dumps(dict(trial.hyperparameters), default=str),
    }


def _end_with_parent() -> None:
    """In the child before exec: SIGTERM when the worker dies, even by SIGKILL; and SIGINT as it is by default."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})


def _signal_group(group: int, number: signal.Signals) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        pass
