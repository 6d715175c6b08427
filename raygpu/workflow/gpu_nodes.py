"""The machines whose GPUs `raygpu gpus` shows: this one, or every node of a Ray cluster that runs."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from raygpu.config.sections import OWN_RAY
from raygpu.engines.cluster import ray_environment
from raygpu.engines.cluster.running_cluster import ADDRESS, found_address, given_address
from raygpu.errors import BadInput
from raygpu.records import interrupts
from raygpu.workflow.gpu_status import MachineStatus, status_here

AUTO = "auto"
KEY = "--address"
Ask = Callable[[float], "list[NodeStatus]"]
"""Function that returns the nodes' state; takes the seconds to wait for them."""


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A node, and the state of its GPUs or why it is not known."""

    name: str
    """Host name, or the name that the node was started with."""
    address: str | None
    """IP address; None of this machine alone."""
    node_id: str | None
    """Ray's id of the node; None of this machine alone."""
    status: MachineStatus | None
    fault: str | None = None
    """Reason why the state is not known; None if it is."""
    pending: bool = False
    """Whether the node may still answer."""


@contextmanager
def nodes(address: str | None, say: Callable[[str], None]) -> Iterator[Ask]:
    """Yield the function that asks the nodes of a cluster, or this machine where none runs.

    address: local for this machine alone, auto or HOST:PORT; None for RAY_ADDRESS, else the cluster that `ray start`
    has begun on this machine, else this machine. say: takes the line on a cluster that was found here and cannot be
    joined; one that was asked for is BadInput then.
    """
    wanted, key = _chosen(address)
    cluster_address = wanted if wanted is not None else found_address()
    if cluster_address in (None, OWN_RAY):
        yield _this_machine
        return
    assert cluster_address is not None
    ray_environment.prepare(local=False)
    from raygpu.engines.cluster.node_calls import NodeCalls  # Ray takes seconds to import

    with ExitStack() as stack:
        try:
            calls = stack.enter_context(NodeCalls(cluster_address, status_here, key))
        except BadInput as error:
            if wanted is not None:
                raise
            say(f"this machine alone: {error}; {KEY} local leaves that out")
            yield _this_machine
            return
        interrupts.retake_signals()

        def ask(timeout_s: float) -> list[NodeStatus]:
            """Return the state of the cluster's nodes."""
            answers = calls.ask(timeout_s)
            return told_once([NodeStatus(a.name, a.address, a.node_id, a.answer, a.fault, a.pending) for a in answers])

        yield ask


def _chosen(address: str | None) -> tuple[str | None, str]:
    """Return the address that a person has given, None for none, and what to call it. Raises BadInput.

    Ray itself would take any Ray of the machine for auto, also one that listens on loopback alone, and wait for it.
    """
    ray_address, key = given_address(), KEY if address is not None else ADDRESS
    if ray_address is not None and ray_address.startswith(("http://", "https://")):
        ray_address = None  # the dashboard's, for Ray's jobs
    wanted = ray_address if address is None or (address == AUTO and ray_address is not None) else address
    if wanted == AUTO and (wanted := found_address(of_any_user=True)) is None:
        raise BadInput(f"{key}: read {AUTO}; no cluster of `ray start` answers on this machine; give HOST:PORT")
    return wanted, key


def _this_machine(timeout_s: float) -> list[NodeStatus]:
    return [NodeStatus(socket.gethostname(), None, None, status_here(os.environ.get("CUDA_VISIBLE_DEVICES")))]


def told_once(found: Sequence[NodeStatus]) -> list[NodeStatus]:
    """Return the nodes; a training that several nodes of one machine see, on no GPU of theirs, is shown by the first.

    A training on a GPU of one such node is on none of the others', and is no news there.
    """
    seen = {
        (each.status.machine, process.pid)
        for each in found
        if each.status is not None
        for gpu in each.status.gpus
        for process in gpu.processes
    }
    nodes = []
    for each in found:
        status = each.status
        if status is not None:
            processes = tuple(process for process in status.elsewhere if (status.machine, process.pid) not in seen)
            seen |= {(status.machine, process.pid) for process in processes}
            each = replace(each, status=replace(status, elsewhere=processes))
        nodes.append(each)
    return nodes
