"""The command line of every command: argparse splits it and prints `--help`, the schema checks the values.

argparse by itself ends at the first fault. Here no flag requires its value, so that one look at the line finds every
missing value and every unknown flag, each reported in a line.
"""

from __future__ import annotations

import argparse
import re
import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import zip_longest
from typing import Union, get_args, get_origin

from pydantic.fields import FieldInfo

from raygpu import config
from raygpu.config.docstrings import meaning
from raygpu.config.sections import Section
from raygpu.errors import BadInput, suggestion

SHORT = {"quiet": "-q", "verbose": "-v"}
"""Flags that have a short form as well."""
_BOOLS = ("true", "false", "1", "0", "yes", "no", "on", "off")
_HYPERPARAMETER = re.compile(r"--hyperparameters\.[^=]+")
"""Flag whose name a person chooses."""
_NEGATIVE = re.compile(r"-[\d.i]")
"""Beginning of a negative number, with which no flag begins."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """A command line whose flags are known, and whose values are not checked yet."""

    words: list[str]
    """Words that belong to no flag."""
    overrides: dict[str, str]
    """Values of the schema's fields by dotted name."""
    switches: set[str]
    options: dict[str, str]

    @property
    def file(self) -> str | None:
        """The configuration file; None if none is named."""
        return self.words[0] if self.words else None

    def argv(self, overrides: dict[str, str]) -> list[str]:
        """Return the flags as a command line again, with these values of fields and without the file."""
        words = [*map(as_flag, sorted(self.switches))]
        for name, value in (self.options | overrides).items():
            words += [f"{as_flag(name)}={value}"] if value.startswith("-") else [as_flag(name), value]
        return words


@dataclass(frozen=True, slots=True)
class Flags:
    """The flags of a command: the fields of its schema, switches and options of its own."""

    switches: Mapping[str, str]
    """Flags without a value, each with its help."""
    options: Mapping[str, str]
    """Flags with a value, each with its help."""
    schema: type[Section] | None = None
    """None for a command that passes the words it does not know on to another one."""

    def parse(self, argv: Sequence[str]) -> Arguments:
        """Sort a command line. Raises BadInput with a line for each fault."""
        fields, parser = self._fields(), self.parser(meanings=False)
        words = _normalized(argv, [as_flag(name) for name, field in fields.items() if field.annotation is bool])
        if self.schema is not None and "hyperparameters" in self.schema.model_fields:
            for flag in sorted({match[0] for word in words if (match := _HYPERPARAMETER.match(word))}):
                parser.add_argument(flag, dest=flag[2:].replace("-", "_"), nargs="?")
        try:
            namespace, rest = parser.parse_known_args(words)
        except argparse.ArgumentError as error:
            raise BadInput(f"{error.argument_name}: takes no value") from error
        values = vars(namespace)
        wanted = {name: f"{expected(field.annotation)} is wanted" for name, field in fields.items()} | {**self.options}
        missing = [name for name, value in values.items() if value is None]
        faults = [f"{as_flag(name)}: no value given; {wanted.get(name, 'a value is wanted')}" for name in missing]
        if self.schema is not None:
            faults += _unknown(rest, [*fields, *self.switches, *self.options])
        if faults:
            raise BadInput(faults)
        switches = {name for name in ("help", *self.switches) if values.pop(name, False)}
        if switches >= SHORT.keys():
            raise BadInput("-q, -v: one prints less, the other more; give one of them")
        options = {name: values.pop(name) for name in self.options if name in values}
        return Arguments(rest, values, switches, options)

    def parser(
        self, usage: str = "", description: str = "", epilog: str = "", *, meanings: bool = True
    ) -> argparse.ArgumentParser:
        """Return argparse's parser of these flags, which prints the help too. meanings: whether with those of fields,
        which are read from their sources."""
        parser = argparse.ArgumentParser(
            usage=usage, description=description, epilog=epilog, formatter_class=argparse.RawDescriptionHelpFormatter,
            add_help=False, allow_abbrev=False, exit_on_error=False, argument_default=argparse.SUPPRESS,
        )  # fmt: skip
        command_flags = parser.add_argument_group("flags of this command")
        command_flags.add_argument("-h", "--help", dest="help", action="store_true", help="Print this help.")
        for name, text in self.switches.items():
            forms = [SHORT[name]] if name in SHORT else []
            command_flags.add_argument(*forms, f"--{name}", dest=name, action="store_true", help=text)
        for name, text in self.options.items():
            command_flags.add_argument(f"--{name}", dest=name, nargs="?", metavar="text", help=text)
        keys = parser.add_argument_group("flags for the keys of the file, each with [its values]")
        for name, field in self._fields().items():
            default = f" (default: {field.default})" if field.default is not None else ""
            means = meaning(self.schema, name) if meanings and self.schema is not None else ""
            text = f"{means}{default}".replace("%", "%%")
            keys.add_argument(as_flag(name), dest=name, nargs="?", metavar=expected(field.annotation), help=text)
            if field.annotation is bool:
                table, dot, leaf = as_flag(name)[2:].rpartition(".")
                off = (f"--no-{table}{dot}{leaf}", f"--{table}{dot}no-{leaf}")
                keys.add_argument(*off, dest=name, action="store_const", const="false", help=argparse.SUPPRESS)
        return parser

    def _fields(self) -> dict[str, FieldInfo]:
        return dict(config.fields(self.schema)) if self.schema is not None else {}


