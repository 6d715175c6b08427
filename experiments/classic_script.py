"""A training script in the manner of PyTorch's MNIST example: argparse in, text for people out, a model in a file.

python experiments/classic_script.py --lr 0.1 --hidden 64
python -m raygpu.sweep conf/sweep/classic_script.toml
"""

from __future__ import annotations

import argparse
import pickle

import numpy as np
from sklearn.datasets import load_digits
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier


def train(model: MLPClassifier, pixels: np.ndarray, labels: np.ndarray, epoch: int) -> None:
    """Train an epoch in ten parts, and print the loss after each."""
    parts = np.array_split(np.arange(len(labels)), 10)
    for part in parts:
        model.partial_fit(pixels[part], labels[part], classes=range(10))
        done = int(part[-1]) + 1
        print(f"Train Epoch: {epoch} [{done}/{len(labels)} ({done / len(labels):.0%})]\tLoss: {model.loss_:.6f}")


def test(model: MLPClassifier, pixels: np.ndarray, labels: np.ndarray) -> None:
    """Print the mean loss and the accuracy."""
    loss = log_loss(labels, model.predict_proba(pixels), labels=range(10))
    correct = int((model.predict(pixels) == labels).sum())
    share = 100 * correct / len(labels)
    print(f"\nTest set: Average loss: {loss:.4f}, Accuracy: {correct}/{len(labels)} ({share:.1f}%)\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Handwritten digits, trained and tested as in PyTorch's MNIST example."
    )
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    pixels, labels = load_digits(return_X_y=True)
    train_x, validation_x, train_y, validation_y = train_test_split(
        pixels / 16, labels, random_state=0, stratify=labels
    )
    model = MLPClassifier(
        [arguments.hidden], solver="sgd", learning_rate_init=arguments.lr, batch_size=32, random_state=arguments.seed
    )
    for epoch in range(1, arguments.epochs + 1):
        train(model, train_x, train_y, epoch)
        test(model, validation_x, validation_y)
    with open("digits.pt", "wb") as file:
        pickle.dump(model, file)


if __name__ == "__main__":
    main()
