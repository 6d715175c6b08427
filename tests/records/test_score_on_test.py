from __future__ import annotations

import json

import pytest

from raygpu.records.run_files import as_json
from raygpu.records.score_on_test import ScoreOnTest

ONE = ScoreOnTest.of(360, {"t0006": {"loss": 0.2, "accuracy": 0.97222}})
THREE = ScoreOnTest.of(
    360,
    {"t0006-1": {"accuracy": 0.9}, "t0006-2": {"accuracy": 0.8}, "t0006-3": {"accuracy": 0.7}},
    winners=3,
    epochs={"t0006-1": 5, "t0006-2": 5, "t0006-3": 5},
)


def test_a_single_model_has_no_standard_error() -> None:
    assert ONE.metrics == {"test/loss": 0.2, "test/accuracy": 0.97222}
    assert ONE.standard_errors == {}
    assert ONE.line("accuracy") == "test accuracy 0.97222 (of 360 samples never used by the search)"
    assert ONE.line("validation/loss", "the training") == "test loss 0.2 (of 360 samples never used by the training)"
    assert ONE.line("train/loss").startswith("test loss 0.2 "), "a metric that an evaluation does not have"


def test_several_models_have_a_mean_and_its_standard_error() -> None:
    assert THREE.metrics["test/accuracy"] == pytest.approx(0.8)
    assert THREE.standard_errors["test/accuracy"] == pytest.approx(0.1 / 3**0.5)
    assert THREE.fact("accuracy") == ("test accuracy", "0.8 ± 0.058")
    assert THREE.line("accuracy") == (
        "test accuracy 0.8 ± 0.058 (the mean of 3 models, of 360 samples never used by the search; they have scored 2"
        " earlier winners)"
    )


def test_it_comes_back_from_a_file_whatever_its_numbers_are() -> None:
    for score in (ONE, THREE):
        assert ScoreOnTest.read(json.loads(json.dumps(as_json(score.as_dict())))) == score
    diverged = ScoreOnTest.of(4, {"t0000": {"loss": float("inf")}})
    assert ScoreOnTest.of(4, {"a": {"loss": 1.0}, "b": {"loss": float("nan")}}).standard_errors == {}
    again = ScoreOnTest.read(json.loads(json.dumps(as_json(diverged.as_dict()))))
    assert again is not None
    assert again.line("loss").startswith("test loss nan")
    assert ScoreOnTest.read(None) is None


def test_models_are_known_by_their_trials() -> None:
    names = ("t0006-1", "t0006-2", "t0006-3")
    assert THREE.covers(dict.fromkeys(names, 5))
    assert not THREE.covers(dict.fromkeys(names[:2], 5)), "a mean over others is not theirs"
    assert not THREE.covers(dict.fromkeys((*names, "t0006-4"), 5))


def test_a_score_is_of_one_set_at_its_epochs() -> None:
    trained = {"t0006-1": 2, "t0006-2": 2}
    by_trial = {name: {"loss": 1.0} for name in trained}
    whole = ScoreOnTest.of(4, by_trial, epochs=trained, num_trained=2)
    assert whole.is_of(trained)
    assert not whole.is_of(trained | {"t0006-2": 3})
    assert not whole.is_of(trained | {"t0006-3": 2}), "another repeat has ended since"
    assert not whole.is_of({"t0007-1": 2, "t0007-2": 2})
    part = ScoreOnTest.of(4, {"t0006-1": {"loss": 1.0}}, epochs={"t0006-1": 2}, num_trained=2)
    assert part.is_of(trained)
    assert not part.is_of({"t0006-1": 2})


def test_models_are_known_by_their_epochs() -> None:
    score = ScoreOnTest.of(4, {"t0000": {"loss": 1.0}}, epochs={"t0000": 10})
    assert ScoreOnTest.read(json.loads(json.dumps(as_json(score.as_dict())))) == score
    assert score.covers({"t0000": 10})
    assert not score.covers({"t0000": 60})
