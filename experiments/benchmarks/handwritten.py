"""The sweep of `conf/sweep/digits.toml`, written by hand on Ray Tune as its documentation shows, to compare with.

    python -m experiments.benchmarks.handwritten --trials 32 --epochs 20 --fraction 0.2 [--mlflow sqlite:///FILE]

Trials and hyper-parameters are raygpu's own draws, so that both sides train the same networks.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import ray
from ray import tune

from experiments.digits import digits
from raygpu.config import load
from raygpu.space import parse, random_trials


def train(config: dict[str, Any], data: Any) -> None:
    """A function trainable: torch.optim, a loop over batches, `tune.report` each epoch."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(config["seed"])
    train_x, train_y = torch.tensor(data.train_inputs), torch.tensor(data.train_targets)
    test_x, test_y = torch.tensor(data.validation_inputs), torch.tensor(data.validation_targets)
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
            outputs = model(test_x)
            accuracy = (outputs.argmax(1) == test_y).float().mean().item()
            tune.report({"loss": loss_function(outputs, test_y).item(), "accuracy": accuracy})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--fraction", type=float, default=0.2)
    parser.add_argument("--mlflow", default=None, help="a tracking URI for Ray's MLflowLoggerCallback")
    parser.add_argument("--folder", type=Path, required=True)
    arguments = parser.parse_args()
    space = parse(load(Path("conf/sweep/digits.toml"), {}).space)
    trials = [
        {**trial.hyperparameters, "seed": trial.seed, "epochs": arguments.epochs}
        for trial in random_trials(space, arguments.trials, seed=0)
    ]
    callbacks = []
    if arguments.mlflow:
        from ray.air.integrations.mlflow import MLflowLoggerCallback

        callbacks.append(MLflowLoggerCallback(tracking_uri=arguments.mlflow, experiment_name="handwritten"))
    ray.init(num_gpus=1, log_to_driver=False)
    trainable = tune.with_resources(
        tune.with_parameters(train, data=digits()), {"cpu": arguments.fraction, "gpu": arguments.fraction}
    )
    tuner = tune.Tuner(
        trainable,
        param_space=tune.grid_search(trials),
        tune_config=tune.TuneConfig(metric="accuracy", mode="max", reuse_actors=True),
        run_config=tune.RunConfig(name="handwritten", storage_path=str(arguments.folder), callbacks=callbacks),
    )
    results = tuner.fit()
    print(f"best accuracy {results.get_best_result().metrics['accuracy']:.4f} of {len(results)} trials")
    ray.shutdown()


if __name__ == "__main__":
    main()
