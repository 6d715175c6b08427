from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from raygpu.config.sections import ScriptSection
from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from raygpu.training.callable.script import ScriptTraining

Make = Callable[..., ScriptTraining]
SHARED = ScriptSection(folder="shared")


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Make]:
    made: list[ScriptTraining] = []

    def make(body: str, epochs: int | None = None, **hp: object) -> ScriptTraining:
        (tmp_path / "train.py").write_text(body)
        settings = Settings(epochs, 1, "float32", tmp_path)
        made.append(ScriptTraining("python train.py", str(tmp_path), SHARED, Trial("t0000", 7, hp), settings))
        return made[-1]

    yield make
    for training in made:
        training.close()
