"""`nvidia-cuda-mps-control` without a GPU: an executable for PATH that keeps its state in the pipe directory.

Its daemon is a real process that only a `quit` or a signal ends. FAKE_MPS in the environment tells it to misbehave:
refuse, hang, silent (a daemon that leaves no pid), no-server, deaf (it does not hear `quit`), undying (nor SIGTERM).
Clients are whatever pids a test writes, one a line, to `clients` in the pipe directory.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

NAME = "nvidia-cuda-mps-control"
LIFE_S = 120.0
"""No daemon outlives a test's process by much."""


def install(folder: Path) -> Path:
    """Write the executable; to be put on PATH."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / NAME
    path.write_text(f"#!{sys.executable} -SE\n{Path(__file__).read_text()}")
    path.chmod(0o755)
    return path


def main() -> int:
    misbehaviour = os.environ.get("FAKE_MPS", "")
    pipe, log = Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"]), Path(os.environ["CUDA_MPS_LOG_DIRECTORY"])
    if sys.argv[1:] == ["-d"]:
        return start(pipe, log, misbehaviour)
    if not (pipe / f"{NAME}.pid").exists():
        print("Cannot find MPS control daemon process")
        return 1
    for line in sys.stdin:
        answer(line.split(), pipe, log, misbehaviour)
    return 0


def start(pipe: Path, log: Path, misbehaviour: str) -> int:
    if misbehaviour == "refuse":
        print("Insufficient permission to start the daemon", file=sys.stderr)
        return 1
    if misbehaviour == "hang":
        time.sleep(LIFE_S)
    (log / "control.log").write_text(f"[control] Starting on {os.environ['CUDA_VISIBLE_DEVICES']}\n")
    (pipe / "environ").write_text("\n".join(f"{name}={value}" for name, value in os.environ.items()))
    if misbehaviour != "silent" and os.fork() == 0:
        os.setsid()
        serve(pipe, misbehaviour)
        os._exit(0)
    return 0


def serve(pipe: Path, misbehaviour: str) -> None:
    if misbehaviour == "undying":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    pid = pipe / f"{NAME}.pid"
    pid.write_text(f"{os.getpid()}\n")
    until = time.monotonic() + LIFE_S
    while time.monotonic() < until and pipe.is_dir() and not (pipe / "quit").exists():
        time.sleep(0.01)
    pid.unlink(missing_ok=True)


def answer(words: list[str], pipe: Path, log: Path, misbehaviour: str) -> None:
    servers, clients = pipe / "servers", pipe / "clients"
    match words:
        case ["quit"] if misbehaviour not in ("deaf", "undying"):
            (pipe / "quit").touch()
        case ["start_server", "-uid", uid] if uid == str(os.getuid()):
            if misbehaviour == "no-server":
                (log / "server.log").write_text("[server] Startup\n[server] Failed to start: not permitted\n")
            else:
                servers.write_text("4711\n")
        case ["get_server_list"]:
            print(servers.read_text() if servers.exists() else "", end="")
        case ["get_client_list", "4711"]:
            print(clients.read_text() if clients.exists() else "", end="")
        case ["ps"]:
            print("PID   ID   SERVER   DEVICE   NAMESPACE   COMMAND")


if __name__ == "__main__":
    sys.exit(main())
