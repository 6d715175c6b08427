"""MNIST and CIFAR-10 from the files that `keras.datasets` keeps, and made-up data of such shapes.

Importing keras takes seconds and may bring TensorFlow with it, neither of which a torch sweep is to bear. So the files
are read here. Where there are none, `keras.datasets` downloads them in a process of its own, which also checks their
hash. Images stay uint8, 0 to 255, in memory: as float32, CIFAR-10 would be four times as large on every device; the
models' first layer scales them.
"""

from __future__ import annotations

import importlib.util
import os
import pickle
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

from raygpu import Splits
from raygpu.errors import one_line

DOWNLOAD = """
import socket, sys
socket.setdefaulttimeout(30)
from keras.datasets import {module}
try:
    {module}.load_data()
except Exception as error:
    sys.exit(str(error))
"""
BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
UNREADABLE = (OSError, EOFError, KeyError, ValueError, pickle.UnpicklingError, tarfile.TarError, zipfile.BadZipFile)


@dataclass(frozen=True, slots=True)
class Kept:
    """A data set as `keras.datasets.<module>` keeps it: the file in the folder `datasets`, and where it comes from."""

    name: str
    module: str
    file: str
    url: str

    @property
    def path(self) -> Path:
        return Path(os.environ.get("KERAS_HOME") or "~/.keras").expanduser() / "datasets" / self.file


MNIST = Kept("MNIST", "mnist", "mnist.npz", "https://storage.googleapis.com/tensorflow/tf-keras-datasets/mnist.npz")
CIFAR10 = Kept(
    "CIFAR-10",
    "cifar10",
    "cifar-10-batches-py-target_archive",
    "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
)
UNPACKED = Path("cifar-10-batches-py-target") / "cifar-10-batches-py"
"""Beside CIFAR-10's archive: what Keras unpacks it to."""


def mnist() -> Splits:
    """Images uint8 (n, 28, 28) and digits int64 (n,): 50,000 to train and 10,000 to validate.

    Both are of the training images: the test images are for models that no search has chosen by them.
    Raises FileNotFoundError where the file is neither here nor within reach, and ValueError where it is damaged.
    """
    images, labels = _read(_present(MNIST), _read_mnist, (28, 28))
    return Splits.of(images, labels, validation=1 / 6, seed=0)


def cifar10(channels: Literal["first", "last"]) -> Splits:
    """Images uint8, (n, 3, 32, 32) or (n, 32, 32, 3), and classes int64 (n,): 45,000 to train, 5,000 to validate.

    Split and raising as `mnist`.
    """
    unpacked = CIFAR10.path.parent / UNPACKED
    if all((unpacked / name).is_file() for name in BATCHES):
        images, labels = _read(unpacked, _read_batches, (3, 32, 32))
    else:
        images, labels = _read(_present(CIFAR10), _read_archive, (3, 32, 32))
    if channels == "last":
        images = np.ascontiguousarray(images.transpose(0, 2, 3, 1))
    return Splits.of(images, labels, validation=0.1, seed=0)


def synthetic(num_train: int, num_validation: int, shape: tuple[int, ...], *, pixels: bool = True) -> Splits:
    """Made-up data of ten classes: seeded noise, against which nothing can be learnt.

    pixels: uint8, 0 to 255; otherwise float32, 0 to 1.
    """
    rng = np.random.default_rng(0)

    def part(count: int) -> tuple[np.ndarray, np.ndarray]:
        size = (count, *shape)
        noise = rng.integers(0, 256, size, dtype=np.uint8) if pixels else rng.random(size, dtype=np.float32)
        return noise, rng.integers(0, 10, count)

    return Splits(*part(num_train), *part(num_validation))


def _present(kept: Kept) -> Path:
    """The file, downloaded if it is not here yet."""
    path = kept.path
    if not path.is_file() and (cause := _download(kept, path)) is not None:
        raise FileNotFoundError(
            f"{kept.name} is not here: put {kept.url} at {path} (KERAS_HOME moves that folder); {cause}"
        )
    return path


def _download(kept: Kept, path: Path) -> str | None:
    """Have Keras download the file; why it could not."""
    if importlib.util.find_spec("keras") is None:
        return "to have it downloaded, pip install keras"
    # With PyTorch, where there is one, Keras starts without TensorFlow.
    backend = "torch" if importlib.util.find_spec("torch") else "tensorflow"
    print(f"downloading {kept.name} to {path}", file=sys.stderr)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Moved in one piece when it is whole: nobody reads half a file, whenever this process ends.
        with tempfile.TemporaryDirectory(dir=path.parent, prefix="download-") as home:
            ended = subprocess.run(
                [sys.executable, "-c", DOWNLOAD.format(module=kept.module)],
                env={**os.environ, "KERAS_HOME": home, "KERAS_BACKEND": backend},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
            )
            if ended.returncode:
                lines = ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"]
                return f"its download failed: {lines[-1].rpartition(' -- ')[2]}"
            (Path(home) / "datasets" / kept.file).replace(path)
    except OSError as error:
        return f"its download failed: {one_line(error)}"
    return None


def _read(
    path: Path, read: Callable[[Path], tuple[np.ndarray, np.ndarray]], shape: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Images uint8 (n, *shape) and classes int64 (n,)."""
    try:
        images, labels = read(path)
    except (*UNREADABLE, zlib.error) as error:
        raise ValueError(f"{path} cannot be read; delete it, and it is downloaded again ({one_line(error)})") from error
    if images.dtype != np.uint8 or images.shape != (len(labels), *shape):
        raise ValueError(
            f"{path} holds {images.dtype} {images.shape} for {len(labels)} labels; wanted: uint8 and (n, *{shape})"
        )
    return images, labels.astype(np.int64)


def _read_mnist(path: Path) -> tuple[np.ndarray, np.ndarray]:
    with np.load(path, allow_pickle=False) as arrays:
        return arrays["x_train"], arrays["y_train"]


def _read_batches(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    batches = []
    for name in BATCHES:
        with (folder / name).open("rb") as file:
            batches.append(_batch(file))
    return _joined(batches)


def _read_archive(path: Path) -> tuple[np.ndarray, np.ndarray]:
    found: dict[str, tuple[np.ndarray, list[int]]] = {}
    with tarfile.open(path) as archive:
        for member in archive:  # in its own order: going back in a compressed file means reading it again
            name = Path(member.name).name
            if name in BATCHES and (file := archive.extractfile(member)) is not None:
                found[name] = _batch(file)
    return _joined([found[name] for name in BATCHES])


def _joined(batches: list[tuple[np.ndarray, list[int]]]) -> tuple[np.ndarray, np.ndarray]:
    images = np.concatenate([images for images, _ in batches])
    return images.reshape(-1, 3, 32, 32), np.concatenate([labels for _, labels in batches])


def _batch(file: IO[bytes]) -> tuple[np.ndarray, list[int]]:
    values = _Arrays(file, encoding="bytes").load()
    return values[b"data"], values[b"labels"]


class _Arrays(pickle.Unpickler):
    """CIFAR-10's files are pickles by format, and a pickle can name any function: here, those that make an array."""

    allowed = frozenset(
        {
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy._core.multiarray", "_reconstruct"),
        }
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.allowed:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which no such file does")
        return super().find_class(module, name)
