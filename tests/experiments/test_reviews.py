"""Reviews from files of every kind that the public data sets have, and the model that predicts their stars."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments import review_texts
from experiments.review_texts import PADDING, UNKNOWN, Review, Shape
from experiments.reviews import KerasTwoTowers, TwoTowers
from raygpu.experiment import Splits
from raygpu.search.trials import Trial
from raygpu.training.base import Settings

OLD = {"reviewerID": "a", "asin": "x", "overall": 5.0, "reviewText": "Very good, isn't it?"}
NEW = {"user_id": "a", "parent_asin": "x", "rating": 5.0, "text": "Very good, isn't it?"}
SMALL = Shape(num_words=400, length=24)
HP = {"embedding": 8, "filters": 16, "latent": 8, "optimizer": "adam", "lr": 5e-3, "batch_size": 32}


def lines(*values: Any) -> bytes:
    return b"".join((value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n" for value in values)


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
@pytest.mark.parametrize("review", [OLD, NEW], ids=["2018", "2023"])
def test_every_format_is_read(tmp_path: Path, review: dict[str, Any], pack: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "reviews"
    path.write_bytes(pack(lines(review)))
    assert review_texts.read(path) == [Review(5.0, ("very", "good", "isn't", "it"), "a", "x")]


def test_bad_lines_are_left_out_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "reviews.json"
    bad = [b"{'overall': 5}", [1], OLD | {"overall": None}, OLD | {"overall": 6}, OLD | {"overall": "many"}]
    path.write_bytes(lines(*bad, OLD, b"", OLD | {"reviewText": "!"}, {**OLD, "asin": ""}))
    assert len(review_texts.read(path)) == 1
    assert capsys.readouterr().err == (
        f"{path}: 8 of 9 lines left out: 2 not JSON, 1 no JSON object, 1 without overall or rating, 1 with stars"
        " outside of 1 to 5, 1 with stars that are no number, 1 without words, 1 without asin or parent_asin\n"
    )


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (gzip.compress(lines(*[OLD] * 500))[:-20], "torn after"),
        (b"\x1f\x8bnothing more", "torn after 0 lines"),
        (b"", "no review in 0 lines"),
        (b"no\n", r"no review in 1 lines \(1 not JSON\)"),
    ],
    ids=["torn", "no gzip", "empty", "none"],
)
def test_a_file_without_reviews_is_refused(tmp_path: Path, content: bytes, fault: str) -> None:
    path = tmp_path / "reviews.json.gz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"{path}: {fault}"):
        review_texts.read(path)


def test_where_there_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REVIEWS", str(tmp_path / "none.json.gz"))
    with pytest.raises(FileNotFoundError, match=r"none\.json\.gz: put a file .* --data\.synthetic goes without"):
        TwoTowers().data()


def test_a_file_is_the_experiments_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "reviews.json"
    path.write_bytes(lines(*({**OLD, "reviewerID": str(number % 3)} for number in range(10))))
    monkeypatch.setenv("REVIEWS", str(path))
    splits = TwoTowers().data()
    assert splits.num_train == 8
    assert splits.train_inputs["user"].shape == (8, 128)  # type: ignore[index]


def test_documents_are_the_other_training_reviews() -> None:
    """Each review has a word and stars of its own, so that both tell which review a row is of."""
    reviews = [Review(1 + n / 10, (f"w{n:02d}",), f"u{n % 4}", f"i{n % 3}") for n in range(24)]
    made = review_texts.splits(reviews, Shape(num_words=100, length=40))
    train, held = ([round(10 * (stars - 1)) for stars in np.asarray(targets)]
                   for targets in (made.train_targets, made.validation_targets))  # fmt: skip
    assert sorted(train + held) == list(range(24))
    numbers = review_texts.vocabulary((reviews[n] for n in train), 100)
    for rows, inputs in ((train, made.train_inputs), (held, made.validation_inputs)):
        for row, n in enumerate(rows):
            for name, every in (("user", 4), ("item", 3)):
                others = [numbers[f"w{other:02d}"] for other in train if other % every == n % every and other != n]
                document = inputs[name][row]  # type: ignore[index]
                assert document.tolist() == others + [PADDING] * (40 - len(others))


def test_a_document_is_cut_off() -> None:
    reviews = [Review(3.0, (f"w{n}",) * 3, "u", "i") for n in range(10)]
    made = review_texts.splits(reviews, Shape(num_words=3, length=4))
    documents = made.train_inputs["user"]  # type: ignore[index]
    assert (documents != PADDING).all()
    assert UNKNOWN in documents


def test_the_vocabulary_has_the_most_frequent_words() -> None:
    reviews = [Review(3.0, ("b", "a", "a", "c"), "u", "i"), Review(3.0, ("b", "a"), "u", "i")]
    assert review_texts.vocabulary(reviews, 4) == {"a": 2, "b": 3}


def learnt(solo: Any, splits: Splits, epochs: int) -> float:
    """The validation error as a share of that of predicting the mean."""
    for _ in range(epochs):
        result = solo.run_epoch()
    targets = np.asarray(splits.validation_targets)
    by_the_mean = np.square(targets - np.asarray(splits.train_targets).mean()).mean()
    return float(result.metrics["validation/mse"] / by_the_mean)


def test_planted_tastes_are_learnt() -> None:
    from raygpu.training.torch.solo import TorchSolo

    splits = review_texts.splits(review_texts.planted(1500), SMALL)
    solo = TorchSolo(TwoTowers(), splits, Trial("t0000", 0, HP), Settings(3, 1, "float32", Path()))
    assert learnt(solo, splits, 3) <= 0.8


def test_keras_learns_the_same() -> None:
    pytest.importorskip("tensorflow")
    from raygpu.training.keras.solo import KerasSolo

    splits = review_texts.splits(review_texts.planted(1500), SMALL)
    solo = KerasSolo(KerasTwoTowers(), splits, Trial("t0000", 0, HP), Settings(3, 1, "float32", Path()))
    assert learnt(solo, splits, 3) <= 0.8
    one, other = solo.model.get_layer("user_tower"), TwoTowers().model(HP).user_tower
    assert one.count_params() == sum(parameter.numel() for parameter in other.parameters())


def test_the_towers_can_be_fused() -> None:
    from raygpu.training.fused.dry_run import obstacle

    splits = review_texts.splits(review_texts.planted(120), SMALL)
    trials = [Trial(Trial.name(place), place, {**HP, "lr": 1e-3 * (place + 1)}) for place in range(2)]
    assert obstacle(TwoTowers(), splits, trials) is None
