"""The image experiments' networks and augmentation: of published size, the same in both frameworks, and fusable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from experiments import cifar, datasets, mnist, resnet
from raygpu.experiment import Experiment, Splits
from raygpu.search.trials import Trial

torch = pytest.importorskip("torch")
SIDE, PADDING = 6, 2
CIFAR, MNIST = (3, 32, 32), (28, 28)


class ShallowResNet50(cifar.ResNet50):
    blocks = (1, 1, 1, 1)


def trials(**shape: Any) -> list[Trial]:
    own: list[dict[str, Any]] = [{"lr": 0.1}, {"lr": 0.05, "momentum": 0.9, "weight_decay": 1e-2}]
    return [Trial(Trial.name(i), i, {**shape, **values}) for i, values in enumerate(own)]


@pytest.mark.parametrize(
    ("kind", "shape", "hp", "read"),
    [
        (cifar.ResNet18, CIFAR, {"channels": 2}, {"channels"}),
        (ShallowResNet50, CIFAR, {"channels": 2}, {"channels"}),
        (cifar.Saturating, CIFAR, {"channels": 2, "layers": 2}, {"channels", "layers"}),
        (mnist.Mlp, MNIST, {"hidden": 4}, {"hidden"}),
        (mnist.Cnn, MNIST, {"channels": 2}, {"channels"}),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_fusable(kind: type[Experiment], shape: tuple[int, ...], hp: dict[str, Any], read: set[str]) -> None:
    from raygpu.training.fused.dry_run import READ_BY_RAYGPU, names_read, obstacle

    splits = datasets.synthetic(16, 8, shape)
    assert obstacle(kind(), splits, trials(**hp)) is None
    assert names_read(kind(), trials(**hp)[0], splits) == read | READ_BY_RAYGPU


def test_fusable_in_bf16() -> None:
    from raygpu.training.fused.dry_run import obstacle

    assert obstacle(cifar.ResNet18(), datasets.synthetic(16, 8, CIFAR), trials(channels=2), "bf16") is None


@pytest.mark.parametrize(("kind", "expected"), [(cifar.ResNet18, 11_173_962), (cifar.ResNet50, 23_520_842)])
def test_published_sizes(kind: type[Experiment], expected: int) -> None:
    """Parameters of the networks with CIFAR-10's stem, as the usual implementations have them."""
    model = kind().model({"channels": 64})
    assert sum(parameter.numel() for parameter in model.parameters()) == expected


def test_the_timed_network_is_that_of_cifar() -> None:
    pixels, *layers = cifar.ResNet18().model({"channels": 4})
    assert str(resnet.ResNet18().model({"channels": 4})) == str(torch.nn.Sequential(*layers))
    assert not list(pixels.parameters())


def test_saturating_keeps_its_size() -> None:
    model = cifar.Saturating().model({"layers": 5, "channels": 2})
    convolutions = [layer for layer in model.modules() if isinstance(layer, torch.nn.Conv2d)]
    assert len(convolutions) == 11
    assert {layer.stride for layer in convolutions} == {(1, 1)}


def test_pixels_are_scaled() -> None:
    from experiments.torch_networks import Pixels

    images = torch.tensor([[[[0, 255]], [[255, 0]]]], dtype=torch.uint8)
    scaled = Pixels([0.5, 0.2], [0.25, 0.4])(images)
    torch.testing.assert_close(scaled, torch.tensor([[[[-2.0, 2.0]], [[2.0, -0.5]]]]))
    assert Pixels([0.5, 0.2], [0.25, 0.4]).double()(images).dtype == torch.float64


def in_torch(images: np.ndarray, padding: int) -> np.ndarray:
    from experiments.torch_networks import crop_and_flip

    moved = crop_and_flip(torch.from_numpy(images.transpose(0, 3, 1, 2)), padding)
    assert moved.dtype == torch.uint8
    return moved.numpy().transpose(0, 2, 3, 1)


def in_keras(images: np.ndarray, padding: int) -> np.ndarray:
    pytest.importorskip("tensorflow")
    from experiments.keras_networks import crop_and_flip
    from raygpu.training.keras.quiet_import import tf

    return tf.function(lambda some: crop_and_flip(some, padding))(images).numpy()


def places(before: np.ndarray, after: np.ndarray, padding: int) -> list[tuple[int, int, bool]]:
    """Of each image (n, h, w, c), the one crop that `after` is: its top, its left, and whether it is mirrored."""
    found = []
    for image, moved in zip(before, after, strict=True):
        padded = np.pad(image, [(padding, padding), (padding, padding), (0, 0)])
        crops = {
            (top, left, mirrored): padded[top : top + SIDE, left : left + SIDE][:, :: -1 if mirrored else 1]
            for top in range(2 * padding + 1)
            for left in range(2 * padding + 1)
            for mirrored in (False, True)
        }
        (place,) = [place for place, crop in crops.items() if np.array_equal(crop, moved)]
        found.append(place)
    return found


