"""Fields of a configuration, given in Python, as the texts of a command's flags by dotted name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tomli_w

from raygpu.config.loading import OWN_NAMES, own_place
from raygpu.config.written_values import as_written
from raygpu.errors import BadInput

TABLE = OWN_NAMES.removesuffix(".")
"""Field whose names a person chooses; its flags are read as TOML."""
NONE = "None is no value of a flag; leave it out"


def flag_texts(fields: Mapping[str, Any], own_values: Mapping[str, Any] | None = None) -> dict[str, str]:
    """Return the texts of the flags that give these fields. Raises BadInput with a line for each that no flag gives.

    own_values: hyper-parameters of the configuration file; a flag finds one of them whose name has a -.
    """
    texts, faults = {}, []
    for name, value in _by_dotted_name(fields).items():
        try:
            key = name.removeprefix(OWN_NAMES)
            if name == key:
                texts[name] = _text(value)
            elif "=" in key or not _flag_finds(key, own_values or {}):
                raise ValueError("a flag reads - as _, and ends at a =; give this name in the file")
            else:
                texts[name] = toml_text(as_written(value))
        except ValueError as error:
            faults.append(f"{name}: {error}")
    if faults:
        raise BadInput(faults)
    return texts


def _flag_finds(name: str, own_values: Mapping[str, Any]) -> bool:
    """Return whether the flag of a hyper-parameter, which has _ for each -, gives the one of this name."""
    copied, mark = dict(own_values), object()
    table, leaf = own_place(copied, name.replace("-", "_"))
    table[leaf] = mark
    table, leaf = own_place(copied, name)
    return table.get(leaf) is mark


def toml_text(value: Any) -> str:
    """Return a value as TOML writes it in one line. Raises ValueError for None."""
    match value:
        case None:
            raise ValueError(NONE)
        case list():
            return f"[{', '.join(map(toml_text, value))}]"
        case dict():
            names = {name: tomli_w.dumps({name: 1}).removesuffix(" = 1\n") for name in value}
            return f"{{{', '.join(f'{names[name]} = {toml_text(each)}' for name, each in value.items())}}}"
    return tomli_w.dumps({"value": value}).removeprefix("value = ").strip()


def _by_dotted_name(fields: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the fields of sections by dotted name; a table that is a hyper-parameter's value is one field."""
    values: dict[str, Any] = {}
    for name, value in fields.items():
        is_section = isinstance(value, Mapping) and prefix != OWN_NAMES
        values |= _by_dotted_name(value, f"{prefix}{name}.") if is_section else {f"{prefix}{name}": value}
    return values


def _text(value: Any) -> str:
    """Return the value of a field with a flag of its own as text."""
    if value is None:
        raise ValueError(NONE)
    if isinstance(value, list | tuple):
        return ",".join(map(_text, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
