from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from raygpu.engines.tune.member_results import MOST_EARLIER, MemberResults
from raygpu.records.run_directory import SCORE
from raygpu.search.scoring import Scoring
from raygpu.search.trials import EpochResult

NAMES = ("a", "b", "c")


class Array:
    """Members whose parameters are the number of the epoch. every: epochs from one that is saved to the next."""

    def __init__(self, kept: MemberResults, every: int = 1) -> None:
        self.kept, self.every, self.epoch, self.saved = kept, every, 0, 0

    def train(self, **scores: float) -> None:
        self.epoch += 1
        for name, score in scores.items():
            self.kept.take(name, EpochResult(self.epoch, {"accuracy": score}), self)  # type: ignore[arg-type]

    def has_saved(self, epoch: int) -> bool:
        return epoch % self.every == 0

    def save_member(self, name: str, folder: Path) -> None:
        (folder / "epoch").write_text(str(self.epoch))
        self.saved += 1

    def end(self, *names: str) -> None:
        for name in names:
            self.kept.end(name, self)  # type: ignore[arg-type]

    def left(self) -> dict[str, int]:
        return {path.name: int((path / "epoch").read_text()) for path in self.kept.folder.iterdir()}


def array(score_rule: str = "best", *, keep_all: bool = False) -> Array:
    return Array(MemberResults(Scoring("accuracy", True, score_rule), NAMES, keep_all=keep_all))  # type: ignore[arg-type]


def test_the_best_member_s_best_epoch_stays() -> None:
    found = array()
    found.train(a=0.5, b=0.9, c=0.6)
    found.train(a=0.8, b=0.3, c=0.7)
    found.train(a=0.7, b=0.2, c=0.65)
    found.end("a", "b", "c")
    assert found.left() == {"b": 1}
    assert json.loads((found.kept.folder / "b" / SCORE).read_text()) == {"epoch": 1, "score": 0.9}
    assert found.kept.best_of("a") == (0.8, 2, None)
    assert found.kept.last("a") == 0.7, "stopping rules compare the current epoch"


def test_of_equal_scores_the_lower_validation_loss_is_kept() -> None:
    for score_rule in ("last", "best"):
        found = array(score_rule)
        found.epoch = 1
        for name, loss in (("a", 0.5), ("b", 0.3), ("c", 0.30000001)):
            result = EpochResult(1, {"accuracy": 0.9, "validation/loss": loss})
            found.kept.take(name, result, found)  # type: ignore[arg-type]
        found.end("a", "b", "c")
        assert found.left() == {"b": 1}, "to six digits b and c are equal: the first of them"
        assert found.kept.rank("b") == (-0.9, 0.3, "b")


def test_by_the_last_epoch_parameters_are_written_once() -> None:
    found = array("last")
    found.train(a=0.5, b=0.9, c=0.6)
    found.train(a=0.8, b=0.3, c=0.7)
    found.end("a", "b", "c")
    assert found.left() == {"a": 2}
    assert found.saved == 1
    assert found.kept.best_of("a") is None


@pytest.mark.parametrize("score_rule", ["last", "best"])
def test_one_that_diverges_is_not_the_best(score_rule: str) -> None:
    found = array(score_rule)
    found.train(a=0.9, b=0.5)
    found.train(a=math.nan, b=0.4)
    found.end("a")
    found.train(b=0.3)
    found.end("b")
    assert found.left() == {"b": 1 if score_rule == "best" else 3}


def test_what_cannot_be_the_best_any_more_is_not_written() -> None:
    found = array()
    found.train(a=0.9, b=0.1)
    found.end("a")
    before = found.saved
    found.train(b=0.2)
    found.train(b=0.3)
    assert found.saved == before
    found.train(b=0.95)
    found.end("b")
    assert found.left() == {"b": 4}


def test_all_are_kept_where_that_is_wanted_and_a_checkpoint_brings_them_back(tmp_path: Path) -> None:
    found = array(keep_all=True)
    found.train(a=0.5, b=0.9)
    found.train(a=0.8, b=0.3)
    found.end("b")
    (tmp_path / "members").mkdir()
    state = json.loads(json.dumps(found.kept.state()))
    found.kept.folder.rename(tmp_path / "copy")
    again = array(keep_all=True)
    again.epoch = 2
    again.kept.restore(state, tmp_path / "copy")
    again.train(a=0.7)
    again.end("a")
    assert again.left() == {"a": 2, "b": 1}
    assert again.kept.best_of("a") == (0.8, 2, None)
    again.kept.close()
    assert not again.kept.folder.exists()


def test_an_older_best_epoch_goes_where_the_new_one_was_not_saved() -> None:
    """A function decides itself which epochs it saves: a score must not stand beside another epoch's parameters."""
    found = Array(MemberResults(Scoring("accuracy", True, "best"), ("a",), keep_all=False), every=2)
    found.train(a=0.5)
    found.train(a=0.7)
    assert found.left() == {"a": 2}
    found.train(a=0.9)
    assert found.left() == {}
    found.train(a=0.8)
    found.end("a")
    assert found.left() == {"a": 4}
    assert not (found.kept.folder / "a" / SCORE).exists()


def test_a_member_that_ends_again_after_a_narrower_start_is_still_the_best() -> None:
    found = array("last")
    found.train(a=0.5, b=0.9)
    found.end("b")
    found.end("b")
    found.end("a")
    assert found.left() == {"b": 1}


def test_nothing_stays_of_members_that_begin_anew() -> None:
    found = array()
    found.train(a=0.5, b=0.9)
    found.kept.drop(["b"])
    assert found.left() == {"a": 1}


@pytest.mark.parametrize("epoch", [0, 2, 4])
def test_a_training_that_goes_back_is_scored_by_what_it_repeats(epoch: int) -> None:
    """A function's own checkpoint is older than the last epoch, or there is none."""
    kept, again = (MemberResults(Scoring("accuracy", True, "best"), "a", keep_all=True, may_go_back=True) for _ in "ab")
    array = Array(kept, every=epoch or 9)
    for score in (0.1, 0.3, 0.2) if epoch == 2 else (0.1, 0.3, 0.2, 0.9):
        array.train(a=score)
    again.restore(json.loads(json.dumps(kept.state())), kept.folder)
    again.go_back("a", epoch)
    scores = again.scores["a"]
    expected = {0: (None, None, None), 2: (0.3, 0.3, 2), 4: (0.9, 0.9, 4)}
    assert (scores.last, scores.best, scores.best_epoch) == expected[epoch]
    assert again.names() == (["a"] if epoch else []), "its parameters are of its best epoch"
    again.close()
    kept.close()


def test_a_training_that_goes_far_back_keeps_its_best_epoch() -> None:
    """A function that reports each step, and saves seldom."""
    kept = MemberResults(Scoring("accuracy", True, "best"), "a", keep_all=True, may_go_back=True)
    array = Array(kept, every=1400)
    for epoch in range(1, 2700):
        array.train(a=1.0 if epoch == 10 else epoch / 10_000)
    assert len(kept.state()["earlier"]["a"]) <= MOST_EARLIER + 1
    kept.go_back("a", 1400)
    scores = kept.scores["a"]
    assert (scores.last, scores.last_epoch, scores.best, scores.best_epoch) == (0.14, 1400, 1.0, 10)
    kept.close()
