"""A population in one array, in several arrays and in trainings alone: the same takeovers, the same parameters."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from raygpu.config.population_section import PopulationSection
from raygpu.engines.tune.array_checkpoint import POPULATION
from raygpu.engines.tune.array_sequence import ArraySequence
from raygpu.engines.tune.evolution import Evolution, Member
from raygpu.engines.tune.population_actor import PopulationActor, PopulationClient
from raygpu.planning.batches import batch_bounds, epoch_order
from raygpu.search.exploration import changing, populations, taken_over
from raygpu.search.lineage import lineage, schedule
from raygpu.search.population import Population
from raygpu.search.space import parse
from raygpu.search.trial_record import Change
from raygpu.search.trials import EpochResult, Trial
from raygpu.storage import Storage
from raygpu.training.array_of_one import ArrayOfOne
from raygpu.training.fused.model_array import TorchArray
from raygpu.training.hyperparameters import OptimizerSettings
from raygpu.training.torch.models import epoch_seed
from raygpu.training.torch.optimizers import BuiltinOptimizer
from raygpu.training.torch.seeding import seed_all
from raygpu.training.torch.solo import TorchSolo
from tests.models import MODELS
from tests.torch_device import DEVICE
from tests.training.fused.alike import EXACT, difference, parameters, settings, solo

EPOCHS = 6
SPACES: dict[str, dict[str, Any]] = {
    "sgd": {
        "lr": {"loguniform": [1e-3, 0.3]},
        "momentum": {"choice": [0.0, 0.5, 0.9]},
        "weight_decay": {"choice": [0.0, 1e-3, 1e-2]},
    },
    "adam": {"lr": {"loguniform": [1e-4, 0.1]}, "weight_decay": {"uniform": [0.0, 0.1]}, "betas": (0.8, 0.99)},
    "taken": {
        "optimizer": "sgd",
        "momentum": {"choice": [0.5, 0.9]},
        "lr": {"loguniform": [1e-3, 0.3]},
        "schedule": {"choice": ["constant", "cosine", "step"]},
        "step_epochs": {"choice": [1, 2]},
        "gamma": {"uniform": [0.3, 0.9]},
        "warmup_epochs": {"choice": [0, 3]},
        "nesterov": {"choice": [True, False]},
        "ema_decay": {"uniform": [0.5, 0.99]},
        "clip_norm": {"uniform": [0.5, 2.0]},
    },
}
CHANGE = {"taken": "momentum"}
"""Of the hyper-parameters that trials of a space differ in, those that change; by default all of `auto`."""


class Local(PopulationClient):
    """The population in this process."""

    def _ask(self, method: str, *arguments: Any) -> Any:
        return getattr(self._actor, method)(*arguments)


class Game:
    """A sweep's trials in workers of this process, an epoch of each at a time."""

    def __init__(self, optimizer: str, model: str, folder: Path, *, count: int = 6, seed: int = 1) -> None:
        self.kind, shape = MODELS[model]
        space = parse(SPACES[optimizer])
        self.trials = [
            Trial(Trial.name(i), 10 + i, {"batch_size": 50, "optimizer": optimizer, **shape, **space.draw(seed, i)})
            for i in range(count)
        ]
        section = PopulationSection(interval=2, change=CHANGE.get(optimizer, "auto"))
        parameters = changing(section, space)
        self.changing = taken_over(parameters, space, "torch")
        groups = populations(self.trials, self.changing)
        self.population = Population(section, parameters, groups, epochs=EPOCHS, seed=seed, maximize=False)
        self.folder, self.epochs = folder, frozenset(section.epochs(EPOCHS))
        self.scores: dict[str, float] = {}

    def array(self, trials: Sequence[Trial], width: int | None = None) -> TorchArray:
        experiment = self.kind()
        return TorchArray(
            experiment, experiment.data(), trials, replace(settings(EPOCHS), changing=self.changing), width=width,
            device=DEVICE, dtype=torch.float64,
        )  # fmt: skip

    def alone(self, trial: Trial) -> ArrayOfOne:
        return ArrayOfOne(solo(self.kind(), trial, torch.float64, EPOCHS), trial)

    def evolution(self, array: Any) -> Evolution:
        found = Evolution(
            Local(PopulationActor(self.population)),
            self.epochs,
            self.changing,
            Storage(str(self.folder)),
            list(array.trials),
        )
        found.restore(None, array)
        return found

    def play(self, arrays: Sequence[Any], epochs: int = EPOCHS) -> list[Evolution]:
        workers = [(array, self.evolution(array)) for array in arrays]
        for _ in range(100 * EPOCHS):
            for array, evolution in workers:
                self.step(array, evolution, epochs)
            if all(array.epoch == epochs for array, _ in workers):
                return [evolution for _, evolution in workers]
        raise AssertionError("the workers wait for each other for ever")

    def step(self, array: Any, evolution: Evolution, epochs: int = EPOCHS) -> None:
        """Train an epoch, unless others are waited for."""
        if array.epoch == epochs:
            return
        if evolution.is_due(array) and evolution.exchange(array, self.scores.__getitem__) is None:
            return
        results = array.run_epoch()
        self.scores |= {name: result.metrics["validation/loss"] for name, result in results.items()}


