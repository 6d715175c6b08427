"""The groups of trials that can be fused."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from raygpu import Splits, TorchExperiment
from raygpu.search.signature import ITS_OWN
from raygpu.search.trials import Trial
from raygpu.training.folds import Folds
from raygpu.training.fused.dry_run import obstacle
from raygpu.training.fused.groups import TorchGrouper
from tests.models import MODELS, Mlp, few
from tests.training.fused.refusals import If, Of, ids, trials


def test_fuser_groups_by_signature_and_asks_once(monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = MODELS["mlp"][0]()
    asked: list[list[str]] = []

    def counted(experiment: TorchExperiment, splits: Splits, chosen: Sequence[Trial], *more: Any) -> str | None:
        asked.append([trial.trial_id for trial in chosen])
        return obstacle(experiment, splits, chosen, *more)

    monkeypatch.setattr("raygpu.training.fused.dry_run.obstacle", counted)
    grouper = TorchGrouper(experiment, experiment.data())
    own = [
        {"hidden": 4, "lr": 0.1},
        {"hidden": 8, "lr": 0.1},
        {"hidden": 4, "lr": 0.2},
        {"hidden": 4, "lr": 0.2, "optimizer": "adam"},
        {"lr": 0.1},
        {"hidden": 4, "lr": 0.3, "optimizer": "adam"},
    ]
    groups = grouper.groups(trials({}, own))
    assert ids(groups) == [["t0000", "t0002"], ["t0001"], ["t0003", "t0005"], ["t0004"]]
    assert [group.reason for group in groups[:3]] == [None, ITS_OWN, None]
    assert "hidden" in (groups[3].reason or "")
    assert asked == [["t0000", "t0002"]]
    assert [grouper.may_be_array(group) for group in groups] == [False] * 4, "no trial like t0001 was tried"
    (lone,) = grouper.groups(trials({}, own[:1]))
    assert grouper.may_be_array(lone)
    grouper.refuse(lone.trials[0], "differs")
    assert not grouper.may_be_array(lone)
    grouper.alone.clear()
    assert ids(grouper.groups(trials({}, own))) == ids(groups)
    assert len(asked) == 1


def test_trials_that_differ_in_more_are_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    kind, shape = MODELS["mlp"]
    asked: list[int] = []

    def passed(experiment: TorchExperiment, splits: Splits, chosen: Sequence[Trial], *more: Any) -> str | None:
        asked.append(len(chosen))
        return None

    monkeypatch.setattr("raygpu.training.fused.dry_run.obstacle", passed)
    grouper, counts = TorchGrouper(kind(), few()), []
    same, by_lr = [{"lr": 0.1}, {"lr": 0.1}], [{"lr": 0.1}, {"lr": 0.2}]
    for own in (same, same, by_lr, by_lr, same, [{"lr": 0.1}, {"lr": 0.1, "momentum": 0.5}]):
        grouper.groups(trials(shape, own))
        counts.append(len(asked))
    assert counts == [1, 1, 2, 2, 2, 3]


def test_fuser_tells_the_obstacle_of_a_group() -> None:
    experiment = Of(lambda hp: If())
    (group,) = TorchGrouper(experiment, experiment.data()).groups(trials())
    assert len(group.trials) == 3
    assert "data-dependent" in (group.reason or "")


@pytest.mark.parametrize("bad", [{"lr": -1.0}, {"lr": 0.1, "nesterov": True, "momentum": 0.0}], ids=["lr", "nesterov"])
def test_a_trial_with_bad_numbers_fails_alone(bad: dict[str, Any]) -> None:
    kind, shape = MODELS["mlp"]
    experiment = kind()
    good = [{"lr": 0.1, "nesterov": True, "momentum": 0.9}, {"lr": 0.2}]
    groups = TorchGrouper(experiment, experiment.data()).groups(trials(shape, [*good, bad]))
    assert ids(groups) == [["t0000", "t0001"], ["t0002"]]
    assert groups[0].reason is None


def test_trials_of_folds_share_an_array_where_the_folds_have_one_size() -> None:
    kind, shape = MODELS["mlp"]
    experiment = kind()
    folds = Folds.of(experiment.data(), 5, seed=0)
    sizes = [folds.num_validation(fold) for fold in range(5)]
    assert len(set(sizes)) == 2
    grouper = TorchGrouper(experiment, experiment.data(), folds=folds)
    sets = trials(shape, [{"lr": 0.1}, {"lr": 0.2}])
    each = [
        replace(trial, trial_id=Trial.repeat_name(trial.trial_id, fold), repeat=0, fold=fold)
        for trial in sets
        for fold in range(5)
    ]
    groups = grouper.groups(each)
    assert [{sizes[trial.fold] for trial in group.trials if trial.fold is not None} for group in groups] == [
        {size} for size in dict.fromkeys(sizes)
    ]
    assert [group.reason for group in groups] == [None, None]
    assert len({group.signature for group in groups}) == 2
    grouper.refuse(each[0], "audited")
    assert [group.reason for group in grouper.groups(each)] == ["audited", "audited"], "it is the model's, in any fold"


class Exits(Mlp):
    """Ends the program for some hyper-parameters."""

    def model(self, hp: Any) -> nn.Module:
        if hp["hidden"] == 3:
            sys.exit(4)
        return super().model(hp)


def test_a_model_that_exits_is_a_fault_of_its_trial_alone() -> None:
    trials = [Trial(Trial.name(i), i, {"hidden": hidden, "lr": 0.1 * (1 + i)}) for i, hidden in enumerate((4, 3, 4))]
    good, bad = TorchGrouper(Exits(), few()).groups(trials)
    assert (len(good.trials), good.reason) == (2, None)
    assert bad.reason == "RuntimeError: model(hp) exits, by SystemExit: 4"


class Permuted(nn.Module):
    """Draws an order of its inputs by the trial's seed, and keeps it in no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.order, self.last = torch.randperm(64), nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(x[:, self.order])


def test_repeats_by_the_same_seeds_are_tried_with_seeds_of_their_own() -> None:
    experiment = Of(lambda hp: Permuted())
    sets = trials({}, [{"lr": 0.1 * (1 + i)} for i in range(4)])
    each = [replace(t, trial_id=f"{t.trial_id}-{seed}", seed=seed) for t in sets for seed in (11, 12)]
    (group,) = TorchGrouper(experiment, few()).groups(each)
    assert "Permuted.order differs between trials" in (group.reason or "")
