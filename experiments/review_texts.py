"""Reviews as the public Amazon data sets have them, as documents of word numbers; and made-up ones with planted tastes.

A line of the file is a JSON object, plain or in gzip, with the names of 2014 and 2018 (overall, reviewText, reviewerID,
asin) or of 2023 (rating, text, user_id, parent_asin). Lines without one of the four are left out and counted.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from raygpu import Splits

NAMES = {
    "stars": ("overall", "rating"),
    "text": ("reviewText", "text"),
    "user": ("reviewerID", "user_id"),
    "item": ("asin", "parent_asin"),
}
"""Names in the file of what a review consists of, in the order in which they are looked for."""
GZIP = b"\x1f\x8b"
PADDING, UNKNOWN = 0, 1
"""Numbers in a document for what follows its end and for a word outside of the vocabulary."""
WORD = re.compile(r"[a-z0-9']+")


@dataclass(frozen=True, slots=True)
class Review:
    """A rating of an item by a user, 1 to 5 stars, and its words in lower case."""

    stars: float
    words: tuple[str, ...]
    user: str
    item: str


@dataclass(frozen=True, slots=True)
class Shape:
    """The size of the arrays that reviews become."""

    num_words: int
    """Size of the vocabulary, with the numbers for padding and unknown words."""
    length: int
    """Words of a user's and of an item's document."""


def read(path: Path) -> list[Review]:
    """Read the reviews of a file; print the number of lines that were left out, and why.

    Raises FileNotFoundError where there is no file, and ValueError where it is torn or holds no review.
    """
    found: list[Review] = []
    left_out: Counter[str] = Counter()
    num_lines = 0
    try:
        with _opened(path) as file:
            for line in file:
                num_lines += 1
                parsed = _review(line)
                if isinstance(parsed, str):
                    left_out[parsed] += 1
                else:
                    found.append(parsed)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path}: torn after {num_lines:,} lines ({error}); get the file again") from error
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in left_out.most_common())
    if not found:
        raise ValueError(f"{path}: no review in {num_lines:,} lines{f' ({reasons})' if reasons else ''}")
    if left_out:
        print(f"{path}: {left_out.total():,} of {num_lines:,} lines left out: {reasons}", file=sys.stderr)
    return found


def _opened(path: Path) -> IO[bytes]:
    file = path.open("rb")
    compressed = file.read(2) == GZIP
    file.seek(0)
    return gzip.open(file, "rb") if compressed else file  # type: ignore[return-value]


def _review(line: bytes) -> Review | str:
    """Return the review of a line, or why it is none."""
    try:
        values = json.loads(line)
    except ValueError:
        return "not JSON"
    if not isinstance(values, dict):
        return "no JSON object"
    found: dict[str, Any] = {}
    for part, names in NAMES.items():
        found[part] = next((values[name] for name in names if values.get(name) not in (None, "")), None)
        if found[part] is None:
            return f"without {' or '.join(names)}"
    try:
        stars = float(found["stars"])
    except (TypeError, ValueError):
        return "with stars that are no number"
    if not 1 <= stars <= 5:
        return "with stars outside of 1 to 5"
    words = tuple(WORD.findall(str(found["text"]).lower()))
    return Review(stars, words, str(found["user"]), str(found["item"])) if words else "without words"


def splits(reviews: Sequence[Review], shape: Shape, *, validation: float = 0.2, seed: int = 0) -> Splits:
    """Split reviews at random, and write each as the documents of its user and its item.

    Inputs: `user` and `item`, int32 (n, length). Targets: stars, float32 (n,). A document holds the words of the other
    *training* reviews of the same user, or of the same item: never those of the review whose stars are asked for.
    """
    from sklearn.model_selection import train_test_split

    train, held = train_test_split(np.arange(len(reviews)), test_size=validation, random_state=seed)
    train, held = np.sort(train), np.sort(held)
    numbers = vocabulary((reviews[place] for place in train), shape.num_words)
    written = {int(place): np.array([numbers.get(word, UNKNOWN) for word in reviews[place].words], np.int32)
               for place in train}  # fmt: skip
    by_user, by_item = defaultdict(list), defaultdict(list)
    for place in map(int, train):
        by_user[reviews[place].user].append(place)
        by_item[reviews[place].item].append(place)

    def inputs(places: np.ndarray) -> dict[str, np.ndarray]:
        """Return the documents of some reviews."""
        found = {name: np.full((len(places), shape.length), PADDING, np.int32) for name in ("user", "item")}
        for row, place in enumerate(map(int, places)):
            review = reviews[place]
            for name, others in (("user", by_user[review.user]), ("item", by_item[review.item])):
                document = _document((written[other] for other in others if other != place), shape.length)
                found[name][row, : len(document)] = document
        return found

    def stars(places: np.ndarray) -> np.ndarray:
        """Return the ratings of some reviews."""
        return np.array([reviews[place].stars for place in places], np.float32)

    return Splits(inputs(train), stars(train), inputs(held), stars(held))


def vocabulary(reviews: Iterable[Review], num_words: int) -> dict[str, int]:
    """Number the most frequent words, from the most frequent one, after padding and unknown."""
    counts: Counter[str] = Counter()
    for review in reviews:
        counts.update(review.words)
    frequent = sorted(counts, key=lambda word: (-counts[word], word))[: num_words - 2]
    return {word: number for number, word in enumerate(frequent, UNKNOWN + 1)}


def _document(reviews: Iterator[np.ndarray], length: int) -> np.ndarray:
    """Join reviews, the first ones of the file first, and cut them off at `length` words."""
    joined: list[np.ndarray] = []
    count = 0
    for words in reviews:
        joined.append(words[: length - count])
        count += len(joined[-1])
        if count == length:
            break
    return np.concatenate(joined) if joined else np.empty(0, np.int32)


NUM_TOPICS = 6


def planted(count: int, *, seed: int = 0) -> list[Review]:
    """Make up reviews whose stars follow from tastes, qualities and habits that their words tell.

    Each user loves some topics and hates others and gives many stars or few; each item has a topic and a quality. The
    words tell of them in every review, among words without meaning; the stars have noise of a quarter of a star.
    """
    rng = np.random.default_rng(seed)
    num_users, num_items = max(4, count // 12), max(4, count // 16)
    tastes = rng.choice((-1.0, 1.0), (num_users, NUM_TOPICS))
    habits = rng.choice((-0.7, 0.7), num_users)
    topics, qualities = rng.integers(0, NUM_TOPICS, num_items), rng.choice((-0.9, 0.9), num_items)
    found = []
    for user, item in zip(rng.integers(0, num_users, count), rng.integers(0, num_items, count), strict=True):
        topic, taste = topics[item], tastes[user, topics[item]]
        stars = 3.0 + habits[user] + qualities[item] + 0.6 * taste + rng.normal(0, 0.25)
        telling = [
            f"topic{topic}",
            f"{'love' if taste > 0 else 'hate'}{topic}",
            "sturdy" if qualities[item] > 0 else "broken",
            "kind" if habits[user] > 0 else "strict",
        ]
        words = [*telling, *(f"word{number}" for number in rng.zipf(1.3, 12) % 500)]
        rng.shuffle(words)
        found.append(Review(float(np.clip(np.round(stars), 1, 5)), tuple(words), f"u{user}", f"i{item}"))
    return found
