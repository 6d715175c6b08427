"""Optuna by hand: TPE with median pruning, in one process or in one on each core.

python -m experiments.benchmarks.search_quality.optuna_by_hand --searcher optuna_processes ...
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from experiments.benchmarks.search_quality.command_line import Search, read
from raygpu.devices.host import num_cpus


def suggested(trial: optuna.Trial, table: Mapping[str, Any]) -> dict[str, Any]:
    """Return hyper-parameters that the sampler suggests."""
    found: dict[str, Any] = {}
    for name, value in table.items():
        if not isinstance(value, Mapping):
            found[name] = value
            continue
        [(kind, arguments)] = value.items()
        if kind == "choice":
            found[name] = trial.suggest_categorical(name, arguments)
        else:
            found[name] = trial.suggest_float(name, *arguments, log=kind == "loguniform")
    return found


def optimize(order: Search, storage: str | None, process: int) -> None:
    """Train trials until the time is up."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        study_name="search",
        storage=None if storage is None else JournalStorage(JournalFileBackend(storage)),
        load_if_exists=True,
        sampler=optuna.samplers.TPESampler(seed=order.seed + 1000 * process),
        pruner=optuna.pruners.MedianPruner(n_warmup_steps=2),
    )

    def objective(trial: optuna.Trial) -> float:
        """Train a trial to its end, or until it is pruned."""
        error = float("inf")
        epochs = order.problem.train(suggested(trial, order.problem.table), trial.number, order.problem.epochs)
        for epoch, score in enumerate(epochs):
            error = score.validation
            order.notebook.add(str(trial.number), score)
            trial.report(error, epoch)
            if time.time() > order.ends:
                break
            if trial.should_prune():
                raise optuna.TrialPruned
        return error

    study.optimize(objective, timeout=max(0.0, order.ends - time.time()))


def search(order: Search) -> None:
    """Search until the time is up."""
    if order.searcher == "optuna":
        optimize(order, None, 0)
        return
    with tempfile.TemporaryDirectory() as folder:
        storage = str(Path(folder) / "journal.log")
        context = multiprocessing.get_context("spawn")
        workers = [context.Process(target=optimize, args=(order, storage, each)) for each in range(num_cpus())]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()


if __name__ == "__main__":
    search(read())
