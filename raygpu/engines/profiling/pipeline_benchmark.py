"""Train the stages of a pipeline by turns: a process for each stage, on a device of its own."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import ray

from raygpu.engines.cluster.cluster import Cluster
from raygpu.engines.cluster.node_actors import pinned
from raygpu.engines.profiling.probe_actor import Fault, fault_of
from raygpu.engines.profiling.probe_workers import answers
from raygpu.engines.profiling.workload import Workload
from raygpu.planning.model_placements import PlacementTurn
from raygpu.training.base import Settings, thread_environment


class StageActor:
    """Ray actor of one stage; returns a `Fault` if it raises."""

    def __init__(self, workload: Workload, settings: Settings, environment: Mapping[str, str]) -> None:
        os.environ.update(environment)
        os.chdir(workload.source.folder)
        self._workload, self._settings = workload, settings
        self._code: Any = workload.source.resolve()

    def join(self, rank: int, world: int, folder: str, device: str) -> Fault | None:
        """Join the group of all stages, which meet in a folder. device: torch's name."""
        import torch
        import torch.distributed as dist

        try:
            self._device = torch.device(device)
            backend = "nccl" if self._device.type == "cuda" else "gloo"
            dist.init_process_group(backend, init_method=f"file://{folder}/meet", rank=rank, world_size=world)
        except BaseException as error:  # noqa: BLE001 - it is the answer
            return fault_of(error)
        return None

    def turn(self, splits: Any, stages: Sequence[str], micro_batches: int, schedule: Any) -> Any:
        """Train a turn of this stage; return its PipelineTurn."""
        from raygpu.training.torch.pipeline import PipelineSettings, TorchPipeline

        work, settings = self._workload, PipelineSettings(tuple(stages), micro_batches, schedule)
        try:
            return TorchPipeline(self._code, splits, work.trial, self._settings, settings, self._device).turn()
        except BaseException as error:  # noqa: BLE001 - the user's code: what it raises is the answer
            return fault_of(error)


class PipelineBenchmark:
    """Processes for the stages of a pipeline, which stay for the next turn."""

    def __init__(self, cluster: Cluster, workload: Workload, settings: Settings) -> None:
        self._cluster, self._workload, self._settings = cluster, workload, settings
        self._actors: list[Any] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def turn(self, splits: Any, stages: Sequence[str], micro_batches: int, schedule: str) -> PlacementTurn | Fault:
        """Train a turn of all stages. splits: a reference to the data. The processes end with a fault of one."""
        joined = self._start(len(stages) + 1)
        if isinstance(joined, Fault):
            return joined
        calls = [actor.turn.remote(splits, tuple(stages), micro_batches, schedule) for actor in self._actors]
        turns = self._wait(calls)
        if isinstance(turns, Fault):
            return turns
        memory, busy = (tuple(getattr(each, name) for each in turns) for name in ("memory_gib", "busy_s"))
        return PlacementTurn(turns[0].epoch_s, turns[0].loss, memory, busy)

    def _start(self, world: int) -> Fault | None:
        """Start a process for each stage, unless they are there; return why one could not join the others."""
        if len(self._actors) == world:
            return None
        self.close()
        devices = self._cluster.devices
        threads = max(1, self._settings.threads // world)
        on_gpus = devices[0].uuid is not None and len(devices) >= world
        variables = thread_environment(threads) | {"GLOO_SOCKET_IFNAME": "lo"}
        if on_gpus:
            variables["CUDA_VISIBLE_DEVICES"] = ",".join(str(device.uuid) for device in devices)
        settings = Settings(self._settings.epochs, threads, self._settings.precision, self._settings.folder)
        make = pinned(StageActor, devices[0].node_id, max_concurrency=1)
        self._actors = [make.remote(self._workload, settings, variables) for _ in range(world)]
        self._folder = tempfile.TemporaryDirectory(prefix="raygpu-stages-")
        calls = [
            actor.join.remote(rank, world, self._folder.name, f"cuda:{rank}" if on_gpus else "cpu")
            for rank, actor in enumerate(self._actors)
        ]
        joined = self._wait(calls)
        return joined if isinstance(joined, Fault) else None

    def _wait(self, calls: Sequence[Any]) -> list[Any] | Fault:
        """Wait for all answers, or for the first fault: the other stages would wait for ever for that one."""
        pending_calls = list(calls)
        while pending_calls:
            (done,), pending_calls = ray.wait(pending_calls, num_returns=1)
            answered = answers([done])
            if isinstance(answered, Fault):
                self.close()
                return answered
        return answers(calls)

    def close(self) -> None:
        """End the processes."""
        for actor in self._actors:
            ray.kill(actor)
        self._actors = []
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None
