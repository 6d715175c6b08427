"""Any script as a training: run unchanged, with metrics from `raygpu.report` or from the lines that it prints."""

from __future__ import annotations

import json
import os
import re
import selectors
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from raygpu.config.sections import ScriptSection
from raygpu.errors import SCRIPT_ENDED
from raygpu.records import scratch
from raygpu.records.trial_files import BEFORE
from raygpu.reporting import CHECKPOINT_FILE, CHECKPOINT_VARIABLE, EPOCH_VARIABLE, REPORT_VARIABLE, Kept
from raygpu.search.command_line import filled
from raygpu.search.trials import EpochResult, Trial
from raygpu.training.base import Settings, Training, thread_environment
from raygpu.training.callable import supervisor
from raygpu.training.callable.printed_metrics import LONGEST_QUOTE, json_metrics
from raygpu.training.callable.printed_streams import ERROR, OUTPUT, PrintedStreams
from raygpu.training.callable.working_folder import WorkingFolder

OUTPUT_FILE = "output.txt"
UNREAD_FILE = "reports.json"
"""Reports of a fast script up to its saved state, beside it, that nothing has read before it was saved."""
LONGEST_LINE = 64 * 1024
"""Largest number of bytes of a printed line from which metrics are read."""
LONGEST_REPORT = 16 * 1024 * 1024
"""Largest number of bytes of one `raygpu.report`."""
SOURCE_VARIABLE = "RAYGPU_SOURCE_FOLDER"
"""Variable that names the folder that the command is written for."""
LINE_END = re.compile(rb"[\r\n]")
"""End of a line; a progress bar ends each of its states by a carriage return."""
ABOVE = re.compile(r"((?:--?[\w-]+=)?)(\.\.(?:/.*)?)", re.DOTALL)
"""Word, or value of an option, that is a path above the working directory."""
MISSING = "No such file or directory"
NO_STATE = "it has saved no state by raygpu.checkpoint"


