"""Samples that are read while a training goes on: pairs, mappings, random crops, batches of an own function."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset, random_split

from raygpu import Splits, dataset_splits
from tests.contracts.zoo.entry import (
    CLASSES,
    NUM_TRAIN,
    NUM_VALIDATION,
    VOCABULARY,
    WIDTH,
    Entry,
    classes,
    ended,
    mlp,
    normal,
)


class Pairs(Dataset[Any]):
    """Vectors with their classes."""

    def __init__(self, count: int, seed: int) -> None:
        generator = np.random.default_rng(seed)
        self.inputs, self.classes = normal(generator, count, WIDTH), classes(generator, count)

    def __len__(self) -> int:
        return len(self.classes)

    def __getitem__(self, row: int) -> Any:
        return torch.from_numpy(self.inputs[row]), int(self.classes[row])


class DataSetOfPairs(Entry):
    def data(self) -> Splits:
        return dataset_splits(Pairs(NUM_TRAIN, 1), Pairs(NUM_VALIDATION, 2))

    def model(self, hp: Any) -> nn.Module:
        return mlp(nn.Tanh())


class DataSetInACache(DataSetOfPairs):
    """Its samples are kept on the disk once they are read."""

    def data(self) -> Splits:
        return dataset_splits(Pairs(NUM_TRAIN, 1), Pairs(NUM_VALIDATION, 2), cache=True)


class DataSetCutInTwo(DataSetOfPairs):
    """Its validation samples are some of the training data, by torch's own function."""

    def data(self) -> Splits:
        parts = random_split(
            Pairs(NUM_TRAIN + NUM_VALIDATION, 1), [NUM_TRAIN, NUM_VALIDATION], torch.Generator().manual_seed(3)
        )
        return dataset_splits(*parts)


class Noisy(Pairs):
    """Each read draws random numbers of torch, NumPy and Python."""

    def __getitem__(self, row: int) -> Any:
        noise = torch.rand(WIDTH) + np.random.rand() + random.random()
        return torch.from_numpy(self.inputs[row]) + 0.1 * noise, int(self.classes[row])


class DataSetWithNoise(DataSetOfPairs):
    def data(self) -> Splits:
        return dataset_splits(Noisy(NUM_TRAIN, 1), Pairs(NUM_VALIDATION, 2))


def mirrored(inputs: torch.Tensor) -> torch.Tensor:
    """Features in the other order, for half of the samples."""
    return inputs.flip(0) if random.random() < 0.5 else inputs * (1 + 0.1 * torch.rand(()))


class DataSetTransformedAfterTheCache(DataSetOfPairs):
    def data(self) -> Splits:
        return dataset_splits(Pairs(NUM_TRAIN + NUM_VALIDATION, 1), 0.25, transform=mirrored, cache=True)


class Texts(Dataset[Any]):
    """Tokens of one to nine, as mappings: a batch is filled up to its longest text."""

    def __init__(self, count: int, seed: int) -> None:
        generator = np.random.default_rng(seed)
        self.tokens = [classes(generator, 1 + i % 9, number=VOCABULARY - 1) + 1 for i in range(count)]
        self.classes = classes(generator, count)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, row: int) -> Any:
        return {"tokens": torch.from_numpy(self.tokens[row]), "label": int(self.classes[row])}


def padded(samples: list[Any]) -> Any:
    tokens = nn.utils.rnn.pad_sequence([each["tokens"] for each in samples], batch_first=True)
    return {"tokens": tokens, "mask": tokens > 0, "label": torch.tensor([each["label"] for each in samples])}


class DataSetOfTextsFilledUp(Entry):
    def data(self) -> Splits:
        texts = Texts(NUM_TRAIN, 1), Texts(NUM_VALIDATION, 2)
        return dataset_splits(*texts, targets="label", collate_fn=padded)

    def model(self, hp: Any) -> nn.Module:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.table, self.last = nn.Embedding(VOCABULARY, 6), nn.Linear(6, CLASSES)

            def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
                return self.last((self.table(tokens) * mask.unsqueeze(-1)).sum(1))

        return Model()


class DataSetOfTextsWithoutAMask(DataSetOfTextsFilledUp):
    """The mean over all places, however many a batch has."""

    production = "collate_fn makes a sample of others"

    def model(self, hp: Any) -> nn.Module:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.table, self.last = nn.Embedding(VOCABULARY, 6), nn.Linear(6, CLASSES)

            def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
                return self.last(self.table(tokens).mean(1))

        return Model()


def mixed(samples: list[Any]) -> Any:
    inputs = torch.stack([each[0] for each in samples])
    return 0.7 * inputs + 0.3 * inputs[torch.randperm(len(samples))], torch.tensor([each[1] for each in samples])


class DataSetMixedInItsBatches(DataSetOfPairs):
    production = "collate_fn makes a sample of others"

    def data(self) -> Splits:
        return dataset_splits(Pairs(NUM_TRAIN, 1), Pairs(NUM_VALIDATION, 2), collate_fn=mixed)


class Pictures(Dataset[Any]):
    """Mappings of an image and a class, as of Hugging Face."""

    def __len__(self) -> int:
        return NUM_TRAIN

    def __getitem__(self, row: int) -> Any:
        generator = np.random.default_rng(row)
        return {"image": generator.integers(0, 256, (3, 8, 8), dtype=np.uint8), "label": row % CLASSES}


class Shuffled(IterableDataset[Any]):
    """Comes in another order in each epoch, with noise."""

    def __init__(self, count: int, seed: int) -> None:
        self.pairs, self.epoch = Pairs(count, seed), 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Any:
        for row in np.random.default_rng(self.epoch).permutation(len(self.pairs)):
            inputs, target = self.pairs[int(row)]
            yield inputs + 0.1 * torch.rand(WIDTH), target


class DataSetAsAStream(DataSetOfPairs):
    def data(self) -> Splits:
        number = {"train": NUM_TRAIN}
        return dataset_splits(Shuffled(NUM_TRAIN + 5, 1), Pairs(NUM_VALIDATION, 2), num_samples=number)


class DataSetOfMappings(Entry):
    def data(self) -> Splits:
        return dataset_splits(Pictures(), 0.25, test=0.1, targets=["label"])

    def model(self, hp: Any) -> nn.Module:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layers = ended(nn.Conv2d(3, 4, 3), nn.ReLU(), features=144)

            def forward(self, images: torch.Tensor) -> torch.Tensor:
                return self.layers(images.to(self.layers[0].weight.dtype) / 255)

        return Model()
