"""From an experiment's name to the user's code."""

from __future__ import annotations

import pickle
import random
import subprocess
import sys
from pathlib import Path

import pytest

from raygpu.config.source import locate, require_there
from raygpu.errors import BadInput

MODULE = """
raise_on_import = 1 / 0

from os import getcwd as imported

class Mine: ...

def trained(config): ...

made = Mine
"""


@pytest.mark.parametrize("name", ["Mine", "trained", "made", "imported"])
def test_a_name_that_its_source_defines_is_there_without_an_import(name: str, tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    for module in ("mine.py", "package/__init__.py", "package/inner.py"):
        (tmp_path / module).write_text(MODULE)
    for module in ("mine.py", "mine", "package", "package.inner", "package/inner.py"):
        require_there(f"{module}:{name}", tmp_path)


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("gone.py:Mine", "gone.py: no such file"),
        ("gone_module_of_ours:Mine", "no module 'gone_module_of_ours'"),
        ("plain_of_ours:Other", "plain_of_ours has no 'Other'; it has: Mine"),
        ("mine.py:Other", "cannot be imported: ZeroDivisionError"),
        ("broken.py:Mine", "cannot be imported: SyntaxError"),
        ("mine.py", 'write "package.module:Name"'),
    ],
)
def test_what_is_not_there_is_told_at_once(name: str, fault: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MODULE)
    (tmp_path / "plain_of_ours.py").write_text("class Mine: ...\n")
    (tmp_path / "broken.py").write_text("class Mine(:\n")
    with pytest.raises(BadInput, match=r"^experiment: ") as raised:
        require_there(name, tmp_path)
    assert fault in str(raised.value)


def test_what_a_source_does_not_show_is_imported(tmp_path: Path) -> None:
    (tmp_path / "dynamic_of_ours.py").write_text("globals()['Mine'] = lambda config: None\n")
    require_there("dynamic_of_ours:Mine", tmp_path)
    assert "dynamic_of_ours" in sys.modules


def test_there_may_be_no_experiment(tmp_path: Path) -> None:
    require_there(None, tmp_path)
    require_there("pickled.pkl", tmp_path)


def test_one_of_many_names_is_guessed(tmp_path: Path) -> None:
    (tmp_path / "many.py").write_text("".join(f"def name_{i}(config): ...\n" for i in range(9)) + "def train(c): ...\n")
    with pytest.raises(BadInput, match=r"has no 'trian'; it has: name_0, .*, name_7, ... \(did you mean 'train'\?\)$"):
        require_there("many.py:trian", tmp_path)


DRAWS = """
import random
import numpy as np
import torch
from raygpu import TorchExperiment

B = [random.random(), float(np.random.normal()), float(torch.randn(()))]

class Mine(TorchExperiment):
    def __init__(self):
        self.drawn = [*B, random.random(), float(np.random.normal()), float(torch.randn(()))]

    def data(self): ...

    def model(self, hp): ...

def trained(config):
    return [random.random(), float(np.random.normal()), float(torch.randn(()))]
"""
PRINTS_DRAWN = """
import pickle
import random
import subprocess
import sys
from pathlib import Path
from raygpu.config.source import locate
assert "torch" not in sys.modules
print(locate("draws.py:Mine", Path(sys.argv[1]))[1].drawn)
"""


def test_what_an_experiment_draws_at_import_and_in_its_constructor_is_the_same_in_every_process(tmp_path: Path) -> None:
    import numpy as np
    import torch

    (tmp_path / "draws.py").write_text(DRAWS)
    command = [sys.executable, "-c", PRINTS_DRAWN, str(tmp_path)]
    elsewhere = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # type: ignore[index]
    source, code = locate("draws.py:Mine", tmp_path)
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before  # type: ignore[index]
    random.random()
    assert vars(source.resolve()) == vars(code)
    assert elsewhere == f"{vars(code)['drawn']}\n"
    assert len(set(vars(code)["drawn"])) == 6


def test_a_constructor_draws_the_same_where_its_module_is_imported_already(tmp_path: Path) -> None:
    (tmp_path / "draws_of_ours.py").write_text(DRAWS)
    source, code = locate("draws_of_ours:Mine", tmp_path)
    assert vars(source.resolve()) == vars(code)


def test_generators_that_the_module_of_a_function_seeds_stay_so_where_it_trains(tmp_path: Path) -> None:
    (tmp_path / "seeds.py").write_text(f"{DRAWS}\nrandom.seed(0), np.random.seed(0), torch.manual_seed(0)\n")
    source, _ = locate("seeds.py:trained", tmp_path)
    assert source.resolve()({}) == source.resolve()({})


UNSEEDED = """
import os
import numpy as np
from raygpu import TorchExperiment

FREE = np.random.default_rng(int(os.environ["CHANCE"])).normal(size=(3, 4))

class Mine(TorchExperiment):
    seeded = np.random.normal(size=3)

    def __init__(self):
        self.zeros = np.zeros(3)

    def data(self): ...

    def model(self, hp): ...
"""


def test_an_array_that_is_another_one_in_a_worker_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHANCE", "1")
    (tmp_path / "free.py").write_text(UNSEEDED)
    source, _ = locate("free.py:Mine", tmp_path)
    assert source.constants.keys() == {"FREE", "Mine.seeded", "self.zeros"}
    source = pickle.loads(pickle.dumps(source))
    monkeypatch.setattr("raygpu.config.source._compared", set())  # as in a worker
    monkeypatch.setenv("CHANCE", "2")
    for _ in range(2):  # trials of a worker
        line = r"free\.py:Mine: FREE is not the same array in all processes.*default_rng\(0\)"
        with pytest.raises(BadInput, match=line):
            source.resolve()
    monkeypatch.setenv("CHANCE", "1")
    source.resolve()
    monkeypatch.setenv("CHANCE", "2")
    source.resolve()  # compared already: a training may have changed it
