"""JSON files of a run, and values that JSON can hold."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raygpu.errors import BadInput, one_line


def read_json(file: Path, advice: str) -> dict[str, Any] | None:
    """Return the object in a JSON file; None without a file. Raises BadInput if it is damaged."""
    try:
        return dict(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else None
    except (OSError, ValueError, TypeError) as error:
        raise BadInput(f"{file}: cannot be read ({one_line(error)}); {advice}") from error


def as_json(value: Any) -> Any:
    """Convert a summary to values that JSON can hold: a number that is not finite becomes null."""
    match value:
        case Mapping():
            return {name: as_json(each) for name, each in value.items()}
        case list() | tuple():
            return [as_json(each) for each in value]
        case float() if not math.isfinite(value):
            return None
    return value


def rounded(value: float | None, digits: int = 1) -> float | None:
    """Round a reading for a file that a person reads; None, and a number that is not finite, become None."""
    return None if value is None or not math.isfinite(value) else round(value, digits)
