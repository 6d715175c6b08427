"""What counts as a damaged checkpoint, and the trials' own checkpoints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raygpu.engines.tune.array_checkpoint import DamagedCheckpoint, extract, reading
from raygpu.engines.tune.member_results import MemberResults
from raygpu.records.run_directory import PROGRESS
from raygpu.records.trial_checkpoints import kept_epoch
from raygpu.search.scoring import Scoring, TrialScores
from raygpu.storage import Storage


@pytest.mark.parametrize(
    "error", [FileNotFoundError("progress.json"), json.JSONDecodeError("cut", "{", 1), EOFError("ran out of input")]
)
def test_a_file_that_is_gone_or_cut_is_damage(error: Exception) -> None:
    with pytest.raises(DamagedCheckpoint), reading():
        raise error


@pytest.mark.parametrize(
    "error",
    [OSError(5, "input/output error"), MemoryError(), RuntimeError("Error(s) in loading state_dict for Linear")],
)
def test_a_fault_that_may_pass_or_is_of_the_code_stays_as_it_is(error: Exception) -> None:
    with pytest.raises(type(error)) as raised, reading():
        raise error
    assert raised.value is error


@pytest.mark.parametrize(("kind", "last_epoch", "noted"), [("model", 9, 9), ("model", None, 0), ("function", 9, None)])
def test_the_checkpoint_of_a_trial_under_way_names_its_epoch(
    tmp_path: Path, kind: str, last_epoch: int | None, noted: int | None
) -> None:
    """A function saves its state when it likes."""
    kept = MemberResults(Scoring("accuracy", True), ["t0000"], keep_all=False, may_go_back=kind == "function")
    kept.scores["t0000"] = TrialScores(0.5, last_epoch=last_epoch)
    if kept.earlier is not None:
        kept.earlier["t0000"] = [kept.scores["t0000"]]
    array, own = tmp_path / "array", tmp_path / "t0000"
    array.mkdir()
    own.mkdir()
    (array / PROGRESS).write_text(json.dumps({**kept.state(), "under_way": ["t0000"]}))
    (array / "checkpoint.pt").touch()
    extract(array, {"t0000": own})
    assert (own / "checkpoint.pt").is_file()
    assert not (own / PROGRESS).exists()
    assert kept_epoch(Storage(str(own))) == noted
