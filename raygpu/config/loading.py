"""One configuration from a file and flags: the file comes first, flags override it, pydantic checks the result.

    config = load(Path("conf/sweep/digits.toml"), {"trials": "8", "gpu.fraction": "0.2"}, SweepConfig)

Every fault is one line: the key, what was read, and what is allowed.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from raygpu.config.command_names import typed
from raygpu.config.problem_schema import ProblemConfig
from raygpu.config.schemas import BalanceConfig, PackConfig, PlaceConfig, TrainConfig
from raygpu.config.sections import Section
from raygpu.config.sweep_schema import SweepConfig
from raygpu.errors import BadInput, redacted, suggestion

TABLES_OF_VALUES = ("space", "hyperparameters", "changes", "placements", "source", "script.metrics", "start")
"""Fields without flags of their own, since their keys are names that a person chooses."""
SLURM = "slurm"
"""The table that `raygpu submit` alone reads."""
MAX_BYTES = 2**20
"""Size of the largest configuration file."""
OWN_NAMES = "hyperparameters."
"""Prefix of flags whose names a person chooses all the same."""
PLAINLY = {
    "int_parsing": "a whole number is wanted",
    "int_type": "a whole number is wanted",
    "int_from_float": "a whole number is wanted",
    "bool_parsing": "true or false is wanted",
    "bool_type": "true or false is wanted",
    "string_type": "text is wanted",
    "string_pattern_mismatch": "letters, digits, '.', '_' and '-' are allowed, a letter or a digit as the first",
}
"""Messages in place of pydantic's, by its types of faults."""
WANTED = {
    bool: "true or false is wanted",
    int: "a number is wanted",
    float: "a number is wanted",
    list: "a list is wanted",
    dict: "a table is wanted",
}
"""Messages to text for a hyper-parameter whose value in the file has another type; bool is also an int."""
C = TypeVar("C", bound=ProblemConfig)
S = TypeVar("S", bound=Section)
SCHEMAS: tuple[type[ProblemConfig], ...] = (SweepConfig, PackConfig, TrainConfig, BalanceConfig, PlaceConfig)


