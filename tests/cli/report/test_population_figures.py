"""The schedule of a population's winner in the report."""

from __future__ import annotations

from pathlib import Path

import tomli_w

from raygpu.cli.report.population_figures import population_section
from raygpu.config import read_toml
from raygpu.records import population_file
from raygpu.records.run_data import RunData
from raygpu.search.trial_record import Change
from tests.report_cases import record, sweep_folder


def test_the_winners_parameters_are_followed_back(tmp_path: Path) -> None:
    trials = [record(i, 0.5 + i / 10, lr=0.1 * (i + 1), hidden=16) for i in range(3)]
    folder = sweep_folder(tmp_path / "run", trials=trials)
    assert not population_section(RunData.load(folder))
    folder.config.write_text(tomli_w.dumps(read_toml(folder.config) | {"population": {"interval": 1}}))
    assert population_section(RunData.load(folder)).notes == ["No trial took over another one's parameters."]
    population_file.write(folder.population, {"t0002": [Change(1, "t0001", {"lr": 0.24})], "t0000": []})
    section = population_section(RunData.load(folder))
    assert section.tables[0].rows == [("1 to 1", "t0001", 0.2), ("2 to 3", "t0002", 0.24)]
    (plot,) = section.figures
    assert [(trace.name, list(trace.x), list(trace.y)) for trace in plot.plot.data] == [
        ("t0001", [0, 1], [0.2, 0.2]),
        ("t0002", [1, 3], [0.24, 0.24]),
    ]
