"""A command's use of the service of `raygpu up`, where one runs that fits it."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, TypeVar

from raygpu.config import ProblemConfig, SweepConfig, TrainConfig
from raygpu.devices.nvml import Gpu
from raygpu.engines.cluster import ray_environment
from raygpu.engines.cluster.service.client import Lease, NotUsed, lease
from raygpu.engines.cluster.service.folder import ServiceFolder
from raygpu.engines.cluster.service.gpu_leases import GpuRequest
from raygpu.engines.cluster.service.handover import SWITCH
from raygpu.storage import is_job

if TYPE_CHECKING:  # Ray takes seconds to import
    from raygpu.engines.cluster.cluster import Cluster

AnyConfig = TypeVar("AnyConfig", SweepConfig, TrainConfig)


@dataclass(frozen=True, slots=True)
class ServiceUse:
    """A command's part of the service's GPUs."""

    lease: Lease
    gpus: Sequence[Gpu]
    apart: bool

    def join(self, job: str) -> Cluster:
        """Connect to the service's Ray. job: name on Ray's dashboard. Raises RaygpuError."""
        return self.lease.join(self.gpus, job, apart=self.apart)


@contextmanager
def service_use(
    config: ProblemConfig,
    gpus: Sequence[Gpu],
    tell: Callable[[str], None],
    *,
    apart: bool = True,
    least: Fraction | None = None,
    of: Sequence[Gpu] = (),
    measures: bool = False,
) -> Iterator[ServiceUse | None]:
    """Take a part of the service's GPUs meanwhile; wait for them if others use them.

    Yields None where no service runs, or where the command may not use it, after a line that says why. gpus: those of
    this machine that the command uses. least: smallest number of GPUs that is of use. of:
    all GPUs that the service may have, where the command takes `gpus` by their UUIDs. measures: whether the command
    wants all GPUs for itself.
    """
    use = _use(config, [*gpus], [*(of or gpus)], tell, apart, least, measures)
    try:
        yield use
    finally:
        if use is not None:
            use.lease.close()


def held(config: AnyConfig, use: ServiceUse | None) -> AnyConfig:
    """Return the configuration with the command's part of the service's GPUs as its largest number, for the plan."""
    if use is None or use.lease.part >= use.lease.num_gpus:
        return config
    cluster = config.cluster.model_copy(update={"max_gpus": float(use.lease.part)})
    return config.model_copy(update={"cluster": cluster})


def _use(
    config: ProblemConfig,
    gpus: Sequence[Gpu],
    of: Sequence[Gpu],
    tell: Callable[[str], None],
    apart: bool,
    least: Fraction | None,
    measures: bool,
) -> ServiceUse | None:
    if os.environ.get(SWITCH) == "off" or is_job():
        return None
    section = getattr(config, "cluster", None)
    try:
        folder = ServiceFolder.existing()
        if folder is None or folder.address() is None:
            return None
        if section is not None and not section.is_local:
            raise NotUsed(f"cluster.address is {section.address}")
        if os.environ.get("RAY_AUTH_MODE", "token") != "token":
            raise NotUsed("RAY_AUTH_MODE turns Ray's tokens off here")
        ray_environment.prepare(local=True)
        request = GpuRequest(
            what=f"{config.COMMAND} {config.name}",
            most=section.most_gpus if section is not None else None,
            least=least,
            whole=measures,
        )
        gpu_lease = lease(folder, request, of, uuid.uuid4().hex, tell, apart=apart)
    except OSError:  # there is no folder for it, and so no service
        return None
    except NotUsed as reason:
        tell(f"service: not used: {reason}")
        return None
    if gpu_lease is None:
        return None
    if gpu_lease.part < gpu_lease.num_gpus and not measures:
        tell(f"service: {float(gpu_lease.part):g} of its {gpu_lease.num_gpus} GPUs for this command")
    return ServiceUse(gpu_lease, gpus, apart)
