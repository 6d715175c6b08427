"""Small files of MNIST and CIFAR-10, made as the real ones are, where Keras keeps those."""

from __future__ import annotations

import io
import pickle
import socket
import tarfile
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from experiments.datasets import BATCHES, CIFAR10, UNPACKED


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where Keras keeps its files, empty; and no network."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{unused.getsockname()[1]}"
    for name in ("https_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, nobody)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    path = tmp_path / "keras" / "datasets"
    path.mkdir(parents=True)
    return path


def images(count: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, *shape), dtype=np.uint8)


def save_mnist(path: Path, count: int = 60, *shape: int) -> np.ndarray:
    made = images(count, *(shape or (28, 28)))
    labels = (np.arange(count) % 10).astype(np.uint8)
    np.savez(path, x_train=made, y_train=labels, x_test=made[:2], y_test=labels[:2])
    return made


class Python2(pickle._Pickler):  # type: ignore[name-defined]
    """Pickles as Python 2 wrote the real files: byte strings as its `str`, and NumPy's functions by their old names."""

    dispatch: ClassVar = dict(pickle._Pickler.dispatch)  # type: ignore[attr-defined]

    def save_bytes(self, value: bytes) -> None:
        self.write(b"T" + len(value).to_bytes(4, "little") + value)
        self.memoize(value)

    def save_global(self, value: Any, name: str | None = None) -> None:
        module = value.__module__.replace("numpy._core", "numpy.core")
        self.write(f"c{module}\n{value.__name__}\n".encode())
        self.memoize(value)

    dispatch[bytes] = save_bytes
    dispatch[type(np.array)] = dispatch[type(pickle.dumps)] = save_global
    dispatch[type] = save_global


def batch(pixels: np.ndarray, labels: list[int]) -> bytes:
    file = io.BytesIO()
    Python2(file, protocol=2).dump({b"data": pixels.reshape(len(pixels), -1), b"labels": labels, b"batch_label": b"x"})
    return file.getvalue()


def save_cifar(folder: Path, *, packed: bool, per_batch: int = 20) -> np.ndarray:
    """Five small batches as the archive holds them, or as Keras unpacks it. The images (n, 3, 32, 32)."""
    made = images(5 * per_batch, 3, 32, 32)
    parts = {
        name: batch(made[i * per_batch : (i + 1) * per_batch], [n % 10 for n in range(per_batch)])
        for i, name in enumerate(BATCHES)
    }
    if not packed:
        (folder / UNPACKED).mkdir(parents=True)
        for name, content in parts.items():
            (folder / UNPACKED / name).write_bytes(content)
        return made
    with tarfile.open(folder / CIFAR10.file, "w:gz") as archive:
        for name, content in reversed([("test_batch", b"is not read"), *parts.items()]):
            member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return made
