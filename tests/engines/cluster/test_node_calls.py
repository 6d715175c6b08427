"""A function that is called on every node of a running cluster, whatever becomes of the nodes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from ray.exceptions import ActorDiedError

from raygpu.engines.cluster.node_calls import NodeCalls, _death
from raygpu.errors import BadInput
from tests.tracking.services import free_port

WAIT_S = 60.0


def of_a_node() -> Callable[[str | None], tuple[str, int]]:
    """Gives a node's package with raygpu and the process there. Nested functions travel by value, as tests do not."""

    def told(visible: str | None) -> tuple[str, int]:
        import ray

        context = ray.get_runtime_context()
        assert not any(context.get_assigned_resources().values())
        return context.runtime_env["py_modules"][0], os.getpid()

    return told


def test_each_node_answers_with_the_driver_s_raygpu_and_takes_nothing(ray_address: str) -> None:
    import ray

    with NodeCalls(ray_address, of_a_node(), "--address") as calls:
        free = ray.available_resources()
        (first,) = calls.ask(WAIT_S)
        (second,) = calls.ask(WAIT_S)
        assert ray.available_resources() == free
    assert first.fault is None
    assert first.answer is not None
    package, pid = first.answer
    assert package.startswith("gcs://_ray_pkg_"), "raygpu travels to the nodes"
    assert second.answer is not None
    assert second.answer[1] == pid, "the actor stays"
    assert not ray.is_initialized()
    deadline = time.monotonic() + WAIT_S
    while Path(f"/proc/{pid}/stat").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2]:
        assert time.monotonic() < deadline, "the actor ends with the driver"
        time.sleep(0.2)


def test_a_fault_on_a_node_is_its_answer_and_one_that_is_slow_is_asked_once(ray_address: str) -> None:
    def failing(visible: str | None) -> str:
        raise BadInput("CUDA_VISIBLE_DEVICES: read 'x'")

    def slow(visible: str | None) -> str:
        time.sleep(1.0)
        return "at last"

    with NodeCalls(ray_address, failing, "--address") as calls:
        (answer,) = calls.ask(WAIT_S)
        assert (answer.answer, answer.fault) == (None, "BadInput: CUDA_VISIBLE_DEVICES: read 'x'")
        calls._function = slow
        (answer,) = calls.ask(0.1)
        assert answer.pending
        assert answer.fault is not None
        assert answer.fault.startswith("no answer yet after ")
        (answer,) = calls.ask(WAIT_S)
        assert (answer.answer, answer.fault, answer.pending) == ("at last", None, False)
        (answer,) = calls.ask(0.1)
        assert answer.answer == "at last", "the answer before stays"
        assert answer.fault == "no new answer after 0 s"


def test_no_cluster_is_bad_input() -> None:
    with pytest.raises(BadInput, match="--address: nothing answers at"):
        NodeCalls(f"127.0.0.1:{free_port()}", of_a_node(), "--address").__enter__()


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "The actor died because of an error raised in its creation task, x\nRuntimeError: The actor with name"
            " NodeCaller failed to import on the worker.\nImportError: no pynvml here",
            "raygpu cannot be imported there: ImportError: no pynvml here",
        ),
        ("The actor died unexpectedly.\nThe actor is dead because its worker process has died. Worker exit type: X",
         "its worker process has died"),
        ("The actor died unexpectedly.\n\tip: 1.2.3.4\nThe actor died because its node has died. Node Id: 5",
         "its node has died"),
        ("anything else", "ActorDiedError: anything else"),
    ],
)  # fmt: skip
def test_why_an_actor_has_ended(said: str, told: str) -> None:
    error = ActorDiedError()
    error.error_msg = said
    error.args = (said,)
    assert str(error) == said
    assert _death(error) == told


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_nodes_join_die_and_lack_what_raygpu_needs(tmp_path: Path) -> None:
    from ray.cluster_utils import Cluster

    (tmp_path / "pynvml.py").write_text("raise ImportError('none on this node')")
    node = {"num_cpus": 0, "num_gpus": 1}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    try:
        with NodeCalls(cluster.address, of_a_node(), "--address") as calls:
            assert [each.fault for each in calls.ask(WAIT_S)] == [None]
            second = cluster.add_node(**node)
            cluster.add_node(**node, env_vars={"PYTHONPATH": str(tmp_path)})
            cluster.wait_for_nodes()
            answers = {each.node_id: each for each in calls.ask(WAIT_S)}
            faults = sorted(each.fault or "" for each in answers.values())
            assert faults == ["", "", "raygpu cannot be imported there: ImportError: none on this node"]
            cluster.remove_node(second, allow_graceful=False)
            deadline = time.monotonic() + 120
            left = answers[second.node_id]
            while left.fault != "has left the cluster":
                assert time.monotonic() < deadline, left.fault
                time.sleep(1.0)
                found = {each.node_id: each for each in calls.ask(5.0)}
                left = found[second.node_id]
            assert left.answer is None
            assert sum(each.answer is not None for each in found.values()) == 1
    finally:
        cluster.shutdown()
