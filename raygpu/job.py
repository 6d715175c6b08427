"""The driver of a submitted job: runs the command, flags, configuration and environment that came along with it.

python -m raygpu.job                                              (by python -m raygpu.submit alone)
python -m raygpu.job --slurm FOLDER --max-restarts N -- COMMAND   (by the batch script of a Slurm job)
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any


def _come_along() -> tuple[Path, dict[str, Any]]:
    """Return the folder of the package that was submitted with the job, and the content of its job file."""
    from raygpu.engines.cluster.jobs import JOB_FILE, PACKAGE

    package = importlib.import_module(PACKAGE)
    folder = Path(str(package.__file__)).parent
    file = folder / JOB_FILE
    with contextlib.suppress(OSError):  # another user's, where containers differ in theirs
        file.chmod(0o600)
    return folder, dict(json.loads(file.read_text()))


def set_environment() -> None:
    """Set the job's environment variables. Ray calls this at the start of each of the job's workers."""
    os.environ.update(_come_along()[1]["environment"])


def main() -> int:
    """Run the submitted command; return its exit code."""
    if sys.argv[1:2] == ["--slurm"]:
        return _of_slurm(sys.argv[2:])
    # Ray starts its processes with SIGINT blocked, and so what they start: `stop` has to be heard.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    folder, job = _come_along()
    set_environment()
    try:
        command = importlib.import_module(f"raygpu.{job['command']}")
    except ModuleNotFoundError as error:
        print(
            f"raygpu: the nodes' Python ({sys.executable}) has no {error.name!r}, which raygpu needs; put raygpu's"
            " dependencies into their image, or name them by submit --requirements FILE",
            file=sys.stderr,
        )
        return 2
    config = [str(folder / job["config"])] if job["config"] is not None else []
    return int(command.main([*config, *job["argv"]]))


def _of_slurm(words: list[str]) -> int:
    # Until the driver takes them: what it imports takes seconds.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGTERM, signal.SIGINT})
    from raygpu.cli.command import framed
    from raygpu.workflow.slurm_run import Driver

    folder, _, most, _, command, *rest = words  # as raygpu.engines.slurm.batch_script writes them
    return framed(lambda: Driver(Path(folder), command, rest, int(most)).run(), "interrupted")


if __name__ == "__main__":
    from raygpu.cli.process_exit import run_and_exit

    run_and_exit(main)
