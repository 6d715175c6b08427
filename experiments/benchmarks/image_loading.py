"""Trainings that are bound by the decoding of images: packed, with what is decoded shared and without, and by hand.

    python -m experiments.benchmarks.image_loading [--images 600] [--epochs 3] [--rounds 3]

JPEG files of 500 x 375 pixels, made for the benchmark of smooth noise, are decoded to 64 x 64, and a small
convolutional network is trained on them. 1, 2, 4 and 8 trainings run at once, each in a process of its own that has
imported torch, with one CPU thread:

by_hand    a loop in plain PyTorch with a `DataLoader`, which decodes in the training's process
uncached   raygpu, `dataset_splits(cache=False)`: each training decodes each image in each epoch
shared     raygpu, `dataset_splits(cache=True)`: the first that comes decodes an image, and all read it from then on
array      raygpu, one process that trains them as one array, `cache=True`

The figures are samples/s of all trainings together, from the common start to the last one's end, so the first epoch,
in which the cache is filled, counts; `later` are those of the epochs after the first. Ways take turns; medians of
rounds.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import nn

from experiments.benchmarks import record
from experiments.torch_networks import Pixels
from raygpu import Splits, TorchExperiment, dataset_splits
from raygpu.devices.host import num_cpus
from raygpu.search.trials import Trial
from raygpu.training.base import Settings

SIZE, BATCH, CLASSES = 64, 32, 4
NUMBERS = (1, 2, 4, 8)
LONGEST_S = 600
"""Seconds after which a training that has told nothing counts as failed."""
WAYS = ("by_hand", "uncached", "shared", "array")


class Photographs(torch.utils.data.Dataset[Any]):
    """Decoded, cut to a square and scaled, uint8 (3, SIZE, SIZE)."""

    def __init__(self, folder: str, count: int) -> None:
        self.folder, self.targets = folder, [i % CLASSES for i in range(count)]

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, row: int) -> Any:
        from PIL import Image, ImageOps

        with Image.open(Path(self.folder, f"{row}.jpg")) as image:
            pixels = np.asarray(ImageOps.fit(image.convert("RGB"), (SIZE, SIZE)))
        return torch.from_numpy(pixels.transpose(2, 0, 1).copy()), self.targets[row]


def network() -> nn.Sequential:
    layers = [
        Pixels([0.5] * 3, [0.25] * 3),
        nn.Conv2d(3, 8, 5, stride=4),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2),
        nn.ReLU(),
    ]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, CLASSES))


class Network(TorchExperiment):
    def __init__(self, splits: Splits) -> None:
        self.splits = splits

    def data(self) -> Splits:
        return self.splits

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return network()


def write_photographs(folder: Path, count: int) -> None:
    from PIL import Image

    generator = np.random.default_rng(0)
    for i in range(count):
        coarse = generator.integers(0, 256, (24, 32, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize((500, 375), Image.Resampling.BICUBIC).save(folder / f"{i}.jpg", quality=90)


def by_hand(photographs: Photographs, number: int, epochs: int) -> list[float]:
    """Train one network; return the moment at which each epoch ended."""
    torch.manual_seed(number)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model, ended = network().to(device), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loader = torch.utils.data.DataLoader(photographs, BATCH, shuffle=True)
    for _ in range(epochs):
        for inputs, targets in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs.to(device)), targets.to(device)).backward()
            optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        ended.append(time.monotonic())
    return ended


def by_raygpu(splits: Splits, numbers: list[int], epochs: int) -> list[float]:
    """Train one network, or several as an array; return the moment at which each epoch ended."""
    from raygpu.training.fused.model_array import TorchArray
    from raygpu.training.torch.solo import TorchSolo

    settings = Settings(epochs, num_cpus() if len(numbers) > 1 else 1, "float32", Path())
    trials = [Trial(f"t{i:04d}", i, {"lr": 0.05, "batch_size": BATCH}) for i in numbers]
    if len(trials) == 1:
        training: Any = TorchSolo(Network(splits), splits, trials[0], settings)
    else:
        training = TorchArray(Network(splits), splits, trials, settings)
        training.audits = False
    ended = []
    while training.run_epoch() is not None:
        ended.append(time.monotonic())
    return ended


def _process(work: Any, barrier: Any, results: Any) -> None:
    from raygpu.training.fused import model_array  # noqa: F401 - imports are no part of a training

    multiprocessing.set_start_method("fork", force=True)  # of processes that read, as in a process of its own
    torch.set_num_threads(1)
    torch.optim.SGD([torch.zeros(1)], lr=0.1)  # the first one imports torch's compiler
    barrier.wait()
    results.put((time.monotonic(), work()))


def run(way: str, number: int, photographs: Photographs, epochs: int) -> dict[str, float]:
    """Return samples/s of so many trainings at once, of all epochs and of those after the first."""
    held = Photographs(photographs.folder, BATCH)
    splits = dataset_splits(photographs, held, cache=way != "uncached")
    works: list[Any]
    if way == "by_hand":
        works = [partial(by_hand, photographs, i, epochs) for i in range(number)]
    elif way == "array":
        works = [partial(by_raygpu, splits, list(range(number)), epochs)]
    else:
        works = [partial(by_raygpu, splits, [i], epochs) for i in range(number)]
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(len(works)), context.Queue()
    processes = [context.Process(target=_process, args=(work, barrier, results)) for work in works]
    for process in processes:
        process.start()
    told = [results.get(timeout=LONGEST_S) for _ in processes]
    for process in processes:
        process.join()
    began, ended = min(start for start, _ in told), max(moments[-1] for _, moments in told)
    samples = number * len(photographs)
    later_s = max(moments[-1] - moments[0] for _, moments in told)
    return {"whole": samples * epochs / (ended - began), "later": samples * (epochs - 1) / later_s}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=600)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    found: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        write_photographs(Path(folder), arguments.images)
        photographs = Photographs(folder, arguments.images)
        for turn in range(arguments.rounds):
            for number in NUMBERS:
                for way in WAYS if turn % 2 == 0 else reversed(WAYS):
                    if way == "array" and number == 1:
                        continue
                    rates = run(way, number, photographs, arguments.epochs)
                    found.setdefault(f"{number} {way}", []).append({name: round(rate) for name, rate in rates.items()})
                    print(turn, number, way, found[f"{number} {way}"][-1], flush=True)
    medians = {
        case: {name: median(each[name] for each in rounds) for name in ("whole", "later")}
        for case, rounds in sorted(found.items())
    }
    ratios = {
        f"{case} over by_hand": {
            name: round(median(a[name] / b[name] for a, b in zip(rounds, found[by], strict=True)), 2)
            for name in ("whole", "later")
        }
        for case, rounds in sorted(found.items())
        if case != (by := f"{case.split()[0]} by_hand")
    }
    results = {"ratios": ratios, "samples_per_s": medians, "rounds": found}
    record.write("image_loading", results, vars(arguments), "gpu" if torch.cuda.is_available() else None)


if __name__ == "__main__":
    main()
