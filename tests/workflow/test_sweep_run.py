"""A sweep under way: what it tells MLflow of its trials at its end."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from raygpu.records.run_directory import RunDirectory
from raygpu.workflow.sweep_run import SweepUnderWay


def test_a_trial_that_has_left_the_front_is_not_called_one_of_it(tmp_path: Path) -> None:
    folder = RunDirectory.create(tmp_path, "sweep")
    tags: dict[str, Any] = {}
    front = [SimpleNamespace(trial=SimpleNamespace(trial_id="t0000"))]
    sweep: Any = SimpleNamespace(
        folder=folder,
        records=SimpleNamespace(front=lambda: front),
        session=SimpleNamespace(writer=SimpleNamespace(tag=lambda name, values: tags.update({name: values}))),
    )
    SweepUnderWay._tag_front(sweep)
    assert tags == {"t0000": {"raygpu.front": "true"}}
    folder.write_summary({"front": [{"trial_id": "t0000"}]})
    front[0] = SimpleNamespace(trial=SimpleNamespace(trial_id="t0003"))
    SweepUnderWay._tag_front(sweep)
    assert tags == {"t0000": {"raygpu.front": "false"}, "t0003": {"raygpu.front": "true"}}
