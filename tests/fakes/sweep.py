"""The context of a sweep whose trials a test reports itself."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from raygpu.records.timeline import Timeline
from raygpu.records.trial_records import Records


def sweep_context(records: Records, **changes: Any) -> Any:
    """A SweepContext without configuration, store, cluster and folder, but for the fields of `changes`."""
    values: dict[str, Any] = {
        "config": None,
        "sampler": None,
        "retry_failed": False,
        "records": records,
        "writer": None,
        "timeline": Timeline(None),
        "cluster": None,
        "folder": SimpleNamespace(path=Path(), tune=Path()),
        "say": print,
        "warn": print,
        "detail": None,
        "leave": print,
        "store_fault": lambda: None,
        "arrays_s": {},
        "needs": {},
    }
    return SimpleNamespace(**values | changes)
