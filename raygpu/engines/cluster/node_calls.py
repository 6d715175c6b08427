"""Call one function on every node of a running Ray cluster, again and again, without taking anything of the cluster.

with NodeCalls(address, function) as calls:
    answers = calls.ask(timeout_s=20.0)

Each node gets an actor that reserves no CPU and no GPU, and ends with this process. Nodes that join are asked too;
those that leave, or do not answer, are told as such.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, TypeVar

import ray

from raygpu.engines.cluster import runtime_env
from raygpu.engines.cluster.cluster import head_answers, shutdown
from raygpu.engines.cluster.node_actors import pinned, visible_of_raylet
from raygpu.engines.cluster.remote_cluster import join
from raygpu.errors import RaygpuError, error_line, one_line
from raygpu.storage import is_job

DEAD_BECAUSE = re.compile(r"The actor (?:is dead|died) because (?:of )?(.*?)(?:\. |\.?$)", re.MULTILINE)
"""Ray's reason for the end of an actor."""
AGAIN_S = 20.0
"""Seconds after which an actor that has ended is started again: a node may have memory later, or have lost a worker."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NodeAnswer(Generic[T]):
    """A node's answer, or why there is none."""

    node_id: str
    """Ray's id of the node."""
    name: str
    """Host name of the node, or the name that it was started with."""
    address: str
    """IP address of the node."""
    answer: T | None
    """The answer; of a node that is slow, the one before."""
    fault: str | None
    """Reason why there is no new answer; None if there is one."""
    pending: bool = False
    """Whether an answer may still come."""


@dataclass(slots=True)
class _Asked:
    """A node that is asked."""

    node: dict[str, Any]
    actor: Any
    call: Any = None
    """Call under way; None if the last one was answered."""
    since_s: float = 0.0
    """Time of that call."""
    last: Any = None
    """The answer before."""
    fault: str | None = None
    """Why its actor has ended; None while it lives."""
    again_s: float = 0.0
    """Time of the next try, after its actor has ended."""
    gone: bool = False


def _death(error: Exception) -> str:
    """Return why an actor has died: the error of raygpu's import on the node, or what Ray says of its process."""
    text = str(error)
    if "failed to import" in text:
        return f"raygpu cannot be imported there: {error_line(text)}"
    because = DEAD_BECAUSE.search(text)
    return because[1] if because is not None else one_line(error)


class NodeCaller:
    """Ray actor that calls a function on its node."""

    def call(self, function: Callable[[str | None], Any]) -> Any:
        """Call the function with the CUDA_VISIBLE_DEVICES that the node was started with, and return its result."""
        return function(visible_of_raylet())


class NodeCalls(Generic[T]):
    """Context manager that joins a running cluster and calls a function on its nodes.

    address: auto or HOST:PORT. key: begins the line of a fault of the address. function: takes CUDA_VISIBLE_DEVICES as
    a node was started with it, or None; its module is a part of raygpu, which travels to the nodes. Raises BadInput if
    the cluster cannot be joined.
    """

    def __init__(self, address: str, function: Callable[[str | None], T], key: str) -> None:
        self._address, self._key = address, key
        self._function = function
        self._asked: dict[str, _Asked] = {}

    def __enter__(self) -> NodeCalls[T]:
        # In a job, raygpu came along with it.
        join(self._address, "gpus", None if is_job() else runtime_env.own_code(), key=self._key)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if head_answers():
            shutdown()

    def ask(self, timeout_s: float) -> list[NodeAnswer[T]]:
        """Return the answer of each node within this time, sorted by address and name; of a node that is slow, or that
        has left the cluster since an earlier question, the reason why there is none.

        Raises RaygpuError if the cluster is gone.
        """
        if not head_answers():
            raise RaygpuError(f"the Ray cluster at {self._address!r} does not answer any more")
        self._follow()
        now = time.monotonic()
        for asked in self._asked.values():
            if asked.fault is not None and now >= asked.again_s and not asked.gone:
                asked.actor, asked.fault = pinned(NodeCaller, asked.node["NodeID"]).remote(), None
            if asked.call is None and asked.fault is None and not asked.gone:
                asked.call, asked.since_s = asked.actor.call.remote(self._function), now
        calls = [asked.call for asked in self._asked.values() if asked.call is not None]
        ready, _ = ray.wait(calls, num_returns=len(calls), timeout=timeout_s) if calls else ([], [])
        answers = [self._answer(asked, ready) for asked in self._asked.values()]
        return sorted(answers, key=lambda each: (each.address, each.name, each.node_id))

    def _follow(self) -> None:
        """Start an actor on each new node, and mark those that have left."""
        alive = {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}
        for node_id, node in alive.items():
            if node_id not in self._asked:
                self._asked[node_id] = _Asked(node, pinned(NodeCaller, node_id).remote())
        for node_id, asked in self._asked.items():
            if node_id not in alive:
                asked.gone, asked.call, asked.last = True, None, None

    def _answer(self, asked: _Asked, ready: Sequence[Any]) -> NodeAnswer[T]:
        """Return the answer to a call that is ready, or the reason why there is none."""
        node = asked.node
        fault, pending = asked.fault, False
        if asked.gone:
            fault = "has left the cluster"
        elif asked.call is None:
            pass  # its actor has ended before
        elif asked.call not in ready:
            status = "no answer yet" if asked.last is None else "no new answer"
            fault, pending = f"{status} after {time.monotonic() - asked.since_s:.0f} s", True
        else:
            call, asked.call, asked.last = asked.call, None, None
            try:
                asked.last = ray.get(call)
            except ray.exceptions.ActorUnavailableError:
                fault = "cannot be reached"  # Ray does not know yet whether the node is lost
            except ray.exceptions.RayActorError as error:
                fault = asked.fault = _death(error)
                asked.again_s = time.monotonic() + AGAIN_S
            except ray.exceptions.RayTaskError as error:
                fault = one_line(error.cause or error)
            except ray.exceptions.RayError as error:
                fault = one_line(error)
        name, address = str(node["NodeManagerHostname"]), str(node["NodeManagerAddress"])
        return NodeAnswer(str(node["NodeID"]), name, address, asked.last, fault, pending)
