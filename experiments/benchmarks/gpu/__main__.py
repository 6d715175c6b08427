"""Run the stages that have not ended yet, as far as the time goes.

    python -m experiments.benchmarks.gpu [--minutes 9.5] [--only tests,arrays] [--device cpu] [--out FOLDER]

FOLDER gets `stages.json` (what has ended, how), the output of each stage, and `records.tar.gz` with the records that
the stages wrote.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.benchmarks import record
from experiments.benchmarks.gpu.stages import STAGES, Stage

LEAST_S = 45.0
"""Seconds that have to be left for a stage to begin."""
END_S = 10.0
"""Seconds that an interrupted command gets to end by itself."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=9.5, help="of this call; 0 for no limit")
    parser.add_argument("--only", default=",".join(STAGES))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: to try the stages out")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu"))
    flags = parser.parse_args()
    if unknown := [name for name in flags.only.split(",") if name not in STAGES]:
        parser.error(f"--only: read {', '.join(unknown)}; there are: {', '.join(STAGES)}")
    flags.out.mkdir(parents=True, exist_ok=True)
    ends = time.monotonic() + 60 * flags.minutes if flags.minutes else float("inf")
    done = read(flags.out)
    for name in flags.only.split(","):
        if done.get(name, {}).get("ended"):
            continue
        if ends - time.monotonic() < LEAST_S:
            print(f"no time is left for: {name}")
            continue
        done[name] = run(STAGES[name], flags.out, ends, small=flags.device == "cpu")
        (flags.out / "stages.json").write_text(json.dumps(done, indent=2) + "\n")
        pack_records(flags.out)
        print(f"{name}: {done[name]['outcome']}, {done[name]['seconds']:.0f} s", flush=True)
    return int(any(stage["outcome"] not in ("passed", "not tried") for stage in done.values()))


def read(out: Path) -> dict[str, dict[str, Any]]:
    """Return what an earlier call has done."""
    path = out / "stages.json"
    found: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.is_file() else {}
    return found


def run(stage: Stage, out: Path, ends: float, *, small: bool) -> dict[str, Any]:
    """Run a stage's commands one after the other, each whether or not the one before it failed."""
    began = time.monotonic()
    limit = min(ends, began + 60 * stage.minutes)
    outcomes = []
    tried = out.resolve() / "records"
    with (out / f"{stage.name}.log").open("w") as log:
        for words in stage.small if small else stage.commands:
            filled = [word.format(out=out.resolve(), store=f"sqlite:///{out.resolve()}/mlflow.db") for word in words]
            log.write(f"$ python -m {' '.join(filled)}\n")
            log.flush()
            outcomes.append(command(filled, log, limit - time.monotonic(), tried if small else None))
            log.write(f"[{outcomes[-1]}]\n")
    bad = [outcome for outcome in outcomes if outcome != "passed"]
    return {
        "question": stage.question,
        "outcome": bad[0] if bad else "passed" if outcomes else "not tried",
        "outcomes": outcomes,
        "ended": "out of time" not in bad or limit < ends,  # one that its own limit ended would be ended again
        "seconds": round(time.monotonic() - began, 1),
        "tail": (out / f"{stage.name}.log").read_text()[-4000:],
    }


def command(words: Sequence[str], log: Any, within_s: float, tried: Path | None) -> str:
    """Run one command; return passed, out of time, or its exit code. tried: folder of the records of commands that are
    tried on a CPU; None on a GPU."""
    if within_s <= 0:
        return "out of time"
    own = {} if tried is None else {"TRY_ON_CPU": "1", record.FOLDER_VARIABLE: str(tried)}
    environment = os.environ | own
    process = subprocess.Popen(
        [sys.executable, "-m", *words], stdout=log, stderr=log, env=environment, start_new_session=True
    )
    try:
        code = process.wait(within_s)
    except subprocess.TimeoutExpired:
        for sign in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            os.killpg(process.pid, sign)
            try:
                process.wait(END_S)
                break
            except subprocess.TimeoutExpired:
                continue
        return "out of time"
    return "passed" if code == 0 else f"exit code {code}"


def pack_records(out: Path) -> None:
    """Write today's records into one file."""
    with tarfile.open(out / "records.tar.gz", "w:gz") as archive:
        for path in sorted(record.RECORDS.glob(f"{datetime.date.today().isoformat()}-*")):
            archive.add(path, path.name)


if __name__ == "__main__":
    sys.exit(main())
