"""The command line of every command: a configuration file first, then its fields as flags.

Faults of flags are one line each, like those of files, which tyro's and argparse's own messages are not: so flags are
read here and checked by the schema, and tyro renders `--help`.
"""

from __future__ import annotations

import re
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Union, get_args, get_origin

from raygpu import config
from raygpu.errors import BadInput


@dataclass(slots=True)
class Arguments:
    """A command line, split but not yet checked."""

    file: str | None = None
    overrides: dict[str, str] = field(default_factory=dict)
    """Values of fields by dotted name."""
    switches: set[str] = field(default_factory=set)
    options: dict[str, str] = field(default_factory=dict)


def split(
    argv: Sequence[str], schema: type[config.ProblemConfig], *, switches: Sequence[str], options: Sequence[str]
) -> Arguments:
    """Sort a command line into the file, fields and the command's own switches and options.

    `--gpu.fraction 0.2`, `--gpu.fraction=0.2`; a bool field also as `--tracking.enabled`, `--tracking.no-enabled`
    and `--no-tracking.enabled`.
    Raises BadInput with a line for each fault.
    """
    annotations = dict(config.fields(schema))
    known = [*annotations, *(name.replace("-", "_") for name in (*switches, *options))]
    arguments = Arguments()
    faults: list[str] = []
    words = list(argv)
    while words:
        word = words.pop(0)
        if not word.startswith("--"):
            if word == "-h":
                arguments.switches.add("help")
            elif word.startswith("-") and len(word) > 1:
                _drop_value(words)
                faults.append(f"read {word!r}; flags begin with two dashes and are listed by --help")
            elif arguments.file is not None:
                faults.append(f"read a second file {word!r}; one configuration is wanted")
            else:
                arguments.file = word
            continue
        name, has_value, value = word[2:].partition("=")
        key = name.replace("-", "_")
        negated = _NO.sub("", key)
        if name == "help" or (name in switches and not has_value):
            arguments.switches.add(name)
        elif key != negated and annotations.get(negated) is bool and not has_value:
            arguments.overrides[negated] = "false"
        elif key in annotations or name in options or _is_own_name(key, schema):
            bare = annotations.get(key) is bool and (not words or words[0].lower() not in _BOOLS)
            if not has_value and bare:
                value = "true"
            elif not has_value:
                if not words or words[0].startswith("--"):
                    faults.append(f"--{name}: no value given; {expected(annotations.get(key, str))} is wanted")
                    continue
                value = words.pop(0)
            if name in options:
                arguments.options[name] = value
            else:
                arguments.overrides[key] = value
        elif key == "space" or key.startswith("space."):
            _drop_value(words)
            faults.append(f"--{name}: the search space has no flags; write it in the file's [space]")
        else:
            _drop_value(words)
            hint = config.suggestion(key, known).replace("_", "-")
            faults.append(f"--{name}: unknown flag{hint}; the flags are listed by --help")
    if faults:
        raise BadInput(faults)
    return arguments


def _is_own_name(key: str, schema: type[config.ProblemConfig]) -> bool:
    """Return whether a flag's name is chosen by a person, as in `hyperparameters.lr`."""
    table, _, name = key.partition(".")
    return table + "." == config.OWN_NAMES and table in schema.model_fields and bool(name)


def _drop_value(words: list[str]) -> None:
    """Skip the value of an unknown flag, so that it is no second fault."""
    if words and not words[0].startswith("-") and not words[0].endswith(".toml"):
        words.pop(0)


_NO = re.compile(r"^no_|(?<=\.)no_(?=[^.]+$)")
"""Prefix that turns a bool field off, before the whole name or before its last part."""
_BOOLS = ("true", "false", "1", "0", "yes", "no", "on", "off")


def expected(annotation: object) -> str:
    """Return a field's annotation in words."""
    origin = get_origin(annotation)
    arguments = get_args(annotation)
    if origin in (Union, types.UnionType):
        return " or ".join(expected(a) for a in arguments if a is not type(None))
    if origin is not None and hasattr(annotation, "__metadata__"):
        return expected(arguments[0])
    if arguments:
        return ", ".join(map(str, arguments))
    return {int: "a whole number", float: "a number", bool: "true or false"}.get(annotation, "text")  # type: ignore[call-overload]


def source_folder(experiment: str | None, file: Path) -> Path:
    """Return the folder at which an experiment's relative paths start: the working directory, or the configuration's
    own folder if the experiment's file or module is there and not here."""
    beside = file.resolve().parent
    if experiment is None:
        return Path.cwd()
    module = experiment.rpartition(":")[0]
    parts = [module] if module.endswith(".py") else [f"{module.split('.')[0]}.py", module.split(".")[0]]
    here = any((Path.cwd() / part).exists() for part in parts)
    return beside if not here and any((beside / part).exists() for part in parts) else Path.cwd()


def print_help(
    program: str,
    description: str,
    schema: type[config.ProblemConfig],
    default: Path,
    switches: Mapping[str, str],
    options: Mapping[str, str],
) -> None:
    """Print the flags of every field with its type, default and meaning, drawn by tyro from the schema."""
    import tyro

    own = [f"  --{name:<12} {text}" for name, text in (*switches.items(), *options.items())]
    usage = f"usage: {program} [CONFIG] [flags]\n\nCONFIG is a TOML file, by default {default}; flags override it."
    print(f"{description.strip()}\n\n{usage}\n\n" + "\n".join(own) + "\n")
    tyro.cli(schema, prog=program, description="", args=["--help"], config=(tyro.conf.AvoidSubcommands,))
