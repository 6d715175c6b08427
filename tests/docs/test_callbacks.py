"""The pages on Lightning and Hugging Face: their code trains for real, and their configuration is read."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from raygpu import reporting
from raygpu.config import SweepConfig, load
from tests.docs.blocks import blocks, written

PAGES = {
    "lightning": ("lightning", {"lr": 0.01, "hidden": 32}, {"train_loss", "accuracy"}, "accuracy"),
    "huggingface": ("transformers", {"lr": 3e-3, "hidden": 16}, {"eval_loss", "eval_accuracy"}, "eval_accuracy"),
}


class Stop(BaseException):
    """What a sweep does inside of `report` to end a trial."""


class Sweep:
    """The sweep's end of the channel, for one function: keeps reports and the last state, and stops after `limit`."""

    def __init__(self, limit: int, state: Any = None) -> None:
        self.limit = limit
        self.state = state
        self.reports: list[dict[str, float]] = []

    def report(self, metrics: dict[str, float]) -> None:
        self.reports.append(metrics)
        if len(self.reports) == self.limit:
            raise Stop

    def checkpoint(self, state: Any) -> None:
        self.state = state

    def load(self) -> Any:
        return self.state


@pytest.fixture(params=PAGES)
def page(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    pytest.importorskip("torch")
    library = pytest.importorskip(PAGES[request.param][0])
    if library.__name__ == "transformers" and importlib.util.find_spec("accelerate") is None:
        pytest.skip("transformers.Trainer needs accelerate")
    yield request.param
    reporting.use(None)


def function(page: str, num_blocks: int) -> Callable[[dict[str, Any]], None]:
    """`train` as the first blocks of the page's train.py define it."""
    scope: dict[str, Any] = {"__name__": f"page_{page}"}
    for block in [block for block in blocks(page) if block.file == "train.py"][:num_blocks]:
        exec(compile(block.text, f"{page}.md", "exec"), scope)
    train: Callable[[dict[str, Any]], None] = scope["train"]
    return train


def test_each_epoch_is_reported(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, hp, names, score = PAGES[page]
    function(page, 1)({**hp, "epochs": 3, "seed": 0})
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith('{"')]
    reports = [json.loads(line) for line in lines]
    assert len(reports) == 3
    assert all(names <= set(report) for report in reports)
    assert all(isinstance(value, float) for report in reports for value in report.values())
    assert reports[-1][score] > max(reports[0][score], 0.7)


@pytest.mark.slow
def test_a_stopped_trial_goes_on(page: str) -> None:
    """3 epochs equal 2, a stop, and 1: a training begun anew would report 3 epochs and a lower score."""
    _, hp, _, score = PAGES[page]
    train = function(page, 2)
    config = {**hp, "epochs": 3, "seed": 0}
    whole, first = Sweep(limit=0), Sweep(limit=2)
    reporting.use(whole)
    train(config)
    reporting.use(first)
    with pytest.raises(Stop):
        train(config)
    second = Sweep(limit=0, state=first.state)
    reporting.use(second)
    train(config)
    assert len(first.reports) == 2
    assert len(second.reports) == 1
    assert second.reports[0][score] == pytest.approx(whole.reports[2][score], abs=0.03)


def test_the_configuration_is_read_and_fits(page: str, tmp_path: Path) -> None:
    _, hp, _, score = PAGES[page]
    file = tmp_path / "sweep.toml"
    file.write_text(written(page, "sweep.toml"))
    config = load(file, {}, SweepConfig)
    assert config.experiment == "train.py:train"
    assert config.metric == score
    assert set(config.space) == set(hp)
