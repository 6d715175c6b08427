"""A function as the only rank of a production training, without Ray."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import raygpu
from raygpu.errors import UnknownMetric
from raygpu.records.training_progress import ControlRequest, Progress
from raygpu.reporting import Kept
from raygpu.search.scoring import Scoring
from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from raygpu.training.callable.function import SAVES_LATE, FunctionTraining
from raygpu.training.distributed.function_rank import FunctionRank
from tests.function_cases import walk


def rank(function: Any, folder: Path, *, epochs: int = 4, request: ControlRequest = "", **hp: Any) -> FunctionRank:
    trial = Trial("t0003", 11, {"step": 0.3, **hp})
    training = FunctionTraining(function, trial, Settings(epochs, 1, "float32", folder))
    return FunctionRank(training, Scoring("score", maximize=True), lambda: request)


def all_of(training: FunctionRank) -> list[Progress]:
    found = []
    while (progress := training.advance()) is not None:
        found.append(progress)
    training.close()
    return found


def test_each_report_is_an_epoch_with_the_values_of_the_sweep_s_trial(tmp_path: Path) -> None:
    told = all_of(rank(walk, tmp_path))
    trial = FunctionTraining(walk, Trial("t0003", 11, {"step": 0.3}), Settings(4, 1, "float32", tmp_path))
    results = [trial.run_epoch() for _ in range(4)]
    trial.close()
    assert [progress.result for progress in told] == results
    assert [(progress.epoch, progress.step, progress.steps) for progress in told] == [(n, 1, 1) for n in (1, 2, 3, 4)]


def test_what_raygpu_does_not_know_is_none(tmp_path: Path) -> None:
    progress = all_of(rank(walk, tmp_path))[0]
    assert (progress.lr, progress.samples_per_s, progress.efficiency, progress.noise) == (None, None, None, None)
    assert progress.samples == progress.rates == progress.shares == ()
    assert not progress.diverged


def test_it_goes_on_from_the_function_s_own_checkpoint(tmp_path: Path) -> None:
    whole = all_of(rank(walk, tmp_path))
    first = rank(walk, tmp_path, every=2)  # saves its state before its reports 1 and 3
    for _ in range(2):
        first.advance()
    first.begin_save(tmp_path / "kept")()
    first.close()
    second = rank(walk, tmp_path, every=2)
    second.load(tmp_path / "kept")
    assert second.epoch == 1
    assert [progress.result for progress in all_of(second)] == [progress.result for progress in whole[1:]]


def test_a_function_without_a_checkpoint_begins_again(tmp_path: Path) -> None:
    training = rank(lambda config: {"score": 1.0}, tmp_path)
    assert len(all_of(training)) == 1
    (tmp_path / "kept").mkdir()
    training.begin_save(tmp_path / "kept")()
    assert not list((tmp_path / "kept").iterdir())
    again = rank(lambda config: {"score": 1.0}, tmp_path)
    again.load(tmp_path / "kept")
    assert again.epoch == 0


def test_it_may_end_by_itself(tmp_path: Path) -> None:
    def two(config: dict[str, Any]) -> None:
        raygpu.report(score=1.0)
        raygpu.report(score=2.0)

    training = rank(two, tmp_path, epochs=9)
    assert [progress.epoch for progress in all_of(training)] == [1, 2]
    assert training.epoch == 2


def late(config: dict[str, Any]) -> None:
    """Save the number of each epoch after its report."""
    for epoch in range(raygpu.load(0), config["epochs"]):
        raygpu.report(score=1.0 / (epoch + 1))
        raygpu.checkpoint(epoch + 1)


def test_a_state_that_is_saved_after_each_report_is_told_once(tmp_path: Path) -> None:
    training = rank(late, tmp_path)
    notes, states = [], []
    while (progress := training.advance()) is not None:
        notes.append(list(training.notes))
        training.begin_save(tmp_path / str(progress.epoch))()
        state = Kept.load(tmp_path / str(progress.epoch))
        states.append(state and (state.epoch, state.content, state.at_end))
    training.close()
    assert notes == [[], [], [SAVES_LATE], [SAVES_LATE]]
    assert states == [None, (2, 1, False), (3, 2, False), (4, 4, True)], "of the epoch before, but for the last one"
    again = rank(late, tmp_path)
    again.load(tmp_path / "3")
    assert [progress.result and progress.result.metrics["score"] for progress in all_of(again)] == [1 / 3]


def test_a_state_that_is_saved_before_each_report_needs_no_word(tmp_path: Path) -> None:
    training = rank(walk, tmp_path)
    all_of(training)
    assert not training.notes


def test_the_user_s_wish_is_told_with_the_report(tmp_path: Path) -> None:
    training = rank(walk, tmp_path, request="stop")
    progress = training.advance()
    training.close()
    assert progress is not None
    assert progress.request == "stop"


def test_a_score_that_is_not_finite_has_diverged(tmp_path: Path) -> None:
    def nan(config: dict[str, Any]) -> None:
        raygpu.report(score=1.0, auc=float("nan"))
        raygpu.report(score=float("nan"))

    assert [progress.diverged for progress in all_of(rank(nan, tmp_path))] == [False, True]


def raises(config: dict[str, Any]) -> None:
    raygpu.report(score=1.0)
    raise KeyError("lost")


def leaves(config: dict[str, Any]) -> None:
    raygpu.report(score=1.0)
    raise SystemExit("enough")


def interrupts(config: dict[str, Any]) -> None:
    raygpu.report(score=1.0)
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("function", "error", "words"),
    [
        (raises, KeyError, "lost"),
        (interrupts, RuntimeError, "the function has raised KeyboardInterrupt"),
        (leaves, RuntimeError, r"the function has called sys\.exit\('enough'\)"),
        (lambda config: None, RuntimeError, "the function ended without a metric"),
        (lambda config: {"loss": 1.0}, UnknownMetric, "metric: read 'score'; the experiment reports: loss"),
    ],
)
def test_what_ends_it(function: Any, error: type[Exception], words: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=words):
        all_of(rank(function, tmp_path))


def test_it_has_no_parameters_to_begin_with(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a function's checkpoint is its own state"):
        rank(walk, tmp_path).load_parameters(tmp_path)
