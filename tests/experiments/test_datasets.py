"""MNIST and CIFAR-10 from small files where Keras keeps the real ones, and what is said where there is none."""

from __future__ import annotations

import importlib.util
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments import datasets
from experiments.datasets import BATCHES, CIFAR10, MNIST, UNPACKED
from raygpu.experiment import Splits
from tests.image_files import folder, save_cifar, save_mnist

__all__ = ["folder"]

ROOT = Path(__file__).parents[2]
needs_keras = pytest.mark.skipif(importlib.util.find_spec("keras") is None, reason="keras is not installed")


def same_images(splits: Splits, expected: np.ndarray) -> bool:
    """Whether both parts together hold these images, in any order."""
    both = np.concatenate([splits.train_inputs, splits.validation_inputs])  # type: ignore[arg-type]
    return sorted(image.tobytes() for image in both) == sorted(image.tobytes() for image in expected)


def shapes(splits: Splits) -> list[tuple[Any, ...]]:
    parts = (splits.train_inputs, splits.train_targets, splits.validation_inputs, splits.validation_targets)
    return [(part.shape, part.dtype.name) for part in parts if isinstance(part, np.ndarray)]


def test_mnist(folder: Path) -> None:
    made = save_mnist(folder / "mnist.npz")
    splits = datasets.mnist()
    assert shapes(splits) == [((50, 28, 28), "uint8"), ((50,), "int64"), ((10, 28, 28), "uint8"), ((10,), "int64")]
    assert same_images(splits, made)
    where = [image.tobytes() for image in made].index(splits.train_inputs[0].tobytes())  # type: ignore[index]
    assert splits.train_targets[0] == where % 10, "an image keeps its label"  # type: ignore[index]
    assert np.array_equal(splits.train_inputs, datasets.mnist().train_inputs)


@pytest.mark.parametrize("packed", [True, False], ids=["archive", "unpacked"])
@pytest.mark.parametrize("channels", ["first", "last"])
def test_cifar(folder: Path, packed: bool, channels: Any) -> None:
    made = save_cifar(folder, packed=packed)
    splits = datasets.cifar10(channels)
    shape = (3, 32, 32) if channels == "first" else (32, 32, 3)
    assert shapes(splits) == [((90, *shape), "uint8"), ((90,), "int64"), ((10, *shape), "uint8"), ((10,), "int64")]
    assert same_images(splits, made if channels == "first" else made.transpose(0, 2, 3, 1))
    assert splits.train_inputs.flags.c_contiguous  # type: ignore[union-attr]


def test_half_unpacked_is_read_from_the_archive(folder: Path) -> None:
    save_cifar(folder, packed=False)
    (folder / UNPACKED / BATCHES[3]).unlink()
    made = save_cifar(folder, packed=True)
    assert same_images(datasets.cifar10("first"), made)


class Command:
    def __reduce__(self) -> Any:
        return os.mkdir, ("was-run",)


def test_a_pickle_that_names_a_function_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_cifar(folder, packed=False)
    monkeypatch.chdir(folder)
    (folder / UNPACKED / BATCHES[2]).write_bytes(pickle.dumps({b"data": Command(), b"labels": []}))
    with pytest.raises(ValueError, match=r"cannot be read; delete it, .*names \w+\.mkdir"):
        datasets.cifar10("first")
    assert not (folder / "was-run").exists()


def test_damaged_and_foreign_files(folder: Path) -> None:
    path = folder / "mnist.npz"
    save_mnist(path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=f"{path} cannot be read; delete it, and it is downloaded again"):
        datasets.mnist()
    save_mnist(path, 60, 8, 8)
    with pytest.raises(
        ValueError, match=r"holds uint8 \(60, 8, 8\) for 60 labels; wanted: uint8 and \(n, \*\(28, 28\)\)"
    ):
        datasets.mnist()
    np.savez(path, x_train=np.array([Command()]), y_train=np.zeros(1))
    with pytest.raises(ValueError, match="cannot be read"):
        datasets.mnist()
    save_cifar(folder, packed=True)
    whole = (folder / CIFAR10.file).read_bytes()
    (folder / CIFAR10.file).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="cannot be read"):
        datasets.cifar10("last")


