"""Columns of hyper-parameters in the files of a sweep: their names, and their values in the space's own types."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from raygpu.config import SweepConfig, literal, load
from raygpu.errors import BadInput
from raygpu.records.run_directory import RunDirectory
from raygpu.search.space import Space, parse

OF_SET = ("set", "repeat", "fold")
"""Columns of a sweep whose sets of hyper-parameters are trained several times."""
LAST = "last."
"""Prefix of a hyper-parameter's last value, where a population has changed it."""
CHANGES = "changes"
"""Column of a population's trials: how often each took over another one's parameters."""
PREFIX = "space."
"""Prefix of a hyper-parameter whose name is that of another column of any sweep, or begins like one."""
BOOLEANS = {"True": True, "False": False}


def space_columns(names: Iterable[str], own: Collection[str]) -> list[str]:
    """Return the columns of hyper-parameters. own: the file's other columns."""
    return [f"{PREFIX}{name}" if _is_other(name, own) or name.startswith(PREFIX) else name for name in names]


def space_beside(file: Path) -> Space | None:
    """Return the space of the sweep in whose folder a file lies; None if the folder has no readable one."""
    try:
        config = load(RunDirectory(file.parent).config, {}, SweepConfig)
        return parse(config.space, config.search.algorithm)
    except BadInput:
        return None


def space_values(row: Mapping[str, str], own: Collection[str], space: Space | None) -> dict[str, Any]:
    """Return the hyper-parameters of a row; those that the trial does not have are left out.

    own: the file's other columns. space: the sweep's; without it, values have the types that their texts show, and an
    empty text counts as none.
    """
    texts = {name: text for name, text in row.items() if text != "" and not _is_other(name, own)}
    values = {name.removeprefix(PREFIX): BOOLEANS.get(text, literal(text)) for name, text in texts.items()}
    if space is not None:
        with suppress(BadInput):  # two listed values have the same text
            values |= space.from_texts(partial(text_of, row))
    return values


def text_of(row: Mapping[str, str], name: str) -> str | None:
    """Return the text of a hyper-parameter in a row; None if the file has no column for it."""
    return row.get(f"{PREFIX}{name}", row.get(name))


def _is_other(name: str, own: Collection[str]) -> bool:
    """Return whether a column of this name would not be a hyper-parameter's."""
    return name in own or name in (*OF_SET, CHANGES) or name.startswith(LAST)
