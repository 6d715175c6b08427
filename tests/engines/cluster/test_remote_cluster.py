"""A cluster that has not yet the GPUs that a run wants."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
import pytest
import ray

from raygpu.engines.cluster import ray_environment, remote_cluster, running_cluster
from raygpu.engines.cluster.remote_cluster import connect, join
from raygpu.errors import BadInput
from tests.services.ray_cluster import RayCluster
from tests.tracking.services import free_port

NODE = "127.0.0.12"
WAITING = """
import json, sys, threading, time
from raygpu.engines.cluster import ray_environment, remote_cluster
ray_environment.prepare(local=False)
from ray._private.ray_constants import AUTOSCALER_RESOURCE_REQUEST_CHANNEL as CHANNEL
from ray.experimental.internal_kv import _internal_kv_get
from raygpu.engines.cluster.remote_cluster import Wanted, connect
from raygpu.errors import RaygpuError

def requested():
    return json.loads(_internal_kv_get(CHANNEL) or b"null")

def tell(line):
    print(line, flush=True)
    threading.Thread(target=look, daemon=True).start()

def look():
    while not requested():
        time.sleep(0.1)
    print("asked for", requested(), flush=True)

cluster = connect(sys.argv[1], None, Wanted(2, 300.0, tell))
print(len(cluster.devices), "GPUs; asked for", requested(), flush=True)
cluster.close()

given_up = threading.Event()
given_up.set()
for wanted in (Wanted(3, 0.5), Wanted(3, 120.0, given_up=given_up)):
    try:
        connect(sys.argv[1], None, wanted)
    except RaygpuError as error:
        print(error, flush=True)
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_gpus_are_asked_for_and_waited_for() -> None:
    cluster = RayCluster()
    try:
        cluster.start()
        process = subprocess.Popen(
            [sys.executable, "-c", WAITING, cluster.address], env={**cluster.environment, "PYTHONPATH": os.getcwd()},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdout is not None
        lines = [process.stdout.readline(), process.stdout.readline()]
        assert lines == [
            "waiting for GPUs: the cluster has 0 of 2; its autoscaler is asked\n",
            "asked for [{'GPU': 1}, {'GPU': 1}]\n",
        ], process.communicate()
        cluster.add_node(NODE, num_cpus=1, num_gpus=2)  # as an autoscaler does
        out, err = process.communicate(timeout=120)
        joined, too_few, given_up = out.splitlines()
        assert joined == "2 GPUs; asked for []", err
        assert "cluster.min_gpus: read 3; the cluster has 2 after 0.5 s" in too_few
        assert "any more" in given_up
    finally:
        cluster.stop()


def test_an_address_where_nobody_listens_is_refused_at_once() -> None:
    """Ray itself tries for minutes."""
    with pytest.raises(BadInput, match="nothing answers at"):
        connect(f"127.0.0.1:{free_port()}")
    with pytest.raises(BadInput, match="allowed: local, auto, or HOST:PORT"):
        connect("ray://127.0.0.1:10001")


def test_a_web_server_is_no_head() -> None:
    """As the dashboard's port; Ray itself waits for it without end."""
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(BadInput, match="which is no head's port"):
            connect(f"127.0.0.1:{server.server_port}")
        server.shutdown()


@pytest.fixture
def head(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a head that refuses calls with this status."""

    class Refuses(grpc.GenericRpcHandler):
        def service(self, details: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(
                lambda wanted, context: context.abort(request.param, "InvalidAuthToken")
            )

    server = grpc.server(ThreadPoolExecutor(1), handlers=[Refuses()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None)


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str | None]]:
    """The addresses that Ray is to join, each with the mode of tokens then, in a process whose user has chosen none."""
    addresses: list[tuple[str, str | None]] = []
    for name in (ray_environment.TOKEN_MODE, ray_environment.ON_LOOPBACK, running_cluster.ADDRESS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(ray_environment, "_own", set())
    monkeypatch.setattr(ray_environment, "_read_token_mode", lambda: None)
    monkeypatch.setattr(
        ray, "init", lambda address, **options: addresses.append((address, os.environ.get(ray_environment.TOKEN_MODE)))
    )
    return addresses


@pytest.mark.parametrize(
    ("head", "mode"),
    [(grpc.StatusCode.UNAUTHENTICATED, "token"), (grpc.StatusCode.UNIMPLEMENTED, None)],
    indirect=["head"],
)
@pytest.mark.parametrize("proxy", ["", "http://127.0.0.1:9"])
def test_a_cluster_that_is_found_is_shown_a_token_if_it_wants_one(
    proxy: str, head: str, mode: str | None, joined: list[tuple[str, str | None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy for HTTP, behind which no node is, does not hinder the question."""
    for name in ("http_proxy", "grpc_proxy", "https_proxy"):
        monkeypatch.setenv(name, proxy)
    for name in ("no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(remote_cluster, "address_of_auto", lambda: head)
    join("auto")
    assert joined == [(head, mode)]
    ray_environment.prepare()
    assert ray_environment.TOKEN_MODE not in os.environ, "the next cluster may have no tokens"


@pytest.mark.parametrize("head", [grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE], indirect=True)
def test_rays_own_choice_of_the_token_holds_for_a_cluster_that_is_found_and_slow(
    head: str, joined: list[tuple[str, str | None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_cluster, "address_of_auto", lambda: head)
    join("auto")
    join(head)
    assert joined == [("auto", None), (head, None)]
    os.environ[ray_environment.TOKEN_MODE] = "token"  # by Ray
    ray_environment.prepare()
    assert ray_environment.TOKEN_MODE not in os.environ, "the next cluster may have no tokens"


def test_where_no_cluster_runs_auto_is_one_line(
    joined: list[tuple[str, str | None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def none() -> str:
        raise ConnectionError(f"{remote_cluster.NO_RAY}. Please specify")

    monkeypatch.setattr(remote_cluster, "address_of_auto", none)
    with pytest.raises(BadInput, match=r"no Ray at 'auto' \(none runs on this machine\)"):
        join("auto")


@pytest.mark.parametrize("head", [grpc.StatusCode.UNAUTHENTICATED], indirect=True)
def test_the_token_for_a_cluster_that_is_named_is_turned_on_by_the_user(
    head: str, joined: list[tuple[str, str | None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_cluster, "address_of_auto", lambda: head)
    monkeypatch.setenv(running_cluster.ADDRESS, head)
    for address in (head, "auto"):
        with pytest.raises(BadInput, match=f"'{head}' wants its token; set RAY_AUTH_MODE=token"):
            join(address)
    monkeypatch.setenv(running_cluster.ADDRESS, "auto")
    monkeypatch.setenv(ray_environment.TOKEN_MODE, "disabled")
    with pytest.raises(BadInput, match="wants its token; set RAY_AUTH_MODE=token"):
        join("auto")
    monkeypatch.setenv(ray_environment.TOKEN_MODE, "token")
    join(head)
    assert joined == [(head, "token")]
