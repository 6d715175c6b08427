"""The frame of every command: its flags and help, its exit code, and the output of faults and of its end."""

from __future__ import annotations

import atexit
import gc
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raygpu import config
from raygpu.cli.console import in_command, print_faults, shown_detail
from raygpu.cli.flags import Arguments, Flags, as_flag
from raygpu.cli.process_exit import watch_exit
from raygpu.config.code_folder import code_folder
from raygpu.config.command_names import as_typed, typed
from raygpu.errors import BadInput, RaygpuError
from raygpu.records import interrupts
from raygpu.records.begun_run import begun, interrupted_line
from raygpu.records.output import enduring_output, open_closed_streams, send_to_null
from raygpu.records.run_files import as_json

INCOMPLETE = 3
"""The exit code of a run whose results are complete here, while MLflow lacks some of them."""
JSON = "json"
"""The switch for output that programs read."""
QUIET, VERBOSE = "quiet", "verbose"
EVERYWHERE = {
    QUIET: "Print warnings, faults and the result alone.",
    VERBOSE: "Print details too: starts and ends of trials, where they run, their logs; each line with the time.",
}
"""Switches of every command; raygpu.cli.console obeys them."""
ELSEWHERE = ("cluster.", "tracking.")
"""Prefixes of the flags that choose where a resumed run goes on."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a command: its exit code and its JSON output."""

    exit_code: int
    output: Any = None
    """The output of `--json`; None for nothing."""


def run_folders(arguments: Arguments, command: str) -> list[str]:
    """Return the folders of runs that a command line names. Raises BadInput for other words, or none."""
    unknown = [word for word in arguments.words if word.startswith("-")]
    if unknown or not arguments.words:
        read = unknown[0] if unknown else "nothing"
        raise BadInput(f"read {read}; folders of runs are wanted, as in: {typed(command)} runs/digits")
    return arguments.words


def incomplete(summary: Mapping[str, Any]) -> bool:
    """Return whether a run's summary says that MLflow lacks part of the run."""
    tracking = summary.get("tracking", {})
    if tracking.get("spools"):  # on purpose
        return False
    return any(tracking.get(name) for name in ("undelivered", "fault", "refused", "lacks_model"))


def framed(run: Callable[[], int], interrupted: str) -> int:
    """Call `run` and return its exit code; 2 for bad input, 1 for another fault, 130 after Ctrl-C, each printed in
    lines."""
    open_closed_streams()
    token, detail, run_begun = in_command.set(True), shown_detail.set("normal"), begun.set(None)
    exit_without_collections()
    try:
        return run()
    except BadInput as error:
        if not error.shown:
            print_faults(error.faults)
        return 2
    except RaygpuError as error:
        print_faults([str(error)])
        return 1
    except KeyboardInterrupt as stop:
        print_faults([str(stop) or interrupted_line() or interrupted])
        return 130
    finally:
        watch_exit()
        in_command.reset(token)
        shown_detail.reset(detail)
        begun.reset(run_begun)


def exit_without_collections() -> None:
    """Let this interpreter's exit leave out garbage collections: over half a million objects of libraries they take one
    to two seconds, and the process' end frees their memory anyway."""
    atexit.unregister(gc.freeze)  # once, also for commands that one process runs one after the other
    atexit.register(gc.freeze)


def print_line(line: str) -> None:
    """Print a line at once, with --quiet too."""
    print(line, flush=True)


