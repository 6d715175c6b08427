"""Run a script's command, and end all of its processes on SIGTERM or when the parent process dies.

    python supervisor.py PARENT_PID COMMAND ARGUMENT ...

The kernel tells only a direct child that its parent died. A script is often a shell or a launcher whose children do the
work, some of them in sessions of their own: all are this process's descendants, and a child whose parent ends becomes
its own. Imports the standard library alone, to start at once.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

GRACE_S = 10.0
LAST_WORDS_S = 0.5
POLL_S = 0.02
PR_SET_PDEATHSIG = 1  # linux/prctl.h
PR_SET_CHILD_SUBREAPER = 36


def main() -> int:
    """Run the command; return its exit status. A signal that ended the command ends this process too."""
    parent, *command = sys.argv[1:]
    signal.signal(signal.SIGTERM, lambda *_: _end_all())
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent):  # it died before the kernel was asked to tell
        return 1
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        status = subprocess.Popen(command).wait()
    except OSError as error:  # a folder, or a script without a first line that names its program
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        return 126  # a shell's status of a command that cannot be executed
    if signal.getsignal(signal.SIGTERM) == signal.SIG_IGN:  # what was told to end has its last words
        deadline = time.monotonic() + LAST_WORDS_S
        while _descendants() and time.monotonic() < deadline:
            time.sleep(POLL_S)
    _kill_descendants()
    if status < 0:
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


def _end_all() -> None:
    """Send SIGTERM to all descendants, and SIGKILL to those left after GRACE_S seconds."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for pid in _descendants():
        _signal(pid, signal.SIGTERM)
        _signal(pid, signal.SIGCONT)  # what was paused hears it only then
    signal.signal(signal.SIGALRM, lambda *_: _kill_descendants())
    signal.setitimer(signal.ITIMER_REAL, GRACE_S)


def _kill_descendants() -> None:
    deadline = time.monotonic() + GRACE_S
    while (pids := _descendants()) and time.monotonic() < deadline:  # again: one of them may just have forked
        for pid in pids:
            _signal(pid, signal.SIGKILL)
        time.sleep(POLL_S)


def _descendants() -> list[int]:
    """Return the pids of all processes below this one that have not ended."""
    children: dict[int, list[int]] = {}
    ended = set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as file:
                state, parent = file.read().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        children.setdefault(int(parent), []).append(int(name))
        if state in "ZX":
            ended.add(int(name))
    pids = [os.getpid()]
    for pid in pids:
        pids += children.get(pid, [])
    return [pid for pid in pids[1:] if pid not in ended]


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


if __name__ == "__main__":
    sys.exit(main())
