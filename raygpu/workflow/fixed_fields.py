"""The fields of a run's configuration that stay as they were at its start: noted there, compared before a resume."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from raygpu.config import ProblemConfig
from raygpu.records.run_directory import KINDS, RunDirectory

BEGUN = "begun"
"""Key, in the run's state, of the fixed fields at the start."""


def fixed_fields(config: ProblemConfig, names: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of some fields. names: as pydantic's `include` takes them."""
    fields: dict[str, Any] = json.loads(json.dumps(config.model_dump(mode="json", include=dict(names))))
    if fields["experiment"] is not None:
        fields["experiment"] = fields["experiment"].rpartition("/")[2]  # its folder may have been moved
    return fields


def changed_lines(
    folder: RunDirectory, before: Mapping[str, Any], now: Mapping[str, Any], tables: tuple[str, ...] = ()
) -> list[str]:
    """Return a line for each field that differs from the start of a run.

    tables: beginnings of the names that a user chooses, as `space.`: a new one is a change; other new names are those
    of fields that a later version has.
    """
    earlier, later = dict(_flat(before, tables)), dict(_flat(now, tables))
    return [
        f"resume: {folder.config}: {name}: read {_said(later.get(name))}; the {KINDS[folder.kind]} began with"
        f" {_said(earlier.get(name))}; set it back, or begin a new {KINDS[folder.kind]}"
        for name in earlier | {name: None for name in later if name.startswith(tables)}
        if json.dumps(earlier.get(name)) != json.dumps(later.get(name))
    ]


def _flat(values: Mapping[str, Any], tables: tuple[str, ...], above: str = "") -> list[tuple[str, Any]]:
    """Return the fields of all sections by their names, as `stopping.patience`."""
    fields = []
    for name, value in values.items():
        is_table = isinstance(value, dict) and (value or f"{above}{name}." in tables)
        fields += _flat(value, tables, f"{above}{name}.") if is_table else [(above + name, value)]
    return fields


def _said(value: Any) -> str:
    return "nothing" if value is None else json.dumps(value)
