"""What makes one Ray cheap to share: commands that join it in place of starting one, one probe for all of them, and
plain workers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray

from raygpu.devices import host
from raygpu.devices.nvml import Gpu
from raygpu.engines.cluster import local_cluster, remote_cluster
from raygpu.engines.cluster.cluster import Cluster
from raygpu.engines.cluster.dashboard import Dashboard
from raygpu.engines.cluster.job_name import named_job
from raygpu.engines.cluster.node_actors import pinned
from raygpu.engines.tune import tuner
from raygpu.engines.tune.tune_private_api import in_started_workers
from raygpu.records.device import SIMULATED, Device

ROOT = str(Path(__file__).parents[2])


def joining(address: str) -> Callable[..., Cluster]:
    """Return what takes the place of `start_local`: it joins the cluster at this address, whose simulated GPU becomes
    the run's own. With GPUs, a Ray of its own is started as ever."""
    start_local = local_cluster.start_local

    def join(gpus: Sequence[Gpu], job: str = "", **options: Any) -> Cluster:
        if gpus:
            return start_local(gpus, job, **options)
        named = named_job(job)
        named._py_driver_sys_path.append(ROOT)  # the tests' experiments, whatever folder the command runs in
        ray.init(address=address, job_config=named, log_to_driver=False, logging_level=logging.ERROR)
        node_id = ray.get_runtime_context().get_node_id()
        node = replace(host.nodes([])[0], num_cpus=ray.cluster_resources()["CPU"])
        return Cluster([Device(0, node_id, "0", SIMULATED)], [node], Dashboard(), local=True)

    return join


@contextmanager
def one_probe_a_node() -> Iterator[None]:
    """Keep a node's probe for the next command that joins the cluster: a worker takes a second to start."""

    def probe(node_id: str) -> Any:
        kept = {"name": f"probe of {node_id}", "namespace": "tests", "lifetime": "detached", "get_if_exists": True}
        return pinned(remote_cluster._NodeProbe, node_id, **kept).remote()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(remote_cluster, "_probe", probe)
        yield


@contextmanager
def no_variables_a_trial() -> Iterator[None]:
    """Let trials begin in plain workers, as in a local Ray (`in_started_workers`): the tests' Ray has the variables of
    this process. To set them for a worker, Ray starts another Python before it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuner, "in_started_workers", lambda wanted: in_started_workers(True))
        yield
