"""What goes to the nodes of a cluster, and where code is found there."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from pathspec import PathSpec

import raygpu
from raygpu.config.source import Source
from raygpu.engines.cluster import runtime_env
from raygpu.errors import BadInput
from raygpu.storage import BEGUN_IN, JOB_VARIABLE

ARRIVE = "import pickle, sys; print(pickle.load(sys.stdin.buffer).folder)"


def test_a_worker_finds_the_code_below_where_it_begins(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    source = runtime_env.travelled(Source("torch", "mine:Mine", str(tmp_path / "inner")), tmp_path)
    assert source.folder == "inner"
    elsewhere = subprocess.run(
        [sys.executable, "-c", ARRIVE],
        input=pickle.dumps(source),
        cwd="/",
        env={"PYTHONPATH": str(Path(runtime_env.__file__).parents[3])},
        capture_output=True,
        check=True,
    )
    assert elsewhere.stdout == b"/inner\n"
    here = Source("torch", "mine:Mine", str(tmp_path))
    assert pickle.loads(pickle.dumps(here)) == here, "an absolute folder stays what it is"


def test_a_file_by_its_absolute_path(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    source = Source("function", f"{tmp_path}/train.py:train", str(tmp_path))
    assert runtime_env.travelled(source, tmp_path).name == "train.py:train"
    with pytest.raises(BadInput, match=r"is outside of .*, which is what goes to the nodes"):
        runtime_env.travelled(source, tmp_path / "other")


def test_a_pickled_experiment_travels_by_value(tmp_path: Path) -> None:
    """Its file is below runs, which is not sent to the nodes."""
    file = tmp_path / "runs" / ".experiments" / "train-0.pkl"
    file.parent.mkdir(parents=True)
    file.write_bytes(pickle.dumps(len))
    source = Source("function", str(file), str(tmp_path))
    sent = pickle.dumps(runtime_env.travelled(source, tmp_path))
    file.unlink()
    assert pickle.loads(sent).resolve() is len
    with pytest.raises(BadInput, match="cannot be read"):
        source.resolve()


def test_a_command_stays_as_it_is(tmp_path: Path) -> None:
    source = Source("command", "python train.py:x --lr {lr}", str(tmp_path))
    assert runtime_env.travelled(source, tmp_path).name == source.name


def test_in_a_job_the_code_is_where_it_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(JOB_VARIABLE, "{}")
    assert runtime_env.travelled(Source("torch", "a:B", str(BEGUN_IN / "inner")), tmp_path).folder == "inner"
    with pytest.raises(BadInput, match="is outside of"):
        runtime_env.travelled(Source("torch", "a:B", str(tmp_path)), tmp_path)


def test_what_goes_along(tmp_path: Path) -> None:
    found = runtime_env.runtime_env(tmp_path)
    assert found["working_dir"] == str(tmp_path)
    assert [Path(module).name for module in found["py_modules"]] == ["raygpu"]
    assert "/runs/" in found["excludes"]
    assert not any("KEY" in name or "TOKEN" in name for name in found["env_vars"])
    assert found["env_vars"]["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID", "the GPUs that Ray and NVML count"


def test_all_of_raygpu_goes_along() -> None:
    """Ray leaves the same patterns out of each module that it sends as out of the working directory."""
    package = Path(raygpu.__file__).parent
    left_out = PathSpec.from_lines("gitignore", runtime_env.EXCLUDES)
    assert not [file for file in package.rglob("*.py") if left_out.match_file(str(file.relative_to(package)))]
