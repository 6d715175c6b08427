"""The start of a sweep's population: which trials compare, and what they take over."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from raygpu.config import SweepConfig, validated
from raygpu.engines.tune import population_start
from raygpu.engines.tune.population_start import population_settings
from raygpu.search.samplers import DrawnTrials
from raygpu.search.space import parse, random_trials
from raygpu.storage import Storage

SPACE = {"lr": {"loguniform": [1e-3, 1.0]}, "gamma": {"choice": [0.0, 2.0]}, "warmup_epochs": {"choice": [0, 1]}}


@pytest.mark.parametrize(("read", "num_populations"), [(frozenset(), 1), (frozenset({"gamma"}), 2)])
def test_a_number_that_the_users_code_reads_stays_a_trials_own(
    read: frozenset[str], num_populations: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(population_start, "start_actor", lambda kind, population: population)
    values = {"experiment": "a:B", "metric": "loss", "trials": 8, "epochs": 6}
    config = validated({**values, "population": {"interval": 2}, "space": SPACE}, SweepConfig, "a.toml")
    context: Any = SimpleNamespace(
        config=config,
        sampler=DrawnTrials(random_trials(parse(SPACE), 8, 0)),
        source=SimpleNamespace(kind="torch"),
        read=read,
        folder=SimpleNamespace(tune=Storage("/nowhere")),
    )
    plan: Any = SimpleNamespace(slots=8)
    settings = population_settings(context, plan, None)
    assert settings is not None
    assert len(set(settings.actor.groups.values())) == num_populations
    assert set(settings.changing) == {"lr", "gamma", "warmup_epochs"} - read