def model_of(array: Any, trial: Trial) -> dict[str, torch.Tensor]:
    if isinstance(array, TorchArray):
        return array.member_state(trial.trial_id)["model"]
    return array.solo.state()["model"]


@pytest.mark.parametrize(
    ("optimizer", "model"),
    [
        ("sgd", "mlp"),
        pytest.param("sgd", "resnet", marks=pytest.mark.slow),
        ("adam", "mlp"),
        ("taken", "mlp"),
        ("taken", "resnet"),
    ],
)
def test_members_of_one_array_equal_those_of_several_and_trainings_alone(
    optimizer: str, model: str, tmp_path: Path
) -> None:
    games = [Game(optimizer, model, tmp_path / str(i)) for i in range(3)]
    trials = games[0].trials
    whole = [games[0].array(trials, width=4)]
    cut = [games[1].array(trials[:4]), games[1].array(trials[4:], width=1)]
    alone = [games[2].alone(trial) for trial in trials]
    (first,), several, single = games[0].play(whole), games[1].play(cut), games[2].play(alone)
    changes = {name: member.changes for name, member in first.members.items()}
    assert sum(map(len, changes.values())) >= 3
    for evolutions in (several, single):
        assert {n: m.changes for each in evolutions for n, m in each.members.items()} == changes
    for place, trial in enumerate(trials):
        expected = model_of(alone[place], trial)
        for arrays in (whole, cut):
            own = next(array for array in arrays if trial in array.trials)
            assert difference(model_of(own, trial), expected) <= EXACT, trial.trial_id
        untouched = not changes[trial.trial_id]
        without = solo(games[0].kind(), trial, torch.float64, EPOCHS)
        for _ in range(EPOCHS):
            without.run_epoch()
        apart = difference(model_of(whole[0], trial), without.state()["model"])
        assert apart <= EXACT if untouched else apart > 1e-3


def test_a_compiled_step_goes_on_after_takeovers(tmp_path: Path) -> None:
    """What a step reads stays where it is: nothing is compiled or recorded again."""
    game = Game("sgd", "mlp", tmp_path)
    array = game.array(game.trials)
    places = [tensor.data_ptr() for stack in array.tiles[0].stacks() for tensor in stack.values()]
    key = array.program.optimizer.program
    (evolution,) = game.play([array])
    assert sum(len(member.changes) for member in evolution.members.values()) >= 2
    assert [tensor.data_ptr() for stack in array.tiles[0].stacks() for tensor in stack.values()] == places
    assert array.program.optimizer.program == key


def test_an_array_that_memory_did_not_hold_takes_over_from_the_one_before(tmp_path: Path) -> None:
    game = Game("sgd", "mlp", tmp_path)
    parts = [game.trials[:3], game.trials[3:]]
    client, names = Local(PopulationActor(game.population)), [[trial.trial_id for trial in part] for part in parts]
    evolution = Evolution(client, game.epochs, game.changing, Storage(str(tmp_path)), game.trials)
    scores = {trial.trial_id: float(place) for place, trial in enumerate(game.trials)}  # a lower one is better
    for part, absent in zip(parts, (names[1], []), strict=True):
        array = game.array(part)
        evolution.restore(None, array)
        while array.epoch < EPOCHS:
            if evolution.is_due(array):
                found = evolution.exchange(array, scores.__getitem__, absent)
                assert found is not None, "nobody is waited for"
                assert not found.lines
            array.run_epoch()
        game.population.leave([trial.trial_id for trial in part], ended=True)
    donors = {change.donor for name in names[1] for change in evolution.members[name].changes}
    assert donors
    assert donors <= set(names[0]), "the best of all"


