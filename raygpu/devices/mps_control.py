"""NVIDIA's control program of CUDA MPS, `nvidia-cuda-mps-control`, spoken to through its standard input.

Facts: https://docs.nvidia.com/deploy/mps. A daemon is told from others by its pipe directory, where it leaves its pid.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

PROGRAM = "nvidia-cuda-mps-control"
# Where it lies without being on PATH: containers mount the driver's programs there.
USUAL_PLACES = "/usr/bin:/usr/local/nvidia/bin:/usr/local/bin"
ANSWER_S = 10.0
POLL_S = 0.05


def program() -> str | None:
    """Return the path of NVIDIA's control program, or None where the driver came without it."""
    return shutil.which(PROGRAM) or shutil.which(PROGRAM, path=USUAL_PLACES)


@dataclass(frozen=True, slots=True)
class Control:
    """Control of the MPS daemon of one folder, whether it runs or not."""

    folder: Path

    @property
    def pipe(self) -> Path:
        """Return the daemon's pipe directory, CUDA_MPS_PIPE_DIRECTORY."""
        return self.folder / "pipe"

    @property
    def log(self) -> Path:
        """Return the daemon's log directory, CUDA_MPS_LOG_DIRECTORY."""
        return self.folder / "log"

    def directories(self) -> dict[str, str]:
        """Return the environment variables that the daemon and its clients share."""
        return {"CUDA_MPS_PIPE_DIRECTORY": str(self.pipe), "CUDA_MPS_LOG_DIRECTORY": str(self.log)}

    def start(self, uuid: str, within_s: float) -> str | None:
        """Run `nvidia-cuda-mps-control -d` for a GPU. Return None, or why the daemon did not start."""
        executable = program()
        if executable is None:
            return f"{PROGRAM} is not installed"
        # Our own clients' limits, and those of an MPS around us, are none of the daemon's.
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_MPS_")}
        output_path = self.folder / "start.txt"
        # Not captured: the daemon would keep the pipes, and whoever reads them, open. A session of its own: Ctrl-C in a
        # terminal must reach the trainings before their server.
        with output_path.open("w") as output:
            try:
                done = subprocess.run(
                    [executable, "-d"],
                    env=inherited | self.directories() | {"CUDA_VISIBLE_DEVICES": uuid},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    timeout=within_s,
                    start_new_session=True,
                )
            except subprocess.TimeoutExpired:
                return f"{PROGRAM} -d did not come back within {within_s:g} s{self.last_words()}"
            except OSError as error:
                return f"{executable} cannot be run: {error.strerror}"
        if done.returncode:
            said = " ".join(output_path.read_text(errors="replace").split())
            return f"{PROGRAM} -d refused: {said or f'status {done.returncode}'}{self.last_words()}"
        return None

    def ask(self, command: str, within_s: float = ANSWER_S) -> str | None:
        """Send a command to the daemon and return its answer; None where no daemon answers in time."""
        executable = program()
        if executable is None or not self.pipe.is_dir():
            return None
        try:
            done = subprocess.run(
                [executable],
                env=os.environ | self.directories(),
                input=f"{command}\n",
                capture_output=True,
                text=True,
                errors="replace",
                timeout=within_s,
                start_new_session=True,
            )
        except (subprocess.TimeoutExpired, OSError):
            return None
        return None if done.returncode or "Cannot find MPS control daemon" in done.stdout else done.stdout.strip()

    def servers(self) -> list[int] | None:
        """Return the pids of the daemon's servers; None where no daemon answers.

        Empty before the first client or `start_server`.
        """
        answer = self.ask("get_server_list")
        return _pids(answer) if answer is not None else None

    def clients(self) -> list[int]:
        """Return the pids of the processes that compute through the daemon's servers, sorted."""
        answers = (self.ask(f"get_client_list {server}") for server in self.servers() or ())
        return sorted({pid for answer in answers for pid in _pids(answer or "")})

    def daemon(self) -> int | None:
        """Return the pid in the daemon's pid file, if that process is still the daemon; None otherwise."""
        try:
            pid = int((self.pipe / f"{PROGRAM}.pid").read_text())
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (OSError, ValueError):
            return None
        return pid if PROGRAM.encode() in words else None

    def quit(self, within_s: float) -> str | None:
        """End the daemon by its own command, or by SIGTERM if it does not end. Return None, or a line if it still runs.

        within_s: seconds for each of the two. Clients and servers get no signal: a client that dies by one can end its
        neighbours too.
        """
        daemon = self.daemon()
        if daemon is None:
            return None
        self.ask("quit", within_s)
        if not until(lambda: self.daemon() != daemon, within_s):
            try:
                os.kill(daemon, signal.SIGTERM)
            except OSError:
                pass
            if not until(lambda: self.daemon() != daemon, within_s):
                return f"the MPS daemon with pid {daemon} does not end"
        return None

    def last_words(self) -> str:
        """Return the last lines of the daemon's and its servers' logs as "; its log: ..."; empty without logs."""
        logs = (self.log / name for name in ("control.log", "server.log"))
        lines = [log.read_text(errors="replace").strip().rpartition("\n")[2] for log in logs if log.is_file()]
        said = " | ".join(line for line in lines if line)
        return f"; its log: {said}" if said else ""


def until(happened: Callable[[], bool], within_s: float) -> bool:
    """Wait at most `within_s` seconds for a condition; return whether it became true."""
    deadline = time.monotonic() + within_s
    while not happened():
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_S)
    return True


def _pids(answer: str) -> list[int]:
    return [int(word) for word in answer.split() if word.isdigit()]
