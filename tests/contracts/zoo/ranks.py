"""Entries trained over ranks that are started once for all of them, in processes that are ended where they hang."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from raygpu.config import TrainConfig
from raygpu.config.source import Source
from raygpu.errors import BadInput, one_line
from raygpu.training.distributed.batch_split import BatchPlan, checked
from raygpu.training.distributed.ranks import OneRank, ParallelSettings, Ranks
from raygpu.training.distributed.sharding_plan import with_sharding
from raygpu.training.distributed.torch_ranks import TorchParallel
from raygpu.training.distributed.torch_sharded import TorchSharded, UnplacedSolo
from raygpu.training.torch.solo import TorchSolo
from tests.contracts.zoo import ZOO
from tests.contracts.zoo.check import Outcome, settings, tensors
from tests.contracts.zoo.entry import BATCH
from tests.torch_device import DEVICE

RATIOS: dict[int, tuple[float, ...]] = {1: (), 2: (3.0, 2.0), 3: (5.0, 3.0, 2.0)}
"""Of the ranks' shares, by their number."""
BEHIND_S = 30.0
"""After one rank has ended an entry, the others have so long before they count as hanging."""
SILENT_S = 120.0
"""The same where no rank ends anything: the start of the processes is in it."""


@dataclass(slots=True)
class Part:
    """What a rank has of an entry: the outcome, what raygpu said, and what it raised."""

    outcome: Outcome = field(default_factory=lambda: ({}, []))
    notes: list[str] = field(default_factory=list)
    error: str = ""


def planned(name: str, world: int, *, sharded: bool = False) -> BatchPlan | str:
    """How an entry is split over so many ranks, with what is said of it before it trains; or why it is refused.

    sharded: whether its model is sharded over them.
    """
    entry = ZOO[name]()
    accumulate = 1 if entry.random else 2  # each part draws random numbers of its own
    parallel = ParallelSettings(BATCH, accumulate, RATIOS[world])
    config = TrainConfig(experiment=name, hyperparameters=dict(entry.trials()[1].hyperparameters),
                         sharding="full" if sharded else "none")  # fmt: skip
    source, splits = Source("torch", name, "."), entry.data()
    try:
        plan = checked(config, BatchPlan(parallel, ()), world, source, entry, splits)
        plan = with_sharding(config, plan, world, source, entry, splits, device_gib=None, shared=False)
        return replace(plan, lines=tuple(line for line in plan.lines if not line.startswith("sharding: full")))
    except BadInput as error:
        return str(error)


def trained(name: str, plan: BatchPlan, ranks: Ranks) -> Part:
    """One rank's part of the training of an entry."""
    entry, found = ZOO[name](), Part(notes=list(plan.lines))
    try:
        sharded = plan.parallel.sharded
        alone = (UnplacedSolo if sharded else TorchSolo)(
            entry,
            entry.data(),
            entry.trials()[1],
            settings(entry),
            DEVICE,
            entry.dtype,
            optimizer_settings=plan.parallel.optimizer_settings,
        )
        training = (TorchSharded if sharded else TorchParallel)(alone, plan.parallel, ranks)
        metrics = [step.result.metrics for step in iter(training.advance, None) if step.result is not None]
        state = tensors(training.states())
        found.outcome, found.notes = (state, metrics), [*plan.lines, *training.notes]
        training.close()
    except Exception as error:  # noqa: BLE001 - whatever it is, the test judges it
        found.error = one_line(error)
    return found


def on_one(name: str) -> list[Part]:
    """An entry on one rank, in this process."""
    plan = planned(name, 1)
    return [Part(error=plan) if isinstance(plan, str) else trained(name, plan, OneRank())]


def on_several(world: int, names: Sequence[str], *, sharded: bool = False) -> dict[str, list[Part]]:
    """The entries on so many ranks: by name, what each rank has; of a sharded one, rank 0 has all of its state."""
    plans = {name: planned(name, world, sharded=sharded) for name in names}
    found = {name: [Part(error=plan)] * world for name, plan in plans.items() if isinstance(plan, str)}
    while missing := [
        (name, plan) for name, plan in plans.items() if isinstance(plan, BatchPlan) and name not in found
    ]:
        with tempfile.TemporaryDirectory() as folder:
            found |= _pooled(world, missing, Path(folder))
    return found


def _pooled(world: int, plans: Sequence[tuple[str, BatchPlan]], folder: Path) -> dict[str, list[Part]]:
    """The entries until one hangs, or fails on some ranks only: the ranks' connections are lost then."""
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_rank, args=(rank, world, plans, folder)) for rank in range(world)]
    for process in processes:
        process.start()
    found: dict[str, list[Part]] = {}
    try:
        for name, _ in plans:
            ended = _waited([folder / f"{name}.{rank}" for rank in range(world)], processes)
            hangs = Part(error="hangs: this rank never came to an end")
            found[name] = [pickle.loads(path.read_bytes()) if there else hangs for path, there in ended.items()]
            if len({rank.error for rank in found[name]}) > 1:
                return found
        return found
    finally:
        for process in processes:
            process.kill()
            process.join()


def _waited(paths: Sequence[Path], processes: Sequence[Any]) -> dict[Path, bool]:
    """Which of these files there are, after waiting for all of them."""
    began = first = time.monotonic()
    while True:
        ended = {path: path.exists() for path in paths}
        now = time.monotonic()
        if not any(ended.values()):
            first = now
        alive = all(process.is_alive() for process in processes)
        if all(ended.values()) or now - first > (BEHIND_S if alive else 1) or now - began > (SILENT_S if alive else 1):
            return ended
        time.sleep(0.01)


def _rank(rank: int, world: int, plans: Sequence[tuple[str, BatchPlan]], folder: Path) -> None:
    import torch.distributed as dist

    from raygpu.training.distributed.torch_ranks import TorchRanks

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    meeting = f"file://{folder}/meet"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world, timeout=timedelta(seconds=15))
    ranks = TorchRanks()
    gc.freeze()  # the libraries: each entry's search for what still holds a parameter would go through them
    for name, plan in plans:
        ranks.gather([name])
        found = trained(name, plan, ranks)
        part = folder / f"part.{rank}"
        part.write_bytes(pickle.dumps(found))
        part.rename(folder / f"{name}.{rank}")
    time.sleep(SILENT_S)  # until the test ends it: a rank that leaves first breaks what the others still say
