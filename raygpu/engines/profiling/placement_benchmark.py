"""Train each placement of a model in turns, in one process that sees all devices.

A turn makes the model anew, so that the placements never hold memory beside each other; and a turn that fails, or is
killed for its memory, takes the process with it, not the other placements.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import ray

from raygpu.config.sections import PIPELINES
from raygpu.engines.cluster.cluster import Cluster
from raygpu.engines.cluster.node_actors import pinned
from raygpu.engines.profiling.pipeline_benchmark import PipelineBenchmark
from raygpu.engines.profiling.probe_actor import Fault, fault_of
from raygpu.engines.profiling.probe_workers import answers
from raygpu.engines.profiling.workload import Workload
from raygpu.errors import error_line
from raygpu.experiment import Experiment
from raygpu.planning.model_placements import MeasuredPlacement, PlacementTurn
from raygpu.planning.pipelines import Unit
from raygpu.training.base import Settings, thread_environment
from raygpu.training.model_placement import start_placed

QUIET = {"KINETO_LOG_LEVEL": "5", "TF_CPP_MIN_LOG_LEVEL": "3"}
"""Variables that keep the profilers' own messages off the output."""


@dataclass(frozen=True, slots=True)
class PlacementSettings:
    """Settings of a comparison of placements."""

    rounds: int
    """Turns of each placement."""
    num_devices: int
    epochs: int
    """Number of epochs of the learning rate's schedule."""
    memory_gib: float | None
    """Memory of each device that a placement may not exceed; None for the device's own."""


class PlacementActor:
    """Ray actor that trains turns of placements; returns a `Fault` if a training raises."""

    def __init__(
        self,
        workload: Workload,
        settings: Settings,
        num_devices: int,
        device_gib: float | None,
        environment: Mapping[str, str],
    ) -> None:
        os.environ.update(environment)
        os.chdir(workload.source.folder)
        self._workload, self._settings = workload, settings
        self._num_devices, self._device_gib = num_devices, device_gib
        self._code = cast(Experiment, workload.source.resolve())

    def turn(self, splits: Any, parts: Mapping[str, int], profiled: bool) -> PlacementTurn | Fault:
        """Train a turn of one placement."""
        work = self._workload
        try:
            training = start_placed(
                work.source, self._code, splits, work.trial, self._settings, parts, self._num_devices, self._device_gib
            )
            try:
                return training.turn(profiled=profiled)
            finally:
                training.close()
        except BaseException as error:  # noqa: BLE001 - the user's code: what it raises is the answer
            return fault_of(error)

    def units(self, splits: Any) -> Any:
        """Measure the units into which a torch model can be cut, on the first device or, if that does not hold the
        model, on the CPU."""
        from raygpu.training.torch.pipeline_units import measured_units

        try:
            return measured_units(self._code, splits, self._workload.trial)
        except BaseException as error:  # noqa: BLE001 - the user's code: what it raises is the answer
            return fault_of(error)


class PlacementBenchmark:
    """Turns of placements on the devices of a local cluster. say: called with a line for each round."""

    def __init__(
        self, cluster: Cluster, workload: Workload, settings: PlacementSettings, say: Callable[[str], None]
    ) -> None:
        self._cluster, self._settings, self._say = cluster, settings, say
        self._splits = ray.put(workload.splits)
        self._workload = replace(workload, splits=None)
        threads = max(1, int(cluster.nodes[0].num_cpus))
        self._training = Settings(settings.epochs, threads, workload.precision, Path())
        self._pipeline = PipelineBenchmark(cluster, self._workload, self._training)
        self._actor: Any = None

    def units(self) -> list[Unit] | Fault:
        """Return the units into which a torch model can be cut, with their seconds and memory."""
        self._actor = self._actor or self._spawn()
        answered = answers([self._actor.units.remote(self._splits)])
        return answered if isinstance(answered, Fault) else answered[0]

    def measure(self, placements: Sequence[MeasuredPlacement]) -> list[MeasuredPlacement]:
        """Return the placements with their turns, in the order given; a placement that fails once is left out of the
        next rounds."""
        by_name = {placement.name: placement for placement in placements}
        for number in range(self._settings.rounds):
            going = [name for name, placement in by_name.items() if placement.fault is None]
            if not going:
                break
            for name in reversed(going) if number % 2 else going:  # none has always the quieter moment
                by_name[name] = self._with_turn(by_name[name], profiled=number == 0)
            summary = ", ".join(f"{each.name} {_told(each)}" for each in by_name.values())
            self._say(f"round {number + 1} of {self._settings.rounds}: {summary}")
        return list(by_name.values())

    def _with_turn(self, placement: MeasuredPlacement, *, profiled: bool) -> MeasuredPlacement:
        """Return the placement with one more turn, or with its fault and without turns."""
        turn = self._turn(placement, profiled=profiled)
        if isinstance(turn, Fault):
            self.close()
            return replace(placement, turns=(), fault=fault_line(turn))
        if (excess := self._excess(turn)) is not None:
            return replace(placement, turns=(), fault=excess)
        return replace(placement, turns=(*placement.turns, turn))

    def _turn(self, placement: MeasuredPlacement, *, profiled: bool) -> PlacementTurn | Fault:
        if placement.stages:
            schedule = PIPELINES[placement.name]
            return self._pipeline.turn(self._splits, placement.stages, placement.micro_batches, schedule)
        self._actor = self._actor or self._spawn()
        answer = answers([self._actor.turn.remote(self._splits, placement.parts, profiled)])
        return answer if isinstance(answer, Fault) else answer[0]

    def _excess(self, turn: PlacementTurn) -> str | None:
        """Return a line on the first device that a turn takes more memory of than it has; None if there is none."""
        limit = self._settings.memory_gib
        for index, gib in enumerate(turn.memory_gib):
            if limit is not None and gib > limit:
                return f"out of memory: takes {gib:.3g} GiB of {limit:g} on device {index}"
        return None

    def _spawn(self) -> Any:
        devices = self._cluster.devices
        variables = thread_environment(self._training.threads) | QUIET
        if devices[0].uuid is not None:
            variables["CUDA_VISIBLE_DEVICES"] = ",".join(str(device.uuid) for device in devices)
        actor = pinned(PlacementActor, devices[0].node_id, max_concurrency=1)
        num_devices = self._settings.num_devices
        return actor.remote(self._workload, self._training, num_devices, devices[0].memory_gib, variables)

    def close(self) -> None:
        """End all processes."""
        self._pipeline.close()
        if self._actor is not None:
            ray.kill(self._actor)
            self._actor = None


def fault_line(fault: Fault) -> str:
    """Return a fault as one line."""
    return f"out of memory: {error_line(fault.text)}" if fault.out_of_memory else error_line(fault.text)


def _told(placement: MeasuredPlacement) -> str:
    return placement.fault or f"{placement.turns[-1].epoch_s:.3g} s"
