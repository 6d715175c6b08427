"""Settings that nothing reads are told, whatever else the file has."""

from __future__ import annotations

from typing import Any

import pytest

from raygpu.config import SweepConfig
from raygpu.search.space import parse
from raygpu.workflow.unused_settings import unused_settings

SPACE = {"lr": {"uniform": [0.1, 1.0]}, "layers": {"choice": [1, 2]}, "width": {"choice": [3], "when": {"layers": 2}}}


def lines(**values: Any) -> list[str]:
    given = {"trials": 4, "epochs": 9, "metric": "loss", "space": SPACE}
    what = {} if "command" in values else {"experiment": "m:f"}
    config = SweepConfig.model_validate(given | what | values)
    return unused_settings(config, parse(config.space))


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"stopping": {"grace_epochs": 3}}, "stopping.grace_epochs has no effect without stopping.algorithm"),
        ({"stopping": {"min_delta": 0.1}}, "stopping.min_delta has no effect without stopping.patience"),
        (
            {"stopping": {"algorithm": "halving", "brackets": 2}},
            'stopping.brackets has no effect beside stopping.algorithm = "halving"',
        ),
        ({"start_best": 9}, "start_best has no effect without start_from"),
        ({"search": {"generation": 4}}, 'search.generation has no effect beside search.algorithm = "random"'),
        ({"gpu": {"mode": "process", "width": 4}}, 'gpu.width has no effect beside gpu.mode = "process"'),
        (
            {"command": "python t.py --width {width}"},
            "space.lr: command has no {lr}, so only a script that reads the variable RAYGPU_HYPERPARAMETERS sees it",
        ),
        (
            {"epochs": 3, "stopping": {"algorithm": "halving", "grace_epochs": 5}},
            "stopping.algorithm has no effect where epochs = 3: it could first stop a trial after epoch 5",
        ),
        (
            {"epochs": 1, "stopping": {"algorithm": "hyperband"}},
            "stopping.algorithm has no effect where epochs = 1: it could first stop a trial after epoch 1",
        ),
        (
            {"stopping": {"algorithm": "median", "grace_epochs": 9}},
            "stopping.algorithm has no effect where epochs = 9: it could first stop a trial after epoch 9",
        ),
        (
            {"stopping": {"patience": 8}},
            "stopping.patience has no effect where epochs = 9: it could first stop a trial after epoch 9",
        ),
        (
            {"stopping": {"patience": 2, "grace_epochs": 10}},
            "stopping.patience has no effect where epochs = 9: it could first stop a trial after epoch 10",
        ),
    ],
)
def test_what_nothing_reads_is_a_line(values: dict[str, Any], line: str) -> None:
    assert lines(**values) == [line]


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"stopping": {"algorithm": "hyperband", "brackets": 2, "grace_epochs": 2, "reduction": 2}},
        {"stopping": {"patience": 3, "min_delta": 0.1, "grace_epochs": 2}},
        {"stopping": {"algorithm": "halving", "grace_epochs": 8, "patience": 7}},
        {"stopping": {"algorithm": "median", "grace_epochs": 100}, "epochs": None},
        {"command": "python t.py --lr {lr} --width {width}"},
    ],
)
def test_what_is_read_is_no_line(values: dict[str, Any]) -> None:
    assert lines(**values) == []
