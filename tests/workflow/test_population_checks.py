"""Populations that cannot be, each with its line; and the description of a winner."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from experiments.digits import Mlp
from raygpu.config import SweepConfig, TrainConfig, validated
from raygpu.engines.tune.population_actor import begun_values
from raygpu.errors import BadInput
from raygpu.records.best_trial import training_values
from raygpu.records.device import Device
from raygpu.records.trial_records import Records
from raygpu.search.exploration import changing, populations, taken_over
from raygpu.search.population import MemberScores, Population, Reached
from raygpu.search.scoring import Scoring
from raygpu.search.space import Space, parse, random_trials
from raygpu.search.trial_record import Change
from raygpu.search.trials import EpochResult, Trial
from raygpu.training.hyperparameters import OptimizerSettings
from raygpu.workflow.population_checks import population_faults, require_population, winners_lineage, winners_values

SPACE: dict[str, Any] = {"lr": {"loguniform": [1e-3, 1.0]}, "momentum": {"uniform": [0.0, 0.9]}, "hidden": 16}


def config(space: dict[str, Any] | None = None, **population: Any) -> tuple[SweepConfig, Space]:
    values = {
        "name": "pop",
        "experiment": "experiments.digits:Mlp",
        "trials": 4,
        "epochs": 6,
        "metric": "loss",
        "population": {"interval": 2, **population},
        "space": space or SPACE,
    }
    return validated(values, SweepConfig, "a.toml"), parse(space or SPACE)


def required(
    kind: str, read: tuple[str, ...] = ("hidden",), code: Any = None, *, is_new: bool = True, **values: Any
) -> list[str]:
    made, space = config(**values)
    sampler: Any = SimpleNamespace(trials=random_trials(space, 8, 0))
    source: Any = SimpleNamespace(kind=kind, name="mine:Mine")
    return require_population(made, sampler, source, code or Mlp(), read, is_new=is_new)


@pytest.mark.parametrize(
    ("space", "population", "line"),
    [
        ({"lr": 0.1, "hidden": {"choice": [1, 2]}}, {}, "[space] draws nothing that may change"),
        ({**SPACE, "dropout": {"uniform": [0, 1]}}, {}, "no two trials are alike in dropout, which cannot"),
        (None, {"change": ["eps"]}, "population.change: read 'eps', which [space] does not have"),
    ],
)
def test_faults_without_the_users_code(space: dict[str, Any] | None, population: dict[str, Any], line: str) -> None:
    made, parsed = config(space, **population)
    (fault,) = population_faults(made, parsed, random_trials(parsed, 4, 0))
    assert line in fault


@pytest.mark.parametrize(
    ("kind", "read", "line"),
    [
        ("function", (), "population: a function keeps its parameters to itself"),
        ("keras", (), "population.change: momentum cannot change in a Keras trial"),
        ("torch", ("hidden", "lr"), "population.change: lr is read by model(), a forward, augment() or"),
        ("torch", ("hidden", "momentum"), 'so it cannot change while a trial trains; give change = ["lr"]'),
    ],
)
def test_faults_of_the_users_code(kind: str, read: tuple[str, ...], line: str) -> None:
    with pytest.raises(BadInput) as fault:
        required(kind, read)
    assert line in str(fault.value)


def test_an_optimizer_of_its_own_has_no_population() -> None:
    class Own(Mlp):
        def optimizer(self, model: Any, hp: Any) -> Any:
            raise NotImplementedError

    with pytest.raises(BadInput, match="population: mine:Mine has an optimizer"):
        required("torch", code=Own())


def test_a_keras_population_may_change_the_learning_rate() -> None:
    assert required("keras", change=["lr"], space={**SPACE, "momentum": 0.5, "warmup_epochs": {"uniform": [0, 1]}}) == [
        "population: after epochs 2, 4 the worst 25% take over the best ones' parameters; lr may change"
    ]


def test_a_keras_trial_takes_over_no_number_of_a_traced_step() -> None:
    with pytest.raises(BadInput, match="population: no two trials are alike in momentum, which cannot change"):
        required("keras", change=["lr"])


def test_a_sweep_that_goes_on_compares_its_trials_as_before() -> None:
    (line,) = required("keras", change=["lr"], is_new=False)
    assert line.endswith("lr may change")


@pytest.mark.parametrize(
    ("kind", "name", "population"),
    [("torch", "momentum", {"change": ["lr"]}), ("torch", "gamma", {}), ("keras", "gamma", {"change": ["lr"]})],
)
def test_a_number_that_the_model_reads_is_not_taken_over(kind: str, name: str, population: dict[str, Any]) -> None:
    """A value that only the experiment's code takes as its own: the momentum of a BatchNorm, the gamma of a loss."""
    space = {"lr": {"loguniform": [1e-3, 1.0]}, "optimizer": "adam", "hidden": 16, name: {"choice": [0.1, 0.5]}}
    first, second = required(kind, ("hidden", name), space=space, **population)
    assert "; lr may change" in first
    assert second.startswith("population: 2 of them, since trials differ in values that cannot change")
    (line,) = required(kind, space=space, **population)
    assert "; lr may change" in line
    with pytest.raises(BadInput, match=f"no two trials are alike in {name}, which cannot change"):
        required(kind, (name,), space={**space, name: {"uniform": [0.1, 0.5]}}, **population)


