"""Run a script's command, and end all of its processes on SIGTERM or when the parent process dies.

    python supervisor.py PARENT_PID COMMAND ARGUMENT ...

The kernel tells only a direct child that its parent died. A script is often a shell or a launcher whose children do the
work: they share this process's group, which it ends. Imports the standard library alone, to start at once.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time

GRACE_S = 10.0
LAST_WORDS_S = 0.5
PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main() -> int:
    """Run the command; return its exit status. A signal that ended the command ends this process too."""
    parent, *command = sys.argv[1:]
    signal.signal(signal.SIGTERM, lambda *_: _end_group())
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent):  # it died before the kernel was asked to tell
        return 1
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    status = subprocess.Popen(command).wait()
    told = signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
    if told and os.getppid() != int(parent):  # a parent that lives ends what the command left behind
        time.sleep(LAST_WORDS_S)
        os.killpg(0, signal.SIGKILL)
    if status < 0:
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status


def _end_group() -> None:
    """Send SIGTERM to the process group, and SIGKILL to the processes left after GRACE_S seconds."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it comes back from the group
    os.killpg(0, signal.SIGTERM)
    os.killpg(0, signal.SIGCONT)  # what was paused hears it only then
    signal.signal(signal.SIGALRM, lambda *_: os.killpg(0, signal.SIGKILL))
    signal.setitimer(signal.ITIMER_REAL, GRACE_S)


if __name__ == "__main__":
    sys.exit(main())
