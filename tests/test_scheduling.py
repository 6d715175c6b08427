"""The order of test files, and what is said of their time."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.scheduling import (
    ALONE_BESIDE_SLOW_TESTS,
    RUN_S,
    SECONDS,
    SLOW_SECONDS,
    SPLIT,
    TOGETHER,
    in_order,
    scope,
    unit,
)
from tests.time_spent import kind, slowest


def test_files_that_share_processes_are_one() -> None:
    assert scope("tests/training/keras/test_split.py") == scope("tests/training/distributed/test_keras_ranks.py")
    assert scope("tests/training/torch/test_pipeline.py") == scope("tests/training/distributed/test_ranks_gradient.py")
    assert scope("tests/test_sweep.py") == scope("tests/test_train.py") != scope("tests/engines/tune/test_engine.py")
    assert scope("tests/test_doctor.py") == "tests/test_doctor.py"


def test_beside_slow_tests_most_files_go_one_by_one() -> None:
    assert scope("tests/test_sweep.py", slow=True) == "tests/test_sweep.py"
    assert scope("tests/training/keras/test_split.py", slow=True) == scope("tests/training/keras/test_split.py")
    assert set(ALONE_BESIDE_SLOW_TESTS) < set(TOGETHER.values())
    slowest, quick = next(iter(SLOW_SECONDS)), "tests/cli/test_flags.py"
    files = Counter({quick: 1, slowest: 0})
    assert (in_order(files, slow=True)[0], in_order(files)[0]) == (slowest, quick)


def test_beside_slow_tests_the_tests_of_the_longest_files_go_one_by_one() -> None:
    pages = [f"tests/docs/test_searching_pages.py::test_every_block[{page}]" for page in ("repeats", "fused")]
    assert [unit(page, slow=True) for page in pages] == pages
    assert {unit(page) for page in pages} == {"tests/docs/test_searching_pages.py"}
    sweeps = ["tests/test_sweep.py::test_a", "tests/test_sweep.py::test_b"]
    assert {unit(each, slow=True) for each in sweeps} == {"tests/test_sweep.py"}


def test_what_takes_longest_begins_first_then_what_trains_and_files_that_belong_together_are_neighbours() -> None:
    keras, ranks = "tests/training/keras/test_split.py", "tests/training/distributed/test_keras_ranks.py"
    quick, folds, new = "tests/cli/test_flags.py", "tests/training/test_folds.py", "tests/test_new.py"
    zoo, other = "tests/contracts/test_zoo.py", "tests/test_other.py"
    files = Counter({quick: 0, keras: 0, folds: 0, new: 1, ranks: 0, other: 0, zoo: 0})
    assert SECONDS[zoo] > SECONDS[ranks] > RUN_S
    assert in_order(files) == [zoo, keras, ranks, new, folds, quick, other]
    files[ranks] += 9
    assert in_order(files)[:2] == [keras, ranks], "slow runs, which are not in SECONDS, count too"


def test_files_of_the_lists_exist() -> None:
    root = Path(__file__).parents[1]
    assert not [file for file in [*SECONDS, *SLOW_SECONDS, *SPLIT] if not (root / file).is_file()]
    assert not [start for start in TOGETHER if not [*root.glob(f"{start}*")]]


def test_the_slowest_files_are_named_and_the_others_counted() -> None:
    assert slowest(Counter({"a": 12.4, "b": 3.0, "c": 90.0})) == [
        "    90 s  c",
        "    12 s  a",
        "     3 s  other files (1)",
    ]


def test_programs_are_counted_by_kind() -> None:
    assert [kind(each) for each in ("/x/ray/gcs_server", "/usr/bin/python3.11", "redis-server")] == [
        "Rays", "Python processes", "other programs",
    ]  # fmt: skip