class ScriptTraining(Training):
    """Training of a script, in a process and a session of its own; all of it ends with this process.

    folder: the folder that the command is written for, where its relative paths start.
    """

    def __init__(self, command: str, folder: str, script: ScriptSection, trial: Trial, settings: Settings) -> None:
        self.words = filled(command, trial, settings.epochs, settings.folds)
        self.source = folder
        self.epochs = settings.epochs
        self.epoch = 0
        self._output = (settings.folder / OUTPUT_FILE).open("ab", buffering=0)
        self._earlier_bytes = self._output.tell()
        self._scratch = Path(tempfile.mkdtemp(prefix="script-", dir=scratch.home()))
        self._pipe = self._scratch / "report"
        self._checkpoints = self._scratch / "checkpoint"
        self._checkpoints.mkdir()
        os.mkfifo(self._pipe)
        home = settings.folder if settings.keeps_files else self._scratch
        self._own = WorkingFolder(Path(folder), home) if script.folder == "own" else None
        self._goes_on = False
        self._printed = PrintedStreams(script.metrics)
        self._reports: deque[dict[str, float]] = deque()
        self._earlier: deque[dict[str, float]] = deque()
        """Reports of an earlier start, up to its state, that have not been read."""
        self._marks: list[tuple[int, int]] = []
        self._last_read: tuple[tuple[int, int], Kept | None] | None = None
        """Mark of the last checkpoint that was read, and what it was without its content."""
        """File of the last checkpoint when each report was read."""
        self._fault: ValueError | None = None
        """Fault of the output that was read while a state was saved, to be raised at the next report."""
        self._is_behind = False
        """Whether several reports have been read at once, so that it is not known when each one was made."""
        self._first = 1
        """Epoch of the script's first report."""
        self._lines: dict[int, bytes] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._selector = selectors.DefaultSelector()
        self._environment = _environment(trial, settings) | {
            REPORT_VARIABLE: str(self._pipe),
            CHECKPOINT_VARIABLE: str(self._checkpoints),
            SOURCE_VARIABLE: str(Path(folder).resolve()),
        }

    def run_epoch(self) -> EpochResult | None:
        """Wait for the script's next report. Raises RuntimeError if it ends with another status than 0, or without a
        metric; ValueError if an expression finds text that is no number."""
        if self.epochs is not None and self.epoch >= self.epochs:
            return None
        if self._earlier:
            self.epoch += 1
            return EpochResult(self.epoch, self._earlier.popleft())
        if not self._wait():
            return None
        self.epoch = max(self.epoch + 1, self._first)
        metrics = self._reports.popleft()
        if self.epoch == self.epochs:
            self._wait()  # what comes after the last report, as saving a model, belongs to it; one more is too many
        return EpochResult(self.epoch, metrics)

    def _wait(self) -> bool:
        """Wait for a report; return False if the script has ended. Raises RuntimeError if it ended with a status other
        than 0."""
        process = self._process or self._start()
        while not self._reports:
            if self._fault is not None:
                raise self._fault
            if not self._read(timeout_s=0.2) and process.poll() is not None and not self._read(timeout_s=0):
                self._take_rest()
                if process.returncode:
                    raise RuntimeError(self._failure(process.returncode))
                self._add(self._printed.settle(has_ended=True))
                if not self._reports and not self.epoch:
                    raise RuntimeError(self._no_metric())
                break
        return bool(self._reports)

    def _start(self) -> subprocess.Popen[bytes]:
        cwd = Path(self.source) if self._own is None else self._own.enter(goes_on=self._goes_on)
        words = [self._from_source(word) for word in self.words]
        program = words[0]
        if shutil.which(cwd / program if "/" in program else program, path=self._environment["PATH"]) is None:
            raise RuntimeError(f"command: {program!r} cannot be started: no such program, or not executable")
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", supervisor.__file__, str(os.getpid()), *words],
            cwd=cwd,
            env=self._environment | {EPOCH_VARIABLE: str(self._first - 1)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            # An object of JSON there is a logger's, and no report.
            stderr=subprocess.PIPE if self._printed.names else self._output,
            start_new_session=True,
        )
        pipes = [pipe.fileno() for pipe in (self._process.stdout, self._process.stderr) if pipe is not None]
        # Opened for writing too, so that it never ends when one of several writers leaves.
        reports = os.open(self._pipe, os.O_RDWR | os.O_NONBLOCK)
        for descriptor in (*pipes, reports):
            os.set_blocking(descriptor, False)
            self._selector.register(descriptor, selectors.EVENT_READ)
            self._lines[descriptor] = b""
        self._stdout, self._reported = pipes[0], reports
        return self._process

    def _from_source(self, word: str) -> str:
        """Return a word of the command, made absolute if it is an existing path above the source folder."""
        if self._own is None or (above := ABOVE.fullmatch(word)) is None:
            return word
        path = Path(self.source, above[2])
        return f"{above[1]}{path.resolve()}" if path.exists() else word

    def _read(self, timeout_s: float) -> bool:
        """Take in the script's output; return whether there was any."""
        has_output = False
        for key, _ in self._selector.select(timeout_s):
            data = os.read(key.fd, 65536)
            if not data:
                self._selector.unregister(key.fd)
                continue
            has_output, before = True, len(self._reports)
            if key.fd != self._reported:
                self._output.write(data)
            *lines, rest = LINE_END.split(data)
            for line in lines:
                self._take(key.fd, self._lines[key.fd] + line)
                self._lines[key.fd] = b""
            self._keep_rest(key.fd, self._lines[key.fd] + rest)
            self._is_behind |= len(self._reports) > before + 1
        if has_output and not self._selector.select(0):
            self._add(self._printed.settle())
        return has_output

    def _keep_rest(self, descriptor: int, rest: bytes) -> None:
        """Keep the beginning of a line until its end comes. Raises ValueError for a report that is too long."""
        is_report = descriptor == self._reported
        fits = len(rest) <= (LONGEST_REPORT if is_report else LONGEST_LINE)
        self._lines[descriptor] = rest if fits else b""
        if is_report and not fits:
            raise ValueError(f"raygpu.report: read more than {LONGEST_REPORT:,} bytes; allowed: fewer in one report")

    def _take(self, descriptor: int, line: bytes) -> None:
        """Take in the metrics of a line: an object of JSON is a report, and so is a complete set by expressions."""
        text = line.decode(errors="replace")
        if descriptor in (self._stdout, self._reported) and (metrics := json_metrics(text)):
            self._add([metrics])
        elif descriptor != self._reported:
            self._add(self._printed.take(OUTPUT if descriptor == self._stdout else ERROR, text))

    def _add(self, reports: list[dict[str, float]]) -> None:
        self._reports += reports
        self._marks += [self._mark() for _ in reports]
        self._is_behind |= len(reports) > 1

    def _take_rest(self) -> None:
        """Take in last lines without a line end."""
        for descriptor, line in self._lines.items():
            self._lines[descriptor] = b""
            self._take(descriptor, line)

    def _failure(self, status: int) -> str:
        signal_names = {each.value: each.name for each in signal.Signals}
        ended = f"signal {signal_names.get(-status, -status)}" if status < 0 else f"exit status {status}"
        lines = self._last_lines(20)
        advice = ""
        if self._own is not None and any(MISSING in line for line in lines):
            advice = f'; it ran in a folder of its own: [script] folder = "shared" runs it in {self.source}'
        return f"{SCRIPT_ENDED} with {ended}{advice}: {shlex.join(self.words)}\n" + "\n".join(lines)

    def _no_metric(self) -> str:
        """Return the error of a script that ended well and reported nothing; its last line says what to do."""
        lines = self._last_lines(5)
        last = f"its output ends with {lines[-1][: LONGEST_QUOTE // 2]!r}" if lines else "it printed nothing"
        wanted = ", ".join(self._printed.not_found)
        if wanted:
            advice = f"correct the expression of {wanted} in [script] metrics"
        else:
            advice = "give it [script] metrics = { accuracy = 'Accuracy: ([0-9.]+)' }, print lines of JSON, or call"
            advice += " raygpu.report"
        command = shlex.join(self.words)
        return "\n".join([f"{SCRIPT_ENDED} well: {command}", *lines, f"no metric was found: {last}; {advice}"])

    def _last_lines(self, count: int) -> list[str]:
        """Return the last lines, of those that are not empty, of the output since this start of the script."""
        with open(self._output.name, "rb") as file:
            file.seek(max(self._earlier_bytes, os.path.getsize(self._output.name) - LONGEST_LINE))
            lines = LINE_END.split(file.read())
        return [text for line in lines if (text := line.decode(errors="replace").rstrip())][-count:]

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
        self._drain()
        self._reports.clear()
        self._printed.clear()

    def _drain(self) -> None:
        """Take in all output that is there; a value that is no number, or a full disk, no longer matters."""
        while True:
            with suppress(ValueError, OSError):
                if not self._read(timeout_s=0):
                    return

    def resume(self) -> None:
        """Let a paused script go on."""
        if self._process is not None:
            _signal_group(self._process.pid, signal.SIGCONT)

    def save(self, folder: Path) -> None:
        """Write the state of the script's last `raygpu.checkpoint`, if there is one, and the reports up to it that have
        not been read."""
        self._take_in()
        state = self._kept()
        if state is None:
            return
        if state.epoch > self.epoch + len(self._reports):  # it has come meanwhile
            self._take_in()
        state.dump(folder)
        unread = [*self._earlier, *self._reports][: max(0, state.epoch - self.epoch)]
        if unread:
            (folder / UNREAD_FILE).write_text(json.dumps({"epoch": self.epoch, "reports": unread}))
        else:
            (folder / UNREAD_FILE).unlink(missing_ok=True)

    def _take_in(self) -> None:
        """Take in the output that is in the pipes, which hold no more than one reading."""
        try:
            self._read(timeout_s=0)
        except ValueError as error:
            self._fault = error

    def _kept(self, *, whole: bool = True) -> Kept | None:
        """Return the state of the last checkpoint, with its epoch: that of a script that prints its metrics is the one
        after the reports that were read before the checkpoint was there. whole: else without the content."""
        mark = self._mark()
        if whole or self._last_read is None or self._last_read[0] != mark:
            state = Kept.load(self._checkpoints)
            while mark != (mark := self._mark()):  # another one has come meanwhile
                state = Kept.load(self._checkpoints)
            self._last_read = mark, state and replace(state, state=b"")
        else:
            state = self._last_read[1]
        if state is None or state.epoch:
            return state
        epoch = self._first + sum(each != mark for each in self._marks)
        if self._is_behind:  # as if each epoch had one checkpoint
            epoch = min(max(epoch, state.number), self._first + len(self._marks))
        return replace(state, epoch=epoch, number=epoch)

    def _mark(self) -> tuple[int, int]:
        """Return what tells the file of the last checkpoint from those before it; zeros without one."""
        with suppress(FileNotFoundError):
            status = (self._checkpoints / CHECKPOINT_FILE).stat()
            return status.st_ino, status.st_mtime_ns
        return 0, 0

    def has_saved(self, epoch: int) -> bool:
        """Return whether the state that `save` writes is of this epoch: a fast script may be past the last one
        reported."""
        state = self._kept(whole=False)
        return state is not None and state.is_of(epoch, self.epochs)

    def load(self, folder: Path) -> None:
        """Take in a saved state: the script starts again at its beginning, finds its files, and gets the state by
        `raygpu.load()`. Without a state it begins anew and without them: no one knows which epoch they are of. They
        are kept beside its new ones."""
        state = Kept.load(folder)
        if state is None:
            if self._own is None:
                self.notes = [f"begins at epoch 1, and may find files of its own in {self.source}: {NO_STATE}"]
            elif self._own.has_files:
                self.notes = [f"begins anew; the files that it wrote are in {BEFORE} of its folder: {NO_STATE}"]
            return
        self._goes_on = True
        self.epoch, self._first = state.epoch, state.epoch + 1
        state.dump(self._checkpoints)
        if (file := folder / UNREAD_FILE).is_file():
            unread = json.loads(file.read_text())
            self.epoch, self._earlier = unread["epoch"], deque(unread["reports"])

    def close(self) -> None:
        """End the script and its processes: SIGTERM, and SIGKILL for those left after `supervisor.GRACE_S` seconds."""
        process, self._process = self._process, None
        try:
            if process is not None:
                self._end(process)
        finally:
            self._selector.close()
            self._output.close()
            try:
                if self._own is not None:
                    self._own.leave()
            finally:
                shutil.rmtree(self._scratch, ignore_errors=True)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """End the script's processes, and take in what they print until then."""
        if process.poll() is None:
            process.terminate()  # the supervisor, which tells each process once
            deadline = time.monotonic() + supervisor.GRACE_S + supervisor.LAST_WORDS_S
            while process.poll() is None and time.monotonic() < deadline:
                with suppress(ValueError, OSError):  # of no metric, of a full disk: the processes end all the same
                    self._read(timeout_s=0.05)  # a full pipe would hold up what the script does at its end
        _signal_group(process.pid, signal.SIGKILL)
        process.wait()
        self._drain()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
        os.close(self._reported)


def _environment(trial: Trial, settings: Settings) -> dict[str, str]:
    """Return the script's environment: threads by its share of the CPUs, unbuffered output, our own Python first."""
    return os.environ | {
        **thread_environment(settings.threads),
        "PYTHONUNBUFFERED": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "RAYGPU_TRIAL_ID": trial.trial_id,
        "RAYGPU_HYPERPARAMETERS": json.dumps(dict(trial.hyperparameters), default=str),
    }


def _signal_group(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, number)
