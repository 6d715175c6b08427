"""CIFAR-10, colour images of 32 x 32 in ten classes: residual networks in PyTorch and in Keras.

    python -m raygpu.sweep conf/sweep/cifar.toml                    ResNet18
    python -m raygpu.sweep conf/sweep/cifar.toml --data.synthetic   without the data set, to measure speed

Images reach the device as uint8, a quarter of float32, and are cropped and mirrored there; the models' first layer
scales them. `channels` are the maps of the first stage: 64 in the networks as they were published.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from experiments import datasets
from raygpu import KerasExperiment, Splits, TorchExperiment

if TYPE_CHECKING:
    from collections.abc import Mapping

    import keras
    from torch import nn

MEAN, STD = [0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]
"""Of the pixels, scaled to 0..1, for each channel."""
PADDING = 4
NUM_TRAIN, NUM_VALIDATION = 45_000, 5_000


class Cifar(TorchExperiment):
    """The data as PyTorch wants it, (n, 3, 32, 32), and its augmentation."""

    def data(self) -> Splits:
        return datasets.cifar10("first")

    def synthetic(self) -> Splits:
        return datasets.synthetic(NUM_TRAIN, NUM_VALIDATION, (3, 32, 32))

    def augment(self, inputs: Any, hp: Mapping[str, Any]) -> Any:
        from experiments.torch_networks import crop_and_flip

        return crop_and_flip(inputs, PADDING)


class ResNet18(Cifar):
    """Stages of two blocks of two convolutions."""

    blocks: ClassVar = (2, 2, 2, 2)

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        from experiments.torch_networks import BasicBlock, Pixels, resnet

        return resnet(BasicBlock, self.blocks, hp["channels"]).insert(0, Pixels(MEAN, STD))


class ResNet50(Cifar):
    """Stages of three to six bottlenecks of three convolutions."""

    blocks: ClassVar = (3, 4, 6, 3)

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        from experiments.torch_networks import Bottleneck, Pixels, resnet

        return resnet(Bottleneck, self.blocks, hp["channels"]).insert(0, Pixels(MEAN, STD))


class Saturating(Cifar):
    """Far more layers than the images need, so that one training fills a device and packing gains nothing: `layers`
    residual blocks of `channels` maps, all of them at the full 32 x 32.

    A block of 256 channels costs 2.4 GFLOP an image and forward pass, 20 of them 40 times as much as ResNet-18.
    """

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        from experiments.torch_networks import BasicBlock, Pixels, resnet

        return resnet(BasicBlock, (hp["layers"],), hp["channels"]).insert(0, Pixels(MEAN, STD))


class KerasResNet50(KerasExperiment):
    """The same network as `ResNet50` in Keras, on images (n, 32, 32, 3).

    Not `keras.applications.ResNet50`, whose stem for photographs leaves one pixel of 32 x 32 to the last stage.
    """

    blocks: ClassVar = (3, 4, 6, 3)

    def data(self) -> Splits:
        return datasets.cifar10("last")

    def synthetic(self) -> Splits:
        return datasets.synthetic(NUM_TRAIN, NUM_VALIDATION, (32, 32, 3))

    def augment(self, inputs: Any, hp: Mapping[str, Any]) -> Any:
        from experiments.keras_networks import crop_and_flip

        return crop_and_flip(inputs, PADDING)

    def model(self, hp: Mapping[str, Any]) -> keras.Model:
        import keras

        from experiments.keras_networks import bottleneck, pixels, resnet

        inputs = keras.Input((32, 32, 3))
        return keras.Model(inputs, resnet(pixels(MEAN, STD)(inputs), bottleneck, self.blocks, hp["channels"]))
