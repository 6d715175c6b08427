from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from raygpu.config.sections import ScriptSection
from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from raygpu.training.callable.script import ScriptTraining

Make = Callable[..., ScriptTraining]
MakePrinting = Callable[[str, dict[str, str]], ScriptTraining]


@pytest.fixture
def make_script(tmp_path: Path) -> Iterator[Make]:
    made: list[ScriptTraining] = []

    def make(body: str, metrics: dict[str, str], epochs: int | None = None, **hp: object) -> ScriptTraining:
        (tmp_path / "train.py").write_text(body)
        section = ScriptSection(metrics=metrics, folder="shared")
        settings = Settings(epochs, 1, "float32", tmp_path)
        made.append(ScriptTraining("python train.py", str(tmp_path), section, Trial("t0000", 7, hp), settings))
        return made[-1]

    yield make
    for training in made:
        training.close()


@pytest.fixture
def script(make_script: Make) -> Make:
    return lambda body, epochs=None, **hp: make_script(body, {}, epochs, **hp)


@pytest.fixture
def printing(make_script: Make) -> MakePrinting:
    """Make a script with `[script] metrics`."""
    return make_script
