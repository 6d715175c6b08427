"""The sweep of `conf/sweep/digits.toml`, written by hand on Ray Tune as its documentation shows, to compare with.

    python -m experiments.benchmarks.handwritten --folder FOLDER --trials 32 --epochs 20 --fraction 0.2 [--reuse]
        [--mlflow sqlite:///FILE] [--space conf/sweep/digits_fused.toml]

Trials and hyper-parameters are raygpu's own draws, so that both sides train the same networks.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import ray
from ray import tune

from experiments.benchmarks.plain_loop import drawn, epochs
from experiments.digits import digits


def train(config: dict[str, Any], data: Any) -> None:
    """A function trainable: `tune.report` after each epoch."""
    for metrics in epochs(config, data):
        tune.report(metrics)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--fraction", type=float, default=0.2)
    parser.add_argument("--mlflow", default=None, help="a tracking URI for Ray's MLflowLoggerCallback")
    parser.add_argument("--space", type=Path, default=Path("conf/sweep/digits.toml"), help="whose [space] is searched")
    parser.add_argument("--reuse", action="store_true", help="a worker trains one trial after the other (reuse_actors)")
    parser.add_argument("--folder", type=Path, required=True)
    arguments = parser.parse_args()
    trials = drawn(arguments.space, arguments.trials, arguments.epochs)
    callbacks = []
    if arguments.mlflow:
        from ray.air.integrations.mlflow import MLflowLoggerCallback

        callbacks.append(MLflowLoggerCallback(tracking_uri=arguments.mlflow, experiment_name="handwritten"))
    ray.init(address="local", num_gpus=1, log_to_driver=False)
    trainable = tune.with_resources(
        tune.with_parameters(train, data=digits()), {"cpu": arguments.fraction, "gpu": arguments.fraction}
    )
    tuner = tune.Tuner(
        trainable,
        param_space=tune.grid_search(trials),
        tune_config=tune.TuneConfig(metric="accuracy", mode="max", reuse_actors=arguments.reuse),
        run_config=tune.RunConfig(name="handwritten", storage_path=str(arguments.folder), callbacks=callbacks),
    )
    results = tuner.fit()
    print(f"best accuracy {results.get_best_result().metrics['accuracy']:.4f} of {len(results)} trials")
    ray.shutdown()


if __name__ == "__main__":
    main()