class Worker(ArraySequence):
    """A worker's array in this process."""

    def __init__(self, game: Game, *, fused: bool) -> None:
        super().__init__(SimpleNamespace(), None, None, SimpleNamespace())  # type: ignore[arg-type]
        self.game, self.fused = game, fused

    def _make(self, trials: list[Trial]) -> Any:
        array = self.game.array(trials) if self.fused else self.game.alone(trials[0])
        self.evolution = self.evolution or self.game.evolution(array)
        return array


@pytest.mark.parametrize(
    ("epoch", "fused"),
    [
        *((epoch, True) for epoch in (2, 3, 4)),
        (3, False),
        *(pytest.param(epoch, False, marks=pytest.mark.slow) for epoch in (2, 4)),
    ],
)
def test_a_worker_that_goes_on_from_a_checkpoint_changes_nothing(fused: bool, epoch: int, tmp_path: Path) -> None:
    """Also from one that it saved while it waited for a decision, and after later decisions were made; and that of a
    trial that began without a momentum and took one over."""
    wanted, lost = Game("sgd", "mlp", tmp_path / "a", seed=2), Game("sgd", "mlp", tmp_path / "b", seed=2)
    parts = [wanted.trials[:3], wanted.trials[3:]] if fused else [[trial] for trial in wanted.trials]
    place = 0 if fused else 1

    def workers(game: Game) -> list[Worker]:
        found = [Worker(game, fused=fused) for _ in parts]
        for worker, trials in zip(found, parts, strict=True):
            worker.begin(trials)
        return found

    expected = [worker.array for worker in workers(wanted)]
    told = wanted.play(expected)[place]
    member = told.members["t0001"]
    assert (member.begun["momentum"], member.changes[0].epoch, member.changes[0].values["momentum"]) == (0, 2, 0.9)
    first = workers(lost)
    saved, scores = tmp_path / "checkpoint", {}
    saved.mkdir()
    for _ in range(100 * EPOCHS):
        for worker in first:
            lost.step(worker.array, worker.evolution)
            if worker is first[place] and worker.array.epoch == epoch and not scores:
                worker.save(saved)
                scores = dict(lost.scores)
    assert (saved / POPULATION).is_file()
    again = Worker(lost, fused=fused)
    again.begin(parts[place], saved)
    lost.scores = scores
    for _ in range(10):
        lost.step(again.array, again.evolution)
    assert again.array.epoch == EPOCHS
    for trial in again.trials:
        assert again.evolution.members[trial.trial_id].changes == told.members[trial.trial_id].changes
        assert difference(model_of(again.array, trial), model_of(expected[place], trial)) <= EXACT


def test_the_values_of_each_epoch_are_metrics(tmp_path: Path) -> None:
    game = Game("sgd", "mlp", tmp_path)
    (evolution,) = game.play([game.array(game.trials)])
    name, member = next((name, each) for name, each in evolution.members.items() if each.changes)
    change = member.changes[0]
    rates = [evolution.with_values(name, EpochResult(e, {"x": 1.0})).metrics["lr"] for e in range(1, EPOCHS + 1)]
    assert rates[change.epoch - 1] == member.begun["lr"]
    assert rates[change.epoch] == change.values["lr"]


def test_the_values_of_an_epoch_are_those_of_its_steps_after_changes_of_an_older_version_too() -> None:
    """Such changes have those values alone that change."""
    begun = {"lr": 0.3, "schedule": "cosine", "momentum": 0.5}
    member = Member(Trial("t0000", 0, begun), begun)
    member.decided = {
        2: Change(2, "t0001", {"lr": 0.1, "schedule": "step"}),
        4: Change(4, "t0001", {"lr": 0.2}),
        6: None,
    }
    values = [member.values(epoch) for epoch in range(1, 9)]
    for epoch, each in enumerate(values, start=1):
        trained = member.settings().in_epoch(epoch)
        assert each == {"lr": trained.lr, "schedule": trained.schedule, "momentum": trained.momentum}
    assert [each["lr"] for each in values] == [0.3, 0.3, 0.1, 0.1, 0.2, 0.2, 0.2, 0.2]


