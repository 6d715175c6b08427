"""Compute how many more trainings each GPU has room for: of running sweeps, and of one that a person names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from raygpu.devices.fitness import packing_refusal
from raygpu.planning.cost_model import FreeMemory
from raygpu.planning.gpu_room import Room, room_for
from raygpu.planning.training_need import Need
from raygpu.workflow.gpu_status import GpuProcess, GpuStatus, MachineStatus, RoomOfTraining

NOT_HERE = "not measured on this device"
NOT_MEASURED = "its sweep has no profile of it"


@dataclass(frozen=True, slots=True)
class WantedTraining:
    """A training that a person asks about, with what is known of it on each type of device."""

    name: str
    needs: tuple[Need, ...]
    advice: str
    """The command that measures it, as text."""


def with_rooms(status: MachineStatus, wanted: WantedTraining | None) -> MachineStatus:
    """Return the state with the rooms of each GPU, or of the simulated one where there is none.

    The rooms are those of the sweeps that run on the machine. wanted: a further training; None for none.
    """
    everywhere = [process for each in status.gpus for process in each.processes] + list(status.elsewhere)
    needs = needs_of_running(everywhere)
    if not status.gpus:
        free = FreeMemory(status.host_free_gib, None)
        rooms = tuple(_rooms(needs, wanted, (status.cpu, None), status.elsewhere, free, None))
        return replace(status, rooms=rooms)
    places = [each for each in status.gpus if not each.gpu.mig]
    host_gib = status.host_free_gib / max(1, len(places))
    gpus = (replace(each, rooms=_rooms_of(each, needs, wanted, host_gib)) for each in status.gpus)
    return replace(status, gpus=tuple(gpus))


def needs_of_running(processes: Sequence[GpuProcess]) -> dict[str, list[Need]]:
    """Return the needs of the sweeps that these processes belong to, by the sweep's name; empty lists where nothing is
    known."""
    needs: dict[str, list[Need]] = {}
    for process in processes:
        noted = process.activity
        if noted is None or noted.share is None:  # a production training has no share, and no more of it are wanted
            continue
        run_needs = needs.setdefault(noted.run, [])
        if noted.need is not None and noted.need not in run_needs:
            run_needs.append(noted.need)
    return needs


def _rooms_of(
    status: GpuStatus, needs: Mapping[str, Sequence[Need]], wanted: WantedTraining | None, host_gib: float
) -> tuple[RoomOfTraining, ...]:
    """Return the rooms of one GPU; none of one that is cut into MIG instances."""
    if status.gpu.mig:
        return ()
    memory = status.memory
    free = FreeMemory(host_gib, memory.free_gib if memory is not None else None)
    device = status.gpu.name, status.gpu.memory_gib
    return tuple(_rooms(needs, wanted, device, status.processes, free, packing_refusal(status.gpu)))


def _rooms(
    needs: Mapping[str, Sequence[Need]],
    wanted: WantedTraining | None,
    device: tuple[str, float | None],
    processes: Sequence[GpuProcess],
    free: FreeMemory,
    refusal: str | None,
) -> list[RoomOfTraining]:
    """Return the rooms of one device. device: its name and its memory, None of a simulated one.

    A sweep whose room is not known has one where it runs alone.
    """
    here = {each.activity.run for each in processes if each.activity is not None}
    kinds = [
        (run, known, (NOT_HERE if known else NOT_MEASURED) if run in here else None) for run, known in needs.items()
    ]
    if wanted is not None:
        kinds.append((wanted.name, wanted.needs, f"{NOT_HERE}; {wanted.advice}"))
    rooms = []
    for name, known, missing in kinds:
        need = next((each for each in known if each.is_of(*device)), None)
        if need is not None:
            rooms.append(RoomOfTraining(name, room_for(need, num_running(need, name, processes), free, refusal)))
        elif missing is not None:
            rooms.append(RoomOfTraining(name, Room(None, None, None, None, missing)))
    return rooms


def num_running(need: Need, run: str, processes: Sequence[GpuProcess]) -> int:
    """Return the number of trainings on a device: the members of this run's arrays, every other process as one."""
    together = need.way in ("fused", "split")
    members = (
        len(each.activity.trials) if together and each.activity is not None and each.activity.run == run else 1
        for each in processes
    )
    return sum(members)
