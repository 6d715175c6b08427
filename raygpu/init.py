"""Write the experiments and configurations that come with raygpu into a folder, by default the current one.

python -m raygpu.init
python -m raygpu.init my-project
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from raygpu.cli.command import PlainCommand
from raygpu.cli.flags import Arguments, Flags
from raygpu.config.command_names import typed
from raygpu.errors import BadInput, RaygpuError, one_line

SHIPPED = Path(__file__).parent / "shipped"
"""The files in an installed raygpu, where the build has copied them; a checkout has them at its top."""
PATTERNS = ("experiments/*.py", "conf/pack/*.toml", "conf/place/*.toml", "conf/sweep/*.toml", "conf/train/*.toml")


def shipped_files() -> Mapping[Path, str]:
    """Return the shipped files by their relative paths, with their content."""
    home = SHIPPED if SHIPPED.is_dir() else SHIPPED.parents[1]
    paths = [path for pattern in PATTERNS for path in sorted(home.glob(pattern))]
    return {path.relative_to(home): path.read_text() for path in paths}


def run(folder: Path) -> list[Path]:
    """Write the shipped files into a folder, which is made if need be; return the paths of new ones.

    Raises BadInput with a line for each file that is there with another content; then nothing is written.
    """
    files = shipped_files()
    try:
        there = {path for path in files if (folder / path).exists()}
        other = sorted(path for path in there if (folder / path).read_text(errors="replace") != files[path])
        if other:
            advice = f"it is not overwritten; move it away, or name another folder: {typed('init')} FOLDER"
            raise BadInput([f"{folder / path} exists already, with another content; {advice}" for path in other])
        new = sorted(files.keys() - there)
        for path in new:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(files[path])
    except OSError as error:
        raise RaygpuError(f"{folder} cannot be written: {one_line(error)}") from error
    return new


def _main(arguments: Arguments) -> int:
    if len(arguments.words) > 1 or any(word.startswith("-") for word in arguments.words):
        raise BadInput(f"read {' '.join(arguments.words)!r}; one folder is allowed, and no flags")
    folder = Path(arguments.words[0]) if arguments.words else Path()
    new = run(folder)
    place = "here" if folder == Path() else f"in {folder}"
    print(f"{len(new)} files written {place}: experiments/ and conf/" if new else f"all files are {place} already")
    print(f"begin {place} with: {typed('sweep')} conf/sweep/digits.toml --trials 8")
    return 0


COMMAND = PlainCommand(
    "init", "[FOLDER]", __doc__, Flags({}, {}), _main, "interrupted; the files that were written are complete"
)
main = COMMAND.main


if __name__ == "__main__":
    sys.exit(main())
