"""Write the report of a run again, one file for a browser; of several runs, a comparison.

python -m raygpu.report runs/digits
python -m raygpu.report runs/digits runs/digits-wide --out comparison.html
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from raygpu.cli.command import PlainCommand, run_folders
from raygpu.cli.flags import Arguments, Flags
from raygpu.errors import BadInput
from raygpu.records.run_data import RunData
from raygpu.records.run_directory import RunDirectory
from raygpu.workflow.run_report import write_comparison, write_report

OPTIONS = {"out": "File to write, in place of report.html in the run's folder, or of comparison.html here."}
COMPARISON = Path("comparison.html")


def run(folders: Sequence[RunDirectory], out: Path | None = None) -> Path:
    """Write the report of a run, or the comparison of several; return the file.

    out: another file than the usual one.

    Raises BadInput for a run that has noted no epoch yet, and for a file that cannot be written.
    """
    runs = [RunData.load(folder) for folder in folders]
    try:
        if len(runs) == 1:
            return write_report(runs[0], _warn, out)
        return write_comparison(runs, out or COMPARISON)
    except OSError as error:
        where = error.filename or out or (folders[0].report if len(runs) == 1 else COMPARISON)
        raise BadInput(f"{where}: cannot be written: {error.strerror}") from error


def _warn(line: str) -> None:
    print(f"raygpu: {line}", file=sys.stderr)


def _main(arguments: Arguments) -> int:
    folders = [RunDirectory.to_read(where, "report", _warn) for where in run_folders(arguments, "report")]
    out = arguments.options.get("out")
    print(run(folders, Path(out) if out is not None else None))
    return 0


COMMAND = PlainCommand(
    "report", "FOLDER ... [flags]", __doc__, Flags({}, OPTIONS), _main, "interrupted; nothing was written"
)
main = COMMAND.main


if __name__ == "__main__":
    sys.exit(main())
