"""Images in a folder for each class: found, decoded to one form, and trained on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from experiments.image_folder import SIZE, ImageFolder, Network
from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from raygpu.training.fused.groups import TorchGrouper
from raygpu.training.torch.solo import TorchSolo

HYPERPARAMETERS = {"lr": 0.05, "channels": 4, "blocks": 1, "classes": 3, "batch_size": 8}


def write_images(folder: Path, count: int = 12) -> None:
    """JPEG, PNG and grey images of several sizes in three folders; those of a folder have its colour."""
    for number, name in enumerate(("daisy", "rose", "tulip")):
        (folder / name / "deeper").mkdir(parents=True)
        for i in range(count):
            pixels = np.zeros((40 + 9 * i, 90 - 4 * i, 3), np.uint8)
            pixels[..., number] = 200
            ending = ("jpg", "PNG", "webp")[i % 3]
            where = folder / name / ("deeper" if i == 5 else "") / f"{i}.{ending}"
            Image.fromarray(pixels).save(where)
        (folder / name / "notes.txt").write_text("no image")
    Image.new("L", (50, 70), 128).save(folder / "tulip" / "grey.png")


@pytest.fixture
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_images(tmp_path)
    monkeypatch.setenv("IMAGES", str(tmp_path))
    return tmp_path


def test_files_are_found_in_order_and_brought_to_one_form(images: Path) -> None:
    folder = ImageFolder(images)
    assert folder.targets == [0] * 12 + [1] * 12 + [2] * 13
    for row in (0, 5, 13, 30):
        image, target = folder[row]
        assert image.shape == (3, SIZE, SIZE)
        assert image.dtype == np.uint8
        assert image.reshape(3, -1).mean(1).argmax() == target
    grey = next(row for row, (path, _) in enumerate(folder.files) if path.name == "grey.png")
    assert np.ptp(folder[grey][0]) <= 1


def test_a_folder_without_images_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IMAGES", str(tmp_path / "nothing"))
    with pytest.raises(FileNotFoundError, match="nothing: no images in folders of two classes at least; IMAGES names"):
        Network().data()


def test_the_classes_are_learnt_and_the_trials_can_be_fused(images: Path) -> None:
    splits = Network().data()
    assert sorted(np.unique(splits.validation_targets, return_counts=True)[1]) == [2, 3, 3]
    trials = [Trial(f"t{i:04d}", i, {**HYPERPARAMETERS, "lr": lr}) for i, lr in enumerate((0.05, 0.1))]
    solo = TorchSolo(Network(), splits, trials[0], Settings(8, 1, "float32", Path()))
    results = list(iter(solo.run_epoch, None))
    assert max(result.metrics["validation/accuracy"] for result in results) >= 0.75
    (group,) = TorchGrouper(Network(), splits).groups(trials)
    assert group.reason is None