@pytest.mark.parametrize("crop_and_flip", [in_torch, in_keras])
def test_every_image_is_cropped_and_mirrored_by_itself(crop_and_flip: Callable[..., np.ndarray]) -> None:
    images = np.random.default_rng(0).integers(1, 256, (400, SIDE, SIDE, 3), dtype=np.uint8)
    found = places(images, crop_and_flip(images, PADDING), PADDING)
    assert len(set(found)) == 50, "each of 5 x 5 places, mirrored and not"
    assert 150 < sum(mirrored for _, _, mirrored in found) < 250
    tops, lefts = np.array([place[:2] for place in found]).T
    assert abs(np.corrcoef(tops, lefts)[0, 1]) < 0.2, "both are drawn"
    unmoved = places(images, crop_and_flip(images, 0), 0)
    assert {place[:2] for place in unmoved} == {(0, 0)}


def test_the_members_of_an_array_draw_their_own() -> None:
    from experiments.torch_networks import crop_and_flip

    images = np.random.default_rng(0).integers(1, 256, (50, SIDE, SIDE, 3), dtype=np.uint8)
    members = torch.from_numpy(images.transpose(0, 3, 1, 2)).expand(3, -1, -1, -1, -1)
    moved = torch.func.vmap(lambda some: crop_and_flip(some, PADDING), randomness="different")(members)
    found = [places(images, member.numpy().transpose(0, 2, 3, 1), PADDING) for member in moved]
    assert found[0] != found[1] != found[2] != found[0]


@pytest.mark.parametrize(
    ("kind", "keras_kind", "hp"),
    [(mnist.Mlp, mnist.KerasMlp, {"hidden": 5}), (mnist.Cnn, mnist.KerasCnn, {"channels": 3})],
    ids=["mlp", "cnn"],
)
def test_keras_has_the_same_network(kind: type[Experiment], keras_kind: type[Experiment], hp: dict[str, Any]) -> None:
    pytest.importorskip("tensorflow")
    splits = datasets.synthetic(8, 8, MNIST)
    model, keras_model = kind().model(hp), keras_kind().model(hp)
    weights = []
    for layer in model:
        if isinstance(layer, torch.nn.Conv2d):
            weights.append(layer.weight.detach().numpy().transpose(2, 3, 1, 0))
        elif isinstance(layer, torch.nn.Linear):
            kernel = layer.weight.detach().numpy().T
            if (
                layer.in_features % 49 == 0 and layer.in_features < 784
            ):  # flattened maps: PyTorch's come channel by channel
                kernel = kernel.reshape(-1, 7, 7, 10).transpose(1, 2, 0, 3).reshape(-1, 10)
            weights.append(kernel)
        else:
            continue
        weights.append(layer.bias.detach().numpy())
    for variable, value in zip(keras_model.trainable_variables, weights, strict=True):
        variable.assign(value)
    inputs = splits.train_inputs
    with torch.no_grad():
        expected = model(torch.from_numpy(inputs)).numpy()
    np.testing.assert_allclose(np.asarray(keras_model(inputs)), expected, atol=1e-4)


def test_keras_resnet_has_the_parameters_of_the_other() -> None:
    pytest.importorskip("tensorflow")

    def sizes(of: Any) -> list[int]:
        return sorted(int(np.prod(parameter.shape)) for parameter in of)

    hp = {"channels": 2}
    model, keras_model = cifar.ResNet50().model(hp), cifar.KerasResNet50().model(hp)
    assert sizes(keras_model.trainable_variables) == sizes(model.parameters())
    maps = [layer.output.shape[1:] for layer in keras_model.layers if layer.name.startswith("add")]
    assert [shape[0] for shape in maps] == [32] * 3 + [16] * 4 + [8] * 6 + [4] * 3
    assert maps[-1][2] == 8 * 4 * 2


@pytest.mark.parametrize("kind", [mnist.Mlp, cifar.ResNet18, cifar.KerasResNet50])
def test_synthetic_data_has_the_sizes_of_the_real(kind: type[Experiment]) -> None:
    splits: Splits = kind().synthetic()
    keras = kind is cifar.KerasResNet50
    expected = (50_000, *MNIST) if kind is mnist.Mlp else (45_000, *((32, 32, 3) if keras else CIFAR))
    assert splits.train_inputs.shape == expected  # type: ignore[union-attr]
    assert splits.train_inputs.dtype == splits.validation_inputs.dtype == np.uint8  # type: ignore[union-attr]
