"""A training script that knows nothing of raygpu: argparse in, a line of JSON for each epoch out.

python experiments/digits_script.py --lr 0.1 --hidden 64
python -m raygpu.sweep conf/sweep/digits_script.toml
"""

from __future__ import annotations

import argparse
import json

from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small network on the handwritten digits.")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    pixels, labels = load_digits(return_X_y=True)
    train_x, validation_x, train_y, validation_y = train_test_split(
        pixels / 16, labels, random_state=0, stratify=labels
    )
    model = MLPClassifier(
        [arguments.hidden], solver="sgd", learning_rate_init=arguments.lr, random_state=arguments.seed
    )
    for _ in range(arguments.epochs):
        model.partial_fit(train_x, train_y, classes=range(10))
        print(json.dumps({"loss": model.loss_, "accuracy": model.score(validation_x, validation_y)}), flush=True)
    print(f"done after {arguments.epochs} epochs")


if __name__ == "__main__":
    main()