def load(
    path: Path | None,
    overrides: Mapping[str, str],
    schema: type[C],
    given: Mapping[str, Any] | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> C:
    """Read a configuration file and apply flags by dotted name, `{"gpu.fraction": "0.2"}`.

    given: values below those of the file. Keys that only another command knows are left out: a sweep's file says what
    to train to every command. say: gets a line on what is left out and may be missed. Raises BadInput with a line for
    each fault: the key, the value read, the values allowed.
    """
    others = {name for other in SCHEMAS for name in other.model_fields} - set(schema.model_fields) | {SLURM}
    read = read_toml(path) if path is not None else {}
    path = path or Path("command line")
    if faults := [f"{path}: {key}: {why}" for key, why in schema.REFUSED.items() if key in read]:
        raise BadInput(faults)
    own = {key: value for key, value in read.items() if key not in others}
    values = _merged(given or {}, own)
    for key, text in overrides.items():
        *tables, leaf = key.split(".", 1) if key.startswith(OWN_NAMES) else key.split(".")
        table = values
        for name in tables:
            table = table.setdefault(name, {})
            if not isinstance(table, dict):
                raise BadInput(f"{path}: {name}: read {table!r}, but it is a table: [{name}]")
        if key.startswith(OWN_NAMES):
            table, leaf = own_place(table, leaf)
            table[leaf] = _own_value(key, text, table.get(leaf))
        else:
            table[leaf] = text
    kept = _with_own_directions(values, given or {}, own, overrides)
    configuration = validated(kept, schema, str(path), overrides)
    if (line := unread_line(path, read, schema)) is not None:
        say(line)
    for name in values.keys() - kept.keys():
        say(f"{path}: {name}: {values[name]} is left out, as it was given with another metric")
    return configuration


def unread_line(path: Path, values: Mapping[str, Any], schema: type[ProblemConfig]) -> str | None:
    """Return a line on the keys of a file's values that this command leaves out; None without any.

    A file with [space] may serve a sweep and a pack, one with [hyperparameters] a train, a balance and a place, so that
    their keys need no line.
    """
    alike = {SLURM}.union(*(other.model_fields for other in SCHEMAS if other.TABLE == schema.TABLE))
    keys = [f"[{key}]" if isinstance(value, dict) else key for key, value in values.items() if key not in alike]
    return f"{path}: {', '.join(keys)}: {typed(schema.COMMAND)} does not read this" if keys else None


def validated(values: Mapping[str, Any], schema: type[S], where: str, overrides: Mapping[str, str] | None = None) -> S:
    """Return the configuration of these values. where: their origin, for the line of each fault of the BadInput that is
    raised. overrides: the values that came from flags."""
    try:
        return schema.model_validate(values)
    except ValidationError as error:
        faults = [_fault(where, detail, overrides or {}, schema) for detail in _distinct(error.errors(), schema)]
        raise BadInput(faults) from error


def laid_over(given: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two sets of values key by key, tables too; `values` come first. A direction stays with its metric."""
    return _with_own_directions(_merged(given, values), given, values)


def _merged(given: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Merge two sets of values key by key, tables too; `values` come first."""
    merged_values = {key: dict(value) if isinstance(value, dict) else value for key, value in given.items()}
    for key, value in values.items():
        both = isinstance(value, dict) and isinstance(merged_values.get(key), dict)
        merged_values[key] = {**merged_values[key], **value} if both else value
    return merged_values


def _with_own_directions(values: Mapping[str, Any], *layers: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out directions that were given with other metrics than those of the values.

    layers: what the values were merged of, the lowest first. A direction whose layer names no metric is for any.
    """
    kept = dict(values)
    first, several = _first_metric(values), _words(values.get("metrics"))
    for name in ("direction", "directions"):
        layer: Mapping[str, Any] = next((each for each in reversed(layers) if name in each), {})
        is_same_first = _first_metric(layer) in (None, first)
        is_same_list = name == "direction" or "metrics" not in layer or _words(layer["metrics"]) == several
        if is_same_first and is_same_list:
            continue
        directions = _words(kept.pop(name, None))
        if is_same_first and isinstance(directions, list) and directions:
            kept.setdefault("direction", directions[0])
    return kept


def _first_metric(values: Mapping[str, Any]) -> Any:
    """Return the metric that scores a trial; None if none is named."""
    names = _words(values.get("metrics"))
    return values.get("metric") or (names[0] if isinstance(names, list) and names else None)


def _words(names: Any) -> Any:
    """Return names, also those by commas in a text, as a list; anything else unchanged."""
    if isinstance(names, str):
        return [word.strip() for word in names.split(",") if word.strip()]
    return list(names) if isinstance(names, tuple) else names


def literal(text: str) -> Any:
    """Parse a value as TOML writes it; return other text unchanged."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # no TOML, a number of thousands of digits, tables in tables in tables
        return text


def own_place(table: dict[str, Any], flag: str) -> tuple[dict[str, Any], str]:
    """Return the table that has the value of a flag whose name a person chooses, and its name there: a name with dots
    as it is, else a name in the table that the flag's first part names. A flag has _ where the name has -."""
    names = {str(name).replace("-", "_"): name for name in table} | {name: name for name in table}
    if flag not in names:
        for written, name in names.items():
            if isinstance(table[name], dict) and flag.startswith(f"{written}."):
                table[name] = dict(table[name])  # those of the values below stay as they are
                return own_place(table[name], flag.removeprefix(f"{written}."))
    return table, names.get(flag, flag)


def _own_value(key: str, text: str, below: Any) -> Any:
    """Return the value of a flag whose name a person chooses. below: the value that it replaces; None without one.

    Raises BadInput for text in place of another type. False is text to TOML, which has false, and any text is true.
    """
    value = literal(text)
    if value != text:  # TOML, of which quoted text is a part
        return value
    wanted = next((words for kind, words in WANTED.items() if isinstance(below, kind)), None)
    if wanted is None and not isinstance(below, str):
        wanted = _wanted_in_place_of(text)
    if wanted is None:
        return text
    flag, quoted = f"--{key.replace('_', '-')}", f"'\"{text}\"'"
    raise BadInput(f"{flag}: read {text!r}; {wanted}; text is given in quotes: {quoted}")


def _wanted_in_place_of(text: str) -> str | None:
    """Return a message to text that is no TOML and looks like a value of another type; None for other text."""
    if text.lower() in ("true", "false"):
        return WANTED[bool]
    if text.lower() in ("none", "null"):
        return "a value is wanted, or no flag"
    with suppress(ValueError):
        float(text)
        return WANTED[float]
    if text.startswith("{"):
        return WANTED[dict]
    return WANTED[list] if "," in text or text.startswith(("[", "(")) else None


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file as a dict. Raises BadInput."""
    try:
        if (size := path.stat().st_size) > MAX_BYTES:
            raise BadInput(f"{path}: read {size:,} bytes; a configuration has at most {MAX_BYTES:,}")
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))  # some editors begin a file with a mark
    except FileNotFoundError:
        raise BadInput(
            f"{path}: no such file; name a configuration file; {typed('init')} writes examples into this folder"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    except RecursionError as error:
        raise BadInput(f"{path}: tables and lists lie too deep in each other") from error
    except ValueError as error:
        raise BadInput(f"{path}: not valid TOML: {error}") from error


def fields(section: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield the dotted name of every field that is a flag, and what pydantic knows of it."""
    for name, info in section.model_fields.items():
        if isinstance(info.annotation, type) and issubclass(info.annotation, Section):
            yield from fields(info.annotation, f"{prefix}{name}.")
        elif prefix + name not in TABLES_OF_VALUES:
            yield prefix + name, info


def _distinct(details: list[ErrorDetails], schema: type[Section]) -> list[ErrorDetails]:
    """Return one detail for each key: a value that fits no member of a union is reported once, with all allowed
    types."""
    seen: dict[tuple[Any, ...], ErrorDetails] = {}
    for detail in details:
        keys = _keys(detail)
        item = [key for key in detail["loc"] if isinstance(key, int)]
        first = seen.setdefault((*keys[: _depth(keys, schema)], *item), detail)
        if first is not detail:
            first["msg"] += f" or {detail['msg'].removeprefix('Input should be ')}"
    return list(seen.values())


def _depth(keys: list[str], schema: type[Section]) -> int:
    """Return how many of a fault's keys are written by a person; pydantic's own name a member of a union."""
    if _in_table_of_values(keys):
        return 3
    return 2 if keys and keys[0] in _tables(schema) else 1


def _fault(path: str, detail: ErrorDetails, overrides: Mapping[str, str], schema: type[Section]) -> str:
    """Return one line: the place, the key, the value read and the values allowed."""
    keys = _keys(detail)
    key = ".".join(keys[: _depth(keys, schema)])
    where = f"--{key.replace('_', '-')}" if key in overrides else f"{path}: {key}" if key else path
    message = PLAINLY.get(detail["type"]) or detail["msg"].removeprefix("Value error, ")
    if detail["type"] == "extra_forbidden":
        names = [name for name, _ in fields(schema)] + ["space"]
        names += ["script.metrics"] if "script" in schema.model_fields else []
        command = schema.__name__.removesuffix("Config").lower()
        return f"{where}: unknown key{suggestion(key, names)}; the keys are listed by {typed(command)} --help"
    if not keys:
        return f"{path}: {message}"
    read = redacted(detail["input"]) if isinstance(detail["input"], str) else detail["input"]
    return f"{where}: read {read!r}; {message[0].lower()}{message[1:]}"


def _keys(detail: ErrorDetails) -> list[str]:
    """Return the place of a fault as keys; pydantic's mark of a key in a table of values is left out."""
    return [str(part) for part in detail["loc"] if part != "[key]"]


def _in_table_of_values(keys: list[str]) -> bool:
    """Return whether a fault is in a table whose keys a person chooses."""
    return ".".join(keys[:2]) in TABLES_OF_VALUES or ".".join(keys[:1]) in TABLES_OF_VALUES


def _tables(schema: type[Section]) -> set[str]:
    return {name.split(".")[0] for name, _ in fields(schema) if "." in name}