def test_what_the_model_does_not_read_is_taken_over() -> None:
    assert required("torch", change=["lr"])


def test_a_winner_is_described_by_the_history_of_its_parameters() -> None:
    made, space = config()
    records = Records(2, Scoring("loss", maximize=False), [Device(0, "n", "0", "gpu")], 6)
    for place, trial in enumerate(random_trials(space, 2, 0)):
        records.start(trial)
        records.add(trial.trial_id, [EpochResult(e, {"validation/loss": 1.0 - place}) for e in range(1, 7)], 0)
        records.end(trial.trial_id, "finished")
    change = Change(2, "t0000", {"lr": 0.05, "momentum": 0.5})
    assert records.change("t0001", change)
    assert not records.change("t0001", change), "told again after a lost worker"
    best = records.ranked()[0]
    assert best.trial.trial_id == "t0001"
    stretches = winners_lineage(records, best)
    values = winners_values(stretches, records, best)
    first = records.by_id["t0000"].trial
    assert values["seed"] == first.seed
    assert values["hyperparameters"] == dict(first.hyperparameters)
    assert values["changes"] == [{"epoch": 3, "lr": 0.05, "momentum": 0.5}]
    assert values["source"]["lineage"] == ["t0000 in epochs 1 to 2", "t0001 in epochs 3 to 6"]
    plain = training_values(made, "pop", best.trial, score=0.0, score_epoch=6, epochs=6)
    training = validated(plain | values, TrainConfig, "best.toml")
    settings = OptimizerSettings.of(training.hyperparameters, training.changes)
    assert [settings.in_epoch(epoch).lr for epoch in (2, 3)] == [first.hyperparameters["lr"], 0.05]
    assert settings.scaled(2.0).in_epoch(3).lr == 0.1


def test_the_schedule_of_a_winner_is_that_of_each_epochs_trainer() -> None:
    """The winner would have had a warm-up and cosine; its donor, which trained the first epochs, had neither."""
    donors = {"lr": 0.1, "momentum": 0.5, "schedule": "constant", "warmup_epochs": 0, "hidden": 16}
    own = {"lr": 0.3, "momentum": 0.9, "schedule": "cosine", "warmup_epochs": 5, "hidden": 16}
    space = {
        "lr": {"loguniform": [1e-3, 1.0]},
        "momentum": {"uniform": [0.0, 0.9]},
        "schedule": {"choice": ["constant", "cosine"]},
        "warmup_epochs": {"choice": [0, 5]},
        "hidden": 16,
    }
    made, parsed = config(space, change=["momentum"])
    trials = [Trial("t0000", 1, donors), Trial("t0001", 2, own)]
    parameters = changing(made.population, parsed)
    names = taken_over(parameters, parsed, "torch")
    population = Population(made.population, parameters, populations(trials, names), epochs=6, seed=0, maximize=False)
    reports = [
        MemberScores(trial.trial_id, {2: Reached(place, begun_values(trial, names))}, {})
        for place, trial in enumerate(trials)
    ]
    records = Records(2, Scoring("loss", maximize=False), [Device(0, "n", "0", "gpu")], 6)
    orders = population.exchange(2, reports)
    assert orders is not None
    for place, trial in enumerate(trials):
        records.start(trial)
        records.add(trial.trial_id, [EpochResult(e, {"validation/loss": 1.0 - place}) for e in range(1, 7)], 0)
        records.end(trial.trial_id, "finished")
    assert records.change("t0001", orders.changes["t0001"])
    best = records.ranked()[0]
    assert best.trial.trial_id == "t0001"
    values = winners_values(winners_lineage(records, best), records, best)
    plain = training_values(made, "pop", best.trial, score=0.0, score_epoch=6, epochs=6)
    training = validated(plain | values, TrainConfig, "best.toml")
    settings = OptimizerSettings.of(training.hyperparameters, training.changes)
    for epoch in range(1, 7):
        present = settings.in_epoch(epoch)
        assert (present.lr, present.schedule, present.warmup_epochs) == (0.1, "constant", 0), epoch


def test_a_trial_without_takeovers_is_itself() -> None:
    records = Records(1, Scoring("loss", maximize=False), [Device(0, "n", "0", "gpu")], 6)
    trial = Trial("t0000", 5, {"lr": 0.1, "momentum": 0.0, "hidden": 16})
    records.start(trial)
    records.add("t0000", [EpochResult(6, {"loss": 1.0})], 0)
    values = winners_values(winners_lineage(records, records.by_id["t0000"]), records, records.ranked()[0])
    assert "changes" not in values
    assert values["hyperparameters"] == dict(trial.hyperparameters)
