"""Check this machine for raygpu: GPUs and driver, libraries, folders, limits, open ports, the tracking store.

python -m raygpu.doctor
python -m raygpu.doctor --json
python -m raygpu.doctor --tracking.uri https://mlflow.example.org

A line for each check: ok, warning or failure, what was found, and what to do. The exit code is 1 if there is a failure.
Nothing is changed, and neither Ray nor a training is started.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from raygpu.cli.command import PlainCommand
from raygpu.cli.flags import Arguments, Flags
from raygpu.config.sections import TrackingSection
from raygpu.workflow.diagnosis import Check, library_checks, tracking_store
from raygpu.workflow.machine_checks import machine_checks

SWITCHES = {"json": "Print the checks as JSON."}
OPTIONS = {"tracking.uri": "The store of MLflow's runs. Default: MLFLOW_TRACKING_URI, or the file of a sweep here."}


def run(uri: str | None = None, folder: Path | None = None) -> Iterator[Check]:
    """Yield the checks one after the other. uri: tracking store. folder: of the runs; by default `runs`, here."""
    yield from library_checks()
    yield from machine_checks(folder or Path("runs"))
    section = TrackingSection() if uri is None else TrackingSection(uri=uri)
    yield tracking_store(section.found().uri)


def _main(arguments: Arguments) -> int:
    checks = []
    for check in run(arguments.options.get("tracking.uri")):
        checks.append(check)
        if "json" not in arguments.switches:
            print(f"{check.state:<7}  {check.name}: {check.finding}", flush=True)
            if check.mend is not None:
                print(f"         {check.mend}", flush=True)
    if "json" in arguments.switches:
        print(json.dumps([asdict(check) for check in checks]))
    return int(any(check.state == "failure" for check in checks))


COMMAND = PlainCommand(
    "doctor", "[flags]", __doc__, Flags(SWITCHES, OPTIONS), _main, allowed="--json, --tracking.uri URI"
)
main = COMMAND.main


if __name__ == "__main__":
    sys.exit(main())
