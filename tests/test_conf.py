"""Every configuration in the repository is sound, and says what runs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from raygpu.config import SweepConfig, load
from raygpu.experiment import locate
from raygpu.search import proposer
from raygpu.space import parse
from raygpu.training.script import placeholders

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "conf" / "sweep").glob("*.toml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_sweep(path: Path) -> None:
    config = load(path, {}, SweepConfig)
    search = proposer(config, parse(config.space, config.search.algorithm))
    assert search.num_trials >= 1
    if config.experiment is not None:
        source, _ = locate(config.experiment, ROOT)
        assert source.kind in ("torch", "keras", "function")
    else:
        assert placeholders(str(config.command)) <= {*config.space, "epochs", "seed", "trial_id"}
    assert "python -m raygpu.sweep" in path.read_text()


def test_the_readme_names_files_that_exist() -> None:
    text = (ROOT / "README.md").read_text()
    for path in FILES:
        if path.stem in ("digits", "digits_cnn"):
            continue
        assert f"conf/sweep/{path.name}" in text
    for page in ("docs/lightning.md", "docs/huggingface.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE"):
        assert f"({page})" in text
        assert (ROOT / page).is_file()