def as_flag(name: str) -> str:
    """Return the flag of a field, by its dotted name."""
    return f"--{name.replace('_', '-')}"


def number(flag: str, text: str, fits: Callable[[float], bool], allowed: str) -> float:
    """Return a flag's value as a number. allowed: values that fit, in words. Raises BadInput for others."""
    with suppress(ValueError):
        if fits(value := float(text)):
            return value
    raise BadInput(f"--{flag}: read {text!r}; allowed: {allowed}")


def whole_number(flag: str, text: str, most: int, allowed: str) -> int:
    """Return a flag's value as a number from 1 to `most`. allowed: these, in words. Raises BadInput for others."""
    if not text.isdecimal() or not 1 <= float(text) <= most:
        raise BadInput(f"--{flag}: read {text!r}; allowed: {allowed}")
    return int(text)


def _normalized(argv: Sequence[str], bools: Sequence[str]) -> list[str]:
    """Return the words as argparse understands them: dashes in names, `=true` at a bare bool, `=` before a negative
    number."""
    words: list[str] = []
    for word, following in zip_longest(argv, argv[1:], fillvalue=""):
        name, equals, value = word.partition("=")
        if name.startswith("--"):
            bare = as_flag(name[2:]) in bools and not equals and following.lower() not in _BOOLS
            words.append(as_flag(name[2:]) + ("=true" if bare else equals + value))
        elif _NEGATIVE.match(word) and words and words[-1].startswith("--") and "=" not in words[-1]:
            words[-1] += f"={word}"
        else:
            words.append(word)
    return words


def _unknown(words: Sequence[str], known: Sequence[str]) -> list[str]:
    """Return a line for each word that is neither a known flag nor the one file."""
    flags = [word.partition("=")[0] for word in words if word.startswith("-")]
    files = [word for word in words if not word.startswith("-") and (not flags or word.endswith(".toml"))]
    faults = [f"read a second file {file!r}; one configuration is wanted" for file in files[1:]]
    if "" in words:
        faults.append("read an empty word in the place of a configuration file (a variable that is not set?); name one")
    for flag in flags:
        if not flag.startswith("--"):
            faults.append(f"read {flag!r}; flags begin with two dashes and are listed by --help")
        elif flag.partition(".")[0] == "--space":
            faults.append(f"{flag}: the search space has no flags; write it in the file's [space]")
        else:
            hint = suggestion(flag[2:], [as_flag(name)[2:] for name in known])
            faults.append(f"{flag}: unknown flag{hint}; the flags are listed by --help")
    return faults


def expected(annotation: object) -> str:
    """Return a field's annotation in words."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return " or ".join(expected(argument) for argument in arguments if argument is not type(None))
    if origin is tuple:
        return "words by commas"
    if hasattr(annotation, "__metadata__"):
        return expected(arguments[0])
    if arguments:
        return ", ".join(map(str, arguments))
    return {int: "a whole number", float: "a number", bool: "true or false"}.get(annotation, "text")  # type: ignore[call-overload]