@needs_keras
def test_files_lie_where_this_keras_keeps_them() -> None:
    spec = importlib.util.find_spec("keras")
    assert spec is not None
    assert spec.submodule_search_locations
    source = Path(spec.submodule_search_locations[0]) / "src" / "datasets"
    text = (source / "mnist.py").read_text()
    assert MNIST.url.removesuffix(MNIST.file) in text
    assert f'load_data(path="{MNIST.file}")' in text
    text = (source / "cifar10.py").read_text()
    assert f'"{CIFAR10.url}"' in text
    folder, inner = UNPACKED.parts
    assert f'"{folder}"' in text
    assert f'"{inner}"' in text
    assert f"{folder}_archive" == CIFAR10.file
    assert 'f"{fname}_archive"' in (source.parent / "utils" / "file_utils.py").read_text()


@needs_keras
def test_neither_file_nor_network(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Through the command: one line, which says where the file may be put."""
    pytest.importorskip("torch")
    from raygpu import sweep

    assert sweep.main([str(ROOT / "conf/sweep/mnist.toml"), "--dry-run", "--runs-dir", str(folder / "runs")]) == 2
    *_, line = capsys.readouterr().err.strip().splitlines()
    assert line.startswith(
        "raygpu: experiment: experiments.mnist:Mlp: data() failed: FileNotFoundError: MNIST is not here"
    )
    assert f"put {MNIST.url} at {folder / 'mnist.npz'}" in line
    assert "its download failed: " in line
    assert "refused" in line
    assert list(folder.iterdir()) == [], "nothing half done is left"


def test_no_keras(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(FileNotFoundError, match=r"CIFAR-10 is not here: put .* at .*pip install keras"):
        datasets.cifar10("first")


def test_no_folder_can_be_made(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "file").touch()
    monkeypatch.setenv("KERAS_HOME", str(folder / "file"))
    with pytest.raises(FileNotFoundError, match="its download failed: NotADirectoryError"):
        datasets.mnist()


def fake_keras(folder: Path, monkeypatch: pytest.MonkeyPatch, load_data: str) -> None:
    """A keras in the downloading process whose `mnist.load_data` is this."""
    package = folder.parent / "fake" / "keras" / "datasets"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "mnist.py").write_text(f"import os, shutil, sys\ndef load_data():\n    {load_data}\n")
    monkeypatch.setenv("PYTHONPATH", str(package.parents[1]))


def test_what_keras_downloads_stays(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = save_mnist(folder.parent / "far-away.npz")
    target = "os.environ['KERAS_HOME'] + '/datasets"
    copy = f"os.mkdir({target}'); shutil.copy({str(folder.parent / 'far-away.npz')!r}, {target}/mnist.npz')"
    fake_keras(folder, monkeypatch, copy)
    folder.rmdir()
    assert same_images(datasets.mnist(), made)
    assert [path.name for path in folder.iterdir()] == ["mnist.npz"]
    monkeypatch.setattr(subprocess, "run", None)
    assert same_images(datasets.mnist(), made), "once is enough"


def test_a_keras_that_keeps_it_elsewhere(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_keras(folder, monkeypatch, "pass")
    with pytest.raises(FileNotFoundError, match="its download failed: FileNotFoundError"):
        datasets.mnist()


def test_torch_never_meets_tensorflow(folder: Path) -> None:
    """A sweep's driver up to the plan, and a trial."""
    pytest.importorskip("torch")
    save_mnist(folder / "mnist.npz")
    script = f"""
import sys
from pathlib import Path
from experiments.mnist import Mlp
from raygpu import sweep
from raygpu.training.base import Settings
from raygpu.training.torch.solo import TorchSolo
from raygpu.search.trials import Trial
assert sweep.main(["conf/sweep/mnist.toml", "--dry-run", "--gpu.mode", "fused", "--runs-dir", {str(folder)!r}]) == 0
trial = Trial("t0000", 0, {{"hidden": 4, "lr": 0.1}})
assert TorchSolo(Mlp(), Mlp().data(), trial, Settings(1, 1, "float32", Path())).run_epoch().num_samples == 50
sys.exit(", ".join({{"tensorflow", "keras"}} & set(sys.modules)) or None)
"""
    ended = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "fused mode" in ended.stdout


def test_synthetic_data_is_seeded_and_without_pattern() -> None:
    made, again = (datasets.synthetic(600, 200, (4, 4)) for _ in range(2))
    assert np.array_equal(made.train_inputs, again.train_inputs)
    assert (made.train_inputs.min(), made.train_inputs.max()) == (0, 255)  # type: ignore[union-attr]
    assert set(made.validation_targets) == set(range(10))
    floats = datasets.synthetic(600, 200, (4,), pixels=False).train_inputs
    assert floats.dtype == np.float32  # type: ignore[union-attr]
    assert 0 <= floats.min() < 0.01 < 0.99 < floats.max() < 1  # type: ignore[union-attr]
