"""Ray Tune by hand, as its documentation shows: random search, ASHA or population based training.

python -m experiments.benchmarks.search_quality.ray_tune_by_hand --searcher asha ...
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, PopulationBasedTraining

from experiments.benchmarks.search_quality.command_line import Search, read
from experiments.benchmarks.search_quality.problems import PROBLEMS
from experiments.benchmarks.search_quality.reports import Notebook
from raygpu.devices.host import num_cpus

POPULATION = 16
INTERVAL = 3
"""Epochs between two exploits."""
GRACE_EPOCHS = 2


class Training(tune.Trainable):
    """A trial, an epoch a step, in a worker that is used again."""

    def setup(self, config: dict[str, Any]) -> None:
        """Begin a training."""
        self.problem = PROBLEMS[config["problem"]]
        self.notebook = Notebook(Path(config["notebook"]), config["began"])
        self.state: dict[str, Any] = {}
        if self.problem.fused:
            from experiments.benchmarks.search_quality import networks

            network = getattr(networks, self.problem.experiment.rpartition(":")[2])()
            self.epochs = networks.trained(network, config, config["seed"], self.problem.epochs, self.state)
        else:
            self.epochs = self.problem.train(config, config["seed"], self.problem.epochs)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Begin another training, or go on with changed hyper-parameters once a checkpoint is loaded."""
        self.setup(new_config)
        return True

    def step(self) -> dict[str, Any]:
        """Train an epoch."""
        score = next(self.epochs)
        self.notebook.add(str(self.trial_id), score)
        return {"error": score.validation, "done": self.iteration + 1 >= self.problem.epochs}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Write the model and the optimizer."""
        import torch

        torch.save({name: part.state_dict() for name, part in self.state.items()}, Path(checkpoint_dir) / "state.pt")

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Read them; the learning rate and its like are those of the present hyper-parameters."""
        import torch

        saved = torch.load(Path(checkpoint) / "state.pt")
        self.state["model"].load_state_dict(saved["model"])
        self.state["optimizer"].load_state_dict(saved["optimizer"])
        for group in self.state["optimizer"].param_groups:
            group.update({name: self.config[name] for name in ("lr", "momentum", "weight_decay")})


def distributions(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a space in Ray Tune's words, which raygpu's configurations use, too."""
    found: dict[str, Any] = {}
    for name, value in table.items():
        if not isinstance(value, Mapping):
            found[name] = value
        else:
            [(kind, arguments)] = value.items()
            found[name] = tune.choice(arguments) if kind == "choice" else getattr(tune, kind)(*arguments)
    return found


def search(order: Search) -> None:
    """Search until the time is up."""
    problem = order.problem
    space = distributions(problem.table)
    own = {"problem": problem.name, "notebook": str(order.notebook.path), "began": order.notebook.began}
    ray.init(address="local", num_cpus=num_cpus(), include_dashboard=False, log_to_driver=False)
    number = 0
    while (left_s := order.ends - time.time()) > 1:
        with tempfile.TemporaryDirectory() as folder:
            tune.Tuner(
                tune.with_resources(Training, {"cpu": 1}),
                param_space={**space, **own, "seed": tune.randint(0, 2**31 - 1)},
                tune_config=tune.TuneConfig(
                    metric="error",
                    mode="min",
                    num_samples=POPULATION if order.searcher == "pbt" else -1,
                    scheduler=_scheduler(order, space),
                    search_alg=_seeded(order.seed + 1000 * number),
                    time_budget_s=left_s,
                    reuse_actors=True,
                ),
                run_config=tune.RunConfig(storage_path=folder, verbose=0),
            ).fit()
        number += 1
    ray.shutdown()


def _scheduler(order: Search, space: Mapping[str, Any]) -> Any:
    """Return a new scheduler: Tune takes each for one run."""
    if order.searcher == "asha":
        return ASHAScheduler(max_t=order.problem.epochs, grace_period=GRACE_EPOCHS, reduction_factor=3)
    if order.searcher == "pbt":
        changing = {name: space[name] for name in ("lr", "momentum", "weight_decay")}
        return PopulationBasedTraining(perturbation_interval=INTERVAL, hyperparam_mutations=changing)
    return FIFOScheduler()


def _seeded(seed: int) -> Any:
    from ray.tune.search.basic_variant import BasicVariantGenerator

    return BasicVariantGenerator(random_state=seed)


if __name__ == "__main__":
    search(read())
