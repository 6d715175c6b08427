"""A command's use of this user's service: whether it may, its part of the GPUs, and the connection to Ray.

The service gives a part to a connection, which the system closes however the command ends.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raygpu.devices import host
from raygpu.devices.nvml import Gpu
from raygpu.engines.cluster.service.connection import PROTOCOL, Connection
from raygpu.engines.cluster.service.fingerprint import Fingerprint, refusal
from raygpu.engines.cluster.service.folder import ServiceFolder
from raygpu.engines.cluster.service.gpu_leases import GpuRequest

if TYPE_CHECKING:  # Ray takes seconds to import
    from raygpu.engines.cluster.cluster import Cluster

ANSWER_S = 10.0
"""Seconds that the service has for an answer, unless the command waits for GPUs."""


class NotUsed(Exception):
    """The reason why a command does not use the service, as a part of a sentence."""


class Lease:
    """A part of the service's GPUs, from `lease` until `close`."""

    def __init__(self, connection: Connection, granted: dict[str, Any], folder: ServiceFolder, mark: str) -> None:
        self.part = Fraction(granted["part"])
        """Number of GPUs."""
        self.num_gpus = int(granted["num_gpus"])
        self.mark = mark
        self._connection, self._ray = connection, granted
        self._environment = folder.path / f"command-{os.getpid()}-{mark}"

    def join(self, gpus: Sequence[Gpu], job: str, *, apart: bool) -> Cluster:
        """Connect to the service's Ray, and return it as the command's cluster. Raises RaygpuError.

        gpus: of this machine, those of the service. job: name on Ray's dashboard. apart: whether unequal GPUs are kept
        apart.
        """
        import ray

        from raygpu.engines.cluster import orphan_processes, ray_environment
        from raygpu.engines.cluster.cluster import device
        from raygpu.engines.cluster.dashboard import Dashboard
        from raygpu.engines.cluster.job_name import named_job
        from raygpu.engines.cluster.ray_private_api import run_before_first_task, use_tokens
        from raygpu.engines.cluster.service import command_environment
        from raygpu.engines.cluster.service.service_cluster import ServiceCluster
        from raygpu.errors import RaygpuError, one_line

        use_tokens()
        with ray_environment.variable(orphan_processes.VARIABLE, self.mark):
            command_environment.write(self._environment)
        config = named_job(job)
        run_before_first_task(config, command_environment.TakenOver(str(self._environment)))
        try:
            ray.init(
                address=self._ray["gcs_address"], job_config=config, log_to_driver=False, logging_level=logging.ERROR
            )
        except Exception as error:
            raise RaygpuError(f"the service cannot be joined: {one_line(error)}; raygpu down ends it") from error
        places = [(str(node_id), str(local_id)) for node_id, local_id in self._ray["devices"]]
        by_uuid = {local_id: node_id for node_id, local_id in places}
        devices = [device(i, by_uuid[gpu.uuid], gpu.uuid, gpu) for i, gpu in enumerate(gpus)]
        devices = devices or [device(0, *places[0], None)]
        nodes = host.nodes(gpus, apart=apart)
        return ServiceCluster(
            devices,
            nodes,
            Dashboard(self._ray["dashboard"]),
            True,
            _resources=_resources(nodes),
            mark=self.mark,
            give_back=self.close,
            num_workers=int(self._ray["workers"]),
            logs=Path(self._ray["logs"]),
        )

    def close(self) -> None:
        """Give the part back. Its workers have ended, or end with the connection to Ray."""
        self._connection.close()
        with suppress(OSError):
            self._environment.unlink()


def lease(
    folder: ServiceFolder,
    request: GpuRequest,
    gpus: Sequence[Gpu],
    mark: str,
    tell: Callable[[str], None],
    *,
    apart: bool,
) -> Lease | None:
    """Return a part of the service's GPUs, or None if no service runs; wait for GPUs that others use.

    gpus: those that the command uses; empty for a simulated one. mark: of what the command's trials start. tell: takes
    a line on the wait. Raises NotUsed.
    """
    address = folder.address()
    if address is None:
        return None
    connection = _connected(folder)
    if connection is None:
        return None
    try:
        if address.get("protocol") != PROTOCOL:
            raise NotUsed("it is one of another version")
        reason = refusal(address.get("fingerprint", {}), Fingerprint.here(gpus, apart=apart))
        if reason is not None:
            raise NotUsed(reason)
        connection.send({"ask": "use", "request": request.as_json(), "mark": mark})
        answer = connection.receive(ANSWER_S)
        if answer is not None and "waiting" in answer:
            tell(f"service: {answer['waiting']}; {request.what} waits for its part")
            answer = connection.receive()
        if answer is None:
            raise NotUsed("it has ended")
        if "refused" in answer:
            raise NotUsed(answer["refused"])
        return Lease(connection, answer, folder, mark)
    except (OSError, ValueError, KeyError) as error:
        connection.close()
        raise NotUsed(f"it does not answer ({error})") from error
    except BaseException:
        connection.close()
        raise


def asked(folder: ServiceFolder, message: dict[str, Any]) -> dict[str, Any] | None:
    """Return the service's answer to a message; None if no service runs. Raises NotUsed."""
    connection = _connected(folder) if folder.address() is not None else None
    if connection is None:
        return None
    try:
        connection.send(message)
        return connection.receive(ANSWER_S)
    except (OSError, ValueError) as error:
        raise NotUsed(f"it does not answer ({error})") from error
    finally:
        connection.close()


def _connected(folder: ServiceFolder) -> Connection | None:
    """Return a connection to the service; clean up after one that has ended, and return None. Raises NotUsed."""
    try:
        return Connection.to(folder.socket)
    except PermissionError as error:
        raise NotUsed(str(error)) from error
    except OSError as error:
        if folder.clean():
            return None
        raise NotUsed(f"it does not answer ({error})") from error


def _resources(nodes: Sequence[Any]) -> list[str | None]:
    """Return Ray's name for the type of each node's GPUs, as `local_cluster` gives it."""
    from raygpu.engines.cluster.local_cluster import type_resource

    return [type_resource(node.device_type) for node in nodes] if len(nodes) > 1 else []
