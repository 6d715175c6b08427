"""The trials of a sweep, one after the other in one process with one thread: no Ray, no tracking, nothing saved.

    python -m experiments.benchmarks.plain_loop --trials 16 --epochs 20 [--space FILE] [--flush-denormal]

Trials and hyper-parameters are raygpu's own draws. `epochs` is what `handwritten` trains too.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiments.digits import digits
from raygpu.config import SweepConfig, load
from raygpu.search.space import parse, random_trials


def epochs(config: dict[str, Any], data: Any) -> Iterator[dict[str, float]]:
    """Train the digits MLP with torch.optim, a loop over batches; its metrics after each epoch."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(config["seed"])
    torch.set_default_device("cuda" if torch.cuda.is_available() else "cpu")
    train_x, train_y = torch.tensor(data.train_inputs), torch.tensor(data.train_targets)
    validation_x, validation_y = torch.tensor(data.validation_inputs), torch.tensor(data.validation_targets)
    model = nn.Sequential(nn.Linear(64, config["hidden"]), nn.ReLU(), nn.Linear(config["hidden"], 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=config["momentum"])
    loss_function = nn.CrossEntropyLoss()
    for _ in range(config["epochs"]):
        model.train()
        for rows in torch.randperm(len(train_x)).split(config["batch_size"]):
            optimizer.zero_grad()
            loss = loss_function(model(train_x[rows]), train_y[rows])
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            outputs = model(validation_x)
            accuracy = (outputs.argmax(1) == validation_y).float().mean().item()
            metrics = {"loss": loss_function(outputs, validation_y).item(), "accuracy": accuracy}
        yield metrics


def drawn(space: Path, count: int, num_epochs: int) -> list[dict[str, Any]]:
    """The first trials of a configuration's random search, each as one dict."""
    trials = random_trials(parse(load(space, {}, SweepConfig).space), count, seed=0)
    return [{**trial.hyperparameters, "seed": trial.seed, "epochs": num_epochs} for trial in trials]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--space", type=Path, default=Path("conf/sweep/digits_fused.toml"))
    parser.add_argument("--flush-denormal", action="store_true", help="as raygpu does; by default as torch does")
    arguments = parser.parse_args()
    if arguments.flush_denormal:
        import torch

        torch.set_flush_denormal(True)
    data = digits()
    last = [[*epochs(config, data)][-1] for config in drawn(arguments.space, arguments.trials, arguments.epochs)]
    print(f"best accuracy {max(metrics['accuracy'] for metrics in last):.4f} of {len(last)} trials")


if __name__ == "__main__":
    main()
