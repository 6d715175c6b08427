"""A training that goes on has the metric, the data and the batch of its start, or is refused before Ray starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raygpu import train
from raygpu.config import TrainConfig
from raygpu.records.run_directory import RunDirectory
from raygpu.workflow.resumed_training import begun_training

CONFIG = {
    "name": "mine",
    "experiment": "tests.train_cases:Small",
    "epochs": 4,
    "metric": "loss",
    "accumulate": 2,
    "hyperparameters": {"lr": 0.1, "batch_size": 16},
}


@pytest.fixture
def begun(tmp_path: Path) -> RunDirectory:
    folder = RunDirectory.create(tmp_path, "mine")
    folder.write_config(TrainConfig.model_validate(CONFIG), tmp_path, kind="train")
    folder.write_run(begun_training(folder))
    return folder


@pytest.fixture
def resumed(monkeypatch: pytest.MonkeyPatch) -> list[TrainConfig]:
    """The configurations that trainings went on with; nothing is trained."""
    taken: list[TrainConfig] = []

    def run(config: TrainConfig, **options: Any) -> train.TrainingResult:
        """Note the configuration."""
        taken.append(config)
        return train.TrainingResult({}, None, False)

    monkeypatch.setattr(train, "run", run)
    return taken


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ('metric = "loss"', 'metric = "accuracy"', 'metric: read "accuracy"; the training began with "loss"'),
        ('metric = "loss"', 'metric = "loss"\ndirection = "max"', 'direction: read "max"; the training began with'),
        ("seed = 0", "seed = 5", "seed: read 5; the training began with 0"),
        ("fraction = 1.0", "fraction = 0.5", "data.fraction: read 0.5; the training began with 1.0"),
        ("accumulate = 2", "accumulate = 1", "accumulate: read 1; the training began with 2"),
        ("accumulate = 2", "accumulate = 2\nglobal_batch = 9", "global_batch: read 9; the training began with nothing"),
        ("batch_size = 16", "batch_size = 8", "hyperparameters.batch_size: read 8; the training began with 16"),
        ("batch_size = 16", "", "hyperparameters.batch_size: read nothing; the training began with 16"),
        ("cases:Small", "cases:Named", 'experiment: read "tests.train_cases:Named"; the training began with'),
    ],
)
def test_a_field_that_cannot_change_is_refused_in_a_line(
    before: str,
    after: str,
    said: str,
    begun: RunDirectory,
    resumed: list[TrainConfig],
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = begun.config.read_text()
    assert before in text
    begun.config.write_text(text.replace(before, after))
    assert train.main(["--resume", str(begun.path)]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert "set it back, or begin a new training" in err
    assert len(err.splitlines()) == 1
    assert not resumed


def test_as_it_began_and_with_what_may_change_it_goes_on(begun: RunDirectory, resumed: list[TrainConfig]) -> None:
    assert train.main(["--resume", str(begun.path)]) == 0
    text = begun.config.read_text()
    for before, after in (("epochs = 4", "epochs = 8"), ("lr = 0.1", "lr = 0.01\nmicro_batch_size = 4")):
        assert before in text
        begun.config.write_text(text.replace(before, after))
        assert train.main(["--resume", str(begun.path)]) == 0
    assert [config.epochs for config in resumed] == [4, 8, 4]


def test_a_training_of_an_earlier_version_goes_on(begun: RunDirectory, resumed: list[TrainConfig]) -> None:
    begun.write_run({"begun": None})
    assert train.main(["--resume", str(begun.path)]) == 0


def test_smaller_parts_of_the_noted_batch_go_on(begun: RunDirectory, resumed: list[TrainConfig]) -> None:
    """A resume takes the noted batch, on fewer devices too, where each has a larger share."""
    begun.write_run({"global_batch": 32})
    begun.config.write_text(begun.config.read_text().replace("accumulate = 2", "accumulate = 8"))
    assert train.main(["--resume", str(begun.path)]) == 0
    assert [config.accumulate for config in resumed] == [8]
