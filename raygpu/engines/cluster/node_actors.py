"""Actors that stay on one node and reserve no resources, and the GPUs that Ray was given on their node."""

from __future__ import annotations

import os
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raygpu.engines.cluster import preload
from raygpu.engines.cluster.ray_environment import environment_of


def pinned(actor: type[Any], node_id: str | None = None, **options: Any) -> Any:
    """Return the class as a Ray actor on a node, without resources; start it by `.remote(...)`.

    node_id: Ray's id of the node; by default the driver's.
    """
    node_id = node_id or ray.get_runtime_context().get_node_id()
    where = NodeAffinitySchedulingStrategy(node_id, soft=False)
    return ray.remote(actor).options(num_cpus=0, scheduling_strategy=where, **options)


def start_actor(actor: type[Any], *arguments: Any) -> Any:
    """Start an actor that trains nothing on the driver's node, so that both end together, and return its handle."""
    return pinned(actor, runtime_env=preload.WITHOUT).remote(*arguments)


def visible_of_raylet() -> str | None:
    """Return CUDA_VISIBLE_DEVICES of a worker's raylet, its parent; None if it is not set. Ray changes the worker's.

    Raises RuntimeError if the raylet's environment cannot be read.
    """
    if not (environment := environment_of(os.getppid())):
        raise RuntimeError("the environment of Ray's raylet cannot be read")
    return environment.get("CUDA_VISIBLE_DEVICES")
