"""Fused training from Python, without Ray and MLflow: `raygpu.fuse`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from raygpu.config.sections import Precision
from raygpu.experiment import Experiment, Splits
from raygpu.search.signature import Signature, differing_names, representatives
from raygpu.search.trials import Trial
from raygpu.training.base import NotAsAlone, Settings
from raygpu.training.fused.dry_run import names_read, obstacle
from raygpu.training.fused.guard import require_distinct
from raygpu.training.fused.model_array import TorchArray


def fuse(
    experiment: Experiment,
    trials: Sequence[Trial],
    *,
    epochs: int,
    splits: Splits | None = None,
    width: int | None = None,
    precision: Precision = "float32",
    device: torch.device | None = None,
) -> TorchArray:
    """Train several sets of hyper-parameters of a `TorchExperiment` as one array of models; each equals its training
    alone.

        trials = [raygpu.Trial(f"lr {lr}", seed=0, hyperparameters={"lr": lr, "hidden": 64}) for lr in (0.01, 0.1, 1.0)]
        array = raygpu.fuse(Mlp(), trials, epochs=20)
        while (results := array.run_epoch()) is not None:
            print({name: result.metrics["validation/accuracy"] for name, result in results.items()})
        model.load_state_dict(array.member_state("lr 0.1")["model"])

    splits: the data; by default `experiment.data()`. width: members that step as one program; more of them train in
    turns. device: by default the GPU that this process sees, else the CPU. Raises ValueError if two trials have the
    same id, or differ in the batch size, the kind of optimizer or in hyper-parameters that the model reads; NotAsAlone,
    here or in `run_epoch`, with the reason why a member would not equal its training alone.

    For the whole process, and for good, it sets the precision of matrix products and convolutions, has the CPU flush
    denormal numbers, switches off the fast path of multi-head attention, and seeds the global random generators.
    """
    require_distinct(trials)
    splits = experiment.data() if splits is None else splits
    names = frozenset[str]().union(*(names_read(experiment, trial, splits) for trial in trials[:1]))
    if wrong := sorted(names & differing_names(trials)):
        raise ValueError(f"trials: they differ in {', '.join(wrong)}, of which an array has one value for all")
    if trials:
        chosen = representatives(trials, Signature.of(trials[0], names))
        if len(chosen) == 1:  # the check compares members with each other, too
            chosen.append(replace(chosen[0], trial_id=f"{chosen[0].trial_id} reseeded", seed=chosen[0].seed + 1))
        if (reason := obstacle(experiment, splits, chosen, precision)) is not None:
            raise NotAsAlone(reason)
    settings = Settings(epochs, torch.get_num_threads(), precision, Path())
    return TorchArray(experiment, splits, trials, settings, width=width, device=device)