def test_a_lost_donor_leaves_a_trial_as_it_is(tmp_path: Path) -> None:
    game = Game("sgd", "mlp", tmp_path, count=2)
    arrays = [game.alone(trial) for trial in game.trials]
    for array in arrays:
        array.run_epoch()
        array.run_epoch()
    evolutions = [game.evolution(array) for array in arrays]
    scores = {"t0000": 0.0, "t0001": 1.0}
    assert evolutions[1].exchange(arrays[1], scores.__getitem__) is None
    assert evolutions[0].exchange(arrays[0], scores.__getitem__) is not None
    for file in (tmp_path / "2" / "t0000").iterdir():
        file.unlink()
    (tmp_path / "2" / "t0000").rmdir()
    before = model_of(arrays[1], game.trials[1])
    found = evolutions[1].exchange(arrays[1], scores.__getitem__)
    assert found is not None
    assert found.changes == {}
    assert found.lines == ("t0001 keeps its own parameters: those of its donor are lost",)
    assert difference(model_of(arrays[1], game.trials[1]), before) == 0
    assert not evolutions[1].members["t0001"].changes
    json.dumps(found.lines)


def test_the_winners_schedule_is_the_history_of_its_parameters(tmp_path: Path) -> None:
    """A loop by hand over the lineage, with each ancestor's data order, ends at the winner's own parameters."""
    game = Game("sgd", "mlp", tmp_path)
    array = game.array(game.trials)
    (evolution,) = game.play([array])
    name = next(name for name, member in evolution.members.items() if len(member.changes) >= 1)
    members = evolution.members
    stretches = lineage(
        name, EPOCHS, {n: m.changes for n, m in members.items()}, {n: m.begun for n, m in members.items()}
    )
    by_id = {trial.trial_id: trial for trial in game.trials}
    training = solo(game.kind(), by_id[stretches[0].trial_id], torch.float64, EPOCHS)
    for stretch in stretches:
        hp = {**by_id[stretch.trial_id].hyperparameters, **stretch.values}
        optimizer = replaced(training.optimizer, OptimizerSettings.of(hp))
        for epoch in range(stretch.first, stretch.last + 1):
            train_epoch(training, optimizer, by_id[stretch.trial_id].seed, epoch, hp["lr"])
    assert difference(model_of(array, by_id[name]), parameters(training.model)) <= EXACT


def test_a_trial_goes_on_with_all_numbers_of_its_donor_and_the_schedule_is_that_of_its_lineage(tmp_path: Path) -> None:
    game = Game("taken", "mlp", tmp_path)
    (evolution,) = game.play([game.array(game.trials)])
    members = evolution.members
    changes = {name: member.changes for name, member in members.items()}
    assert sum(map(len, changes.values())) >= 2
    for name, each in changes.items():
        for change in each:
            own, donors = members[name].settings(), members[change.donor].settings()
            after, before = own.in_epoch(change.epoch + 1), donors.in_epoch(change.epoch)
            assert replace(after, momentum=before.momentum, later=()) == replace(before, later=())
        segments = lineage(name, EPOCHS, changes, {n: m.begun for n, m in members.items()})
        root = members[segments[0].trial_id].trial.hyperparameters
        trained_again = OptimizerSettings.of(root, schedule(segments))
        for segment in segments:
            for epoch in range(segment.first, segment.last + 1):
                trained = members[segment.trial_id].settings().in_epoch(epoch)
                assert replace(trained_again.in_epoch(epoch), later=()) == replace(trained, later=())


def replaced(old: BuiltinOptimizer, new: OptimizerSettings) -> BuiltinOptimizer:
    old.use(new)
    return old


def train_epoch(training: TorchSolo, optimizer: BuiltinOptimizer, seed: int, epoch: int, lr: float) -> None:
    seed_all(epoch_seed(seed, epoch))
    order = torch.from_numpy(epoch_order(seed, epoch, training.samples_per_epoch))
    for start, end in batch_bounds(training.samples_per_epoch, training.batch_size):
        chosen = order[start:end]
        outputs = training.model.train()(training.data.train_inputs[chosen])
        nn.functional.cross_entropy(outputs, training.data.train_targets[chosen]).backward()
        optimizer.step(lr)
