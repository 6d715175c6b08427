"""Images in a folder for each class, as `flowers/daisy/0001.jpg`: a small residual network.

    IMAGES=~/flowers python -m raygpu.sweep conf/sweep/image_folder.toml

The files are decoded while the networks train, each once on a node: all trials there share what was decoded. Images are
cut to a square of `SIZE` pixels and stay uint8; random crops and mirroring are done on the device, in `augment`.
Needs Pillow.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from raygpu import Splits, TorchExperiment, dataset_splits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

SIZE = 64
"""Height and width of the images in pixels."""
PADDING = 8
"""Pixels by which a random crop moves at most."""
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
"""Of the pixels of photographs (ImageNet), scaled to 0..1, for each channel."""
ENDINGS = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp"}
NUM_SYNTHETIC = 2_000


class ImageFolder:
    """A map-style data set: images uint8 (3, SIZE, SIZE) and classes, numbered in the order of the folders' names.

    `torchvision.datasets.ImageFolder`, with a transform that makes tensors of one size, does as well.
    """

    def __init__(self, folder: Path) -> None:
        """List the files. Raises FileNotFoundError without two folders of images."""
        names = sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
        self.files = [
            (path, number)
            for number, name in enumerate(names)
            for path in sorted((folder / name).rglob("*"))
            if path.suffix.lower() in ENDINGS
        ]
        self.targets = [number for _, number in self.files]
        if len(set(self.targets)) < 2:
            raise FileNotFoundError(f"{folder}: no images in folders of two classes at least; IMAGES names another")

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, row: int) -> tuple[np.ndarray, int]:
        from PIL import Image, ImageOps

        path, target = self.files[row]
        with Image.open(path) as image:
            image.draft("RGB", (SIZE, SIZE))  # a JPEG is decoded no larger than needed
            square = ImageOps.fit(image.convert("RGB"), (SIZE, SIZE))
        return np.asarray(square).transpose(2, 0, 1), target


class Network(TorchExperiment):
    """`blocks` residual blocks in each of three stages, of `channels` maps in the first, to tell `classes` classes."""

    def data(self) -> Splits:
        return dataset_splits(ImageFolder(Path(os.environ.get("IMAGES") or "images").expanduser()), 0.2)

    def synthetic(self) -> Splits:
        from experiments.datasets import synthetic

        return synthetic(NUM_SYNTHETIC, NUM_SYNTHETIC // 5, (3, SIZE, SIZE))

    def augment(self, inputs: Any, hp: Mapping[str, Any]) -> Any:
        from experiments.torch_networks import crop_and_flip

        return crop_and_flip(inputs, PADDING)

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        from experiments.torch_networks import BasicBlock, Pixels, resnet

        return resnet(BasicBlock, (hp["blocks"],) * 3, hp["channels"], hp["classes"]).insert(0, Pixels(MEAN, STD))