@contextmanager
def reader_may_leave() -> Iterator[None]:
    """End the block without an error once the reader of standard output, as `head`, has enough."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        send_to_null(sys.stdout.fileno())


@dataclass(frozen=True, slots=True)
class PlainCommand:
    """`python -m raygpu.<name> <usage>`, a command that reads no configuration."""

    name: str
    usage: str
    """Words after the name, for the help."""
    description: str | None
    flags: Flags
    run: Callable[[Arguments], int]
    """Runs a parsed command line; returns the exit code."""
    interrupted: str = "interrupted"
    """Line after a Ctrl-C without a message of its own."""
    allowed: str = ""
    """The flags of a command that takes no words, for the refusal of one."""

    def main(self, argv: Sequence[str] | None = None) -> int:
        """Run the command line; return the exit code: that of `run`, or of `framed`."""
        words = sys.argv[1:] if argv is None else list(argv)
        with reader_may_leave():
            return framed(lambda: self._run(words), self.interrupted)
        return 0

    def _run(self, words: Sequence[str]) -> int:
        arguments = self.flags.parse(words)
        if "help" not in arguments.switches:
            if self.allowed and arguments.words:
                raise BadInput(f"read {arguments.words[0]!r}; allowed: {self.allowed}")
            return self.run(arguments)
        print(self.flags.parser(f"{typed(self.name)} {self.usage}", as_typed(self.description or "")).format_help())
        return 0


@dataclass(frozen=True, slots=True)
class Command:
    """`python -m raygpu.<name> [CONFIG] [flags]`."""

    name: str
    description: str | None
    schema: type[config.ProblemConfig]
    default: Path
    """Configuration file to read if none is named."""
    switches: Mapping[str, str]
    """Flags of the command alone without a value, each with its help."""
    run: Callable[[Arguments], Outcome]
    """Runs a parsed command line."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Flags of the command alone with a value, each with its help."""
    resumable: Sequence[str] = ()
    """Fields of the configuration, and options, that a run may be resumed with, beside those of ELSEWHERE."""
    interrupted: str = "interrupted; nothing was kept"
    """Line after a Ctrl-C without a message of its own."""

    def main(self, argv: Sequence[str] | None = None) -> int:
        """Run the command line; return the exit code: that of `run`, or of `framed`."""
        words = sys.argv[1:] if argv is None else list(argv)
        with enduring_output():
            return framed(lambda: self._run(words), self.interrupted)

    def _run(self, argv: Sequence[str]) -> int:
        arguments = self.flags.parse(argv)
        if "help" in arguments.switches:
            self._print_help()
            return 0
        shown_detail.set(
            "quiet" if QUIET in arguments.switches else "verbose" if VERBOSE in arguments.switches else "normal"
        )
        with (
            interrupts.terminable(),
            interrupts.outlives_terminal(),
            interrupts.output_to_stderr(JSON in arguments.switches) as output,
        ):
            outcome = self.run(arguments)
            if JSON in arguments.switches and outcome.output is not None:
                print(json.dumps(as_json(outcome.output), allow_nan=False), file=output)
        return outcome.exit_code

    @property
    def flags(self) -> Flags:
        """All flags of the command."""
        return Flags({**self.switches, **EVERYWHERE}, self.options, self.schema)

    def _print_help(self) -> None:
        usage = f"{typed(self.name)} [CONFIG] [flags]"
        file = f"CONFIG is a TOML file, by default {self.default}; flags override it."
        file += "\n--no-FLAG is short for --FLAG false."
        with reader_may_leave():
            print(self.flags.parser(usage, f"{as_typed(self.description or '')}\n{file}").format_help())

    def read_resumed(self, arguments: Arguments) -> dict[str, str]:
        """Return the flags in which a run that goes on may differ from its start. Raises BadInput for anything else."""
        others = arguments.switches - {JSON, *EVERYWHERE} | ({arguments.file} if arguments.file else set())
        self.require_resumable({*arguments.overrides, *arguments.options, *others} - {"resume"})
        return arguments.overrides

    def require_resumable(self, names: Iterable[str]) -> None:
        """Raise BadInput if one of these names is none that a run may be resumed with."""
        if {name for name in names if not name.startswith(ELSEWHERE)}.difference(self.resumable):
            flags = ", ".join([*map(as_flag, self.resumable), *(f"--{prefix}*" for prefix in ELSEWHERE)])
            raise BadInput(f"--resume: takes the run's own configuration; give no file, and no flag but {flags}")

    def read(self, arguments: Arguments) -> tuple[Any, str, Path]:
        """Return the configuration with the flags applied, its file's stem, and the folder of its code; say which file
        it is if none is named. Raises BadInput."""
        path = Path(arguments.file) if arguments.file else self.default
        if arguments.file is None and path.exists() and QUIET not in arguments.switches:
            print(f"configuration: {path}, as no other file is named", flush=True)
        configuration = config.load(path, arguments.overrides, self.schema, say=print_line)
        folder = code_folder(configuration, path, arguments.overrides, print_line)
        return configuration, path.stem, folder
