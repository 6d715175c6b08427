"""Every configuration in the repository is sound, and says what runs it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from raygpu.config import PackConfig, PlaceConfig, ProblemConfig, SweepConfig, TrainConfig, load, read_toml, unread_line
from raygpu.config.source import locate
from raygpu.experiment import Experiment
from raygpu.pack import DEFAULT
from raygpu.search.command_line import placeholders
from raygpu.search.samplers import sampler
from raygpu.search.space import parse
from raygpu.training.distributed.batch_split import spread
from raygpu.workflow.validation import prepare_pack

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "conf" / "sweep").glob("*.toml"))
TRAINS = sorted((ROOT / "conf" / "train").glob("*.toml"))
PACKS = sorted((ROOT / "conf" / "pack").glob("*.toml"))
PLACES = sorted((ROOT / "conf" / "place").glob("*.toml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_sweep(path: Path) -> None:
    config = load(path, {}, SweepConfig)
    search = sampler(config, parse(config.space, config.search.algorithm))
    assert search.num_trials >= 1
    if config.experiment is not None:
        source, _ = locate(config.experiment, ROOT)
        assert source.kind in ("torch", "keras", "function")
    else:
        assert placeholders(str(config.command)) <= {*config.space, "epochs", "seed", "trial_id"}
    assert "python -m raygpu.sweep" in path.read_text()


@pytest.mark.parametrize("path", TRAINS, ids=lambda path: path.stem)
def test_train(path: Path) -> None:
    config = load(path, {}, TrainConfig)
    source, code = locate(str(config.experiment), ROOT)
    assert source.kind == ("keras" if "keras" in path.stem else "torch")
    assert code.model(config.hyperparameters) is not None
    assert spread(config, 1, 1000).lines
    assert f"python -m raygpu.train conf/train/{path.name}" in path.read_text()


@pytest.mark.parametrize(
    ("schema", "files"),
    [(SweepConfig, FILES), (TrainConfig, TRAINS), (PackConfig, FILES + PACKS), (PlaceConfig, PLACES)],
)
def test_all_keys_are_read(schema: type[ProblemConfig], files: list[Path]) -> None:
    assert [unread_line(path, read_toml(path), schema) for path in files] == [None] * len(files)


@pytest.mark.parametrize("path", PACKS, ids=lambda path: path.stem)
def test_pack(path: Path) -> None:
    config = load(path, {}, PackConfig)
    hyperparameters = parse(config.space).draw(config.seed, 0)
    source, code = locate(str(config.experiment), ROOT)
    assert source.kind in ("torch", "keras")
    assert config.epochs
    assert {type(code.model(hyperparameters)).__module__.split(".")[0]} <= {"torch", "keras"}
    assert type(code).synthetic is not Experiment.synthetic
    assert f"python -m raygpu.pack conf/pack/{path.name}" in path.read_text() or path == ROOT / DEFAULT


@pytest.mark.parametrize("path", PLACES, ids=lambda path: path.stem)
def test_place(path: Path) -> None:
    config = load(path, {}, PlaceConfig)
    _, code = locate(str(config.experiment), ROOT)
    names = {name for name, _ in code.model(config.hyperparameters).named_modules()}
    assert all(part in names for parts in config.placements.values() for part in parts)
    assert f"python -m raygpu.place conf/place/{path.name}" in path.read_text()


def test_there_is_a_file_for_each_published_curve() -> None:
    assert {path.stem for path in PACKS} == {
        "digits",
        "digits_keras",
        "mnist",
        "mnist_keras",
        "cifar_resnet18",
        "cifar_resnet50",
        "cifar_resnet50_cpu",
        "cifar_resnet50_keras",
        "saturating",
        "saturating_cpu",
    }
    assert (ROOT / DEFAULT).is_file()
    keras = load(ROOT / "conf/pack/mnist_keras.toml", {}, PackConfig)
    assert {"process", "split"} <= set(keras.chosen_ways)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_sweeps_file_says_what_to_pack(path: Path) -> None:
    config = load(path, {"tracking.enabled": "false"}, PackConfig)
    trial = prepare_pack(config, path.stem).trial
    assert set(trial.hyperparameters) <= set(config.space)


def test_the_documents_name_files_that_exist() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text()
    named = set(re.findall(r"conf/[\w/]+\.toml", text))
    assert named == {path.relative_to(ROOT).as_posix() for path in (*FILES, *TRAINS, *PACKS, *PLACES)}
    readme = (ROOT / "README.md").read_text()
    for page in ("docs/lightning.md", "docs/huggingface.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE"):
        assert f"({page})" in readme
        assert (ROOT / page).is_file()
