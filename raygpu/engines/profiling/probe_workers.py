"""Workers of a probe: processes that train on one device of a cluster, outside Ray's count of GPUs.

probe = ProbeProcesses(cluster, cluster.devices[0], Workload(source, splits, trial, "float32"))
actors = [probe.start(threads=1) for _ in range(3)]
made = probe.make("process", actors, [[trial] for trial in probe.copies(3)], threads=1)
probe.close()
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import ray

from raygpu.config.sections import Way
from raygpu.engines.cluster.cluster import Cluster
from raygpu.engines.profiling.probe_actor import Fault, Made, spawn
from raygpu.engines.profiling.workload import Workload
from raygpu.records.device import Device
from raygpu.search.trials import Trial
from raygpu.training.base import thread_environment
from raygpu.training.out_of_memory import is_out_of_memory

END_S = 5.0


class ProbeProcesses:
    """Worker processes that train copies of one trial on one device.

    folder: folder that functions and scripts may write to; default: the temporary folder of the device's node.
    """

    def __init__(
        self,
        cluster: Cluster,
        device: Device,
        workload: Workload,
        folder: str | None = None,
    ) -> None:
        node = cluster.node_of(device)
        self.num_cpus = max(1, int(node.num_cpus / node.num_gpus))
        self.device = device
        self.local = cluster.local
        self.source = cluster.travelled(workload.source)
        self._splits = ray.put(workload.splits)
        self._trial, self._precision = workload.trial, workload.precision
        self._folder = folder
        self._actors: list[Any] = []

    def start(self, threads: int, *, yielding: bool = False, environment: Mapping[str, str] | None = None) -> Any:
        """Start a process that sees only the probe's device, and return its actor.

        threads: CPU threads. yielding: whether waiting threads leave the CPU to others. environment: more variables.
        """
        variables = thread_environment(threads, yielding=yielding)
        if self.device.uuid is not None:
            variables["CUDA_VISIBLE_DEVICES"] = self.device.uuid
        variables |= environment or {}
        actor = spawn(self.device.node_id, self.source, self._precision, variables, self._folder)
        self._actors.append(actor)
        return actor

    def copies(self, n: int) -> list[Trial]:
        """Return n copies of the trial, with ids and seeds of their own."""
        seed = self._trial.seed
        return [replace(self._trial, trial_id=Trial.name(i), seed=seed + i) for i in range(n)]

    def make(
        self,
        way: Way,
        actors: Sequence[Any],
        parts: Sequence[Sequence[Trial]],
        threads: int,
        memory_gib: float | None = None,
    ) -> list[Made] | Fault:
        """Make the trainings of each process, in place of earlier ones; return the reports or the first fault.

        parts: trials by process. memory_gib: memory of each part of a split GPU.
        """
        calls = [
            actor.make.remote(way, self._splits, part, threads, memory_gib)
            for actor, part in zip(actors, parts, strict=True)
        ]
        return answers(calls)

    def end(self, actors: Sequence[Any]) -> None:
        """End processes and free their memory; kill those that have not ended within END_S seconds."""
        if not actors:
            return
        leaving = [actor.leave.remote() for actor in actors]
        ray.wait(leaving, num_returns=len(leaving), timeout=END_S)
        for actor in actors:
            ray.kill(actor)
            self._actors.remove(actor)

    def close(self) -> None:
        """End all processes of the probe."""
        self.end(list(self._actors))


def answers(calls: Sequence[Any]) -> list[Any] | Fault:
    """Wait for the answers of all processes; return them, or the first fault among them."""
    try:
        all_answers = ray.get(list(calls))
    except ray.exceptions.OutOfMemoryError as error:
        return Fault(str(error), out_of_memory=True)
    except ray.exceptions.RayActorError as error:
        if "creation task" in str(error):  # the user's code could not be imported there
            return Fault(str(error), out_of_memory=is_out_of_memory(str(error)))
        return Fault("a process was lost: it was killed, or ended by itself", out_of_memory=False)
    return next((answer for answer in all_answers if isinstance(answer, Fault)), all_answers)
