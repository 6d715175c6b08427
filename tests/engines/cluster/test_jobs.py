"""Following a job over connections that are lost, and what a cluster's answers are told as."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
import requests
from ray.exceptions import AuthenticationError

from raygpu.engines.cluster import jobs
from raygpu.engines.cluster.jobs import Jobs, unprotected
from raygpu.errors import BadInput, RaygpuError

LINES = [f"line {number}\n" for number in range(6)]


class Client:
    """Of a job that prints LINES, over connections that end after so many of them."""

    def __init__(self, *connections: int | Exception) -> None:
        self.connections = list(connections)
        self.over = False

    async def tail_job_logs(self, job_id: str) -> AsyncIterator[str]:
        wanted = self.connections.pop(0)
        if isinstance(wanted, Exception):
            raise wanted
        for line in LINES[:wanted]:
            yield line
        if wanted < len(LINES):
            raise RuntimeError("WebSocket connection closed unexpectedly with close code 1006")
        self.over = True

    def get_job_info(self, job_id: str) -> Any:
        status = "SUCCEEDED" if self.over else "RUNNING"
        return SimpleNamespace(
            submission_id=job_id, status=status, metadata={"raygpu": "sweep"}, start_time=1, end_time=None,
            driver_exit_code=0, message="", driver_node_id="ab12",
        )  # fmt: skip

    def get_job_logs(self, job_id: str) -> str:
        return "".join(LINES) + "the last\n"


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Those that the cluster knows."""
    found: dict[str, Any] = {"ab12": SimpleNamespace(state="ALIVE")}
    monkeypatch.setattr("ray.util.state.get_node", lambda node_id, address: found.get(node_id))
    return found


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, nodes: dict[str, Any]) -> Any:
    monkeypatch.setattr(jobs, "RETRY_S", 0.0)

    def make(*connections: int | Exception) -> Jobs:
        found = Jobs.__new__(Jobs)
        found.address, found._client = "http://127.0.0.1:1", Client(*connections)
        return found

    return make


@pytest.mark.parametrize("connections", [(6,), (2, 4, 6), (0, 3, 3, 6), (4, 1, 6)])
def test_every_line_is_shown_once(made: Any, connections: tuple[int, ...]) -> None:
    shown: list[str] = []
    job = made(*connections).follow("sweep-one", shown.append)
    assert job.status == "SUCCEEDED"
    assert "".join(shown) == "".join(LINES) + "the last\n"


@pytest.mark.parametrize(
    "lost",
    [
        aiohttp.ServerDisconnectedError(),
        requests.ConnectionError("refused"),
        ConnectionError("refused"),
        RuntimeError("Request failed with status code 502: bad gateway"),
        TimeoutError(),
    ],
)
def test_a_lost_connection_is_made_again(made: Any, lost: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    assert made(2, lost, lost, 6).follow("sweep-one", shown.append).status == "SUCCEEDED"
    assert "".join(shown) == "".join(LINES) + "the last\n"
    monkeypatch.setattr(jobs, "LOST_S", -1.0)
    with pytest.raises(RaygpuError, match="does not answer any more") as fault:
        made(2, lost, lost, 6).follow("sweep-one", shown.append)
    assert not isinstance(fault.value, BadInput)


@pytest.mark.parametrize("state", ["DEAD", None])
def test_a_job_whose_node_is_lost_is_over(made: Any, nodes: dict[str, Any], state: str | None) -> None:
    """Ray itself calls it running, after its head has started again, and nobody has its output any more."""
    nodes["ab12"] = None if state is None else SimpleNamespace(state=state)
    shown: list[str] = []
    job = made(2, RuntimeError("Request failed with status code 500: no agent")).follow("sweep-one", shown.append)
    assert (job.status, job.is_lost, job.message) == ("FAILED", True, jobs.LOST)
    assert shown == LINES[:2]


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (AuthenticationError("Authentication required: x"), "it wants a token; set RAY_AUTH_TOKEN"),
        (AuthenticationError("Authentication failed: x"), "it refused the token; set RAY_AUTH_TOKEN"),
        (
            RuntimeError("Request failed with status code 404: no job 500"),
            "read 'sweep-one'; http://127.0.0.1:1 has no",
        ),
        (RuntimeError("Request failed with status code 400: what is this"), "status code 400: what is this"),
        (
            RuntimeError("Request failed with status code 413: Maximum request body size 104857600 exceeded.."),
            "is larger, zipped, than it takes .* by a .rayignore",
        ),
    ],
)
def test_what_the_cluster_refuses_ends_it_at_once(made: Any, answer: Exception, told: str) -> None:
    with pytest.raises(BadInput, match=told) as fault:
        made(2, answer).follow("sweep-one", lambda text: None)
    assert len(str(fault.value).splitlines()) == 1


def test_whoever_reads_the_output_may_have_enough(made: Any) -> None:
    def write(text: str) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        made(6).follow("sweep-one", write)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("http://127.0.0.1:8265", False),
        ("http://localhost:8265", False),
        ("https://ray.example.org", False),
        ("http://ray.example.org:8265", True),
    ],
)
def test_a_token_over_a_network_in_the_clear_is_noticed(
    address: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "token")
    assert unprotected(address) is expected


@pytest.fixture
def dashboard() -> Iterator[str]:
    """The address of a dashboard that wants a token, and says its version."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            allowed = self.headers.get("Authorization") == "Bearer " + "a" * 64
            self.send_response(200 if allowed else 401)
            self.end_headers()
            version = {"version": "4", "ray_version": "2.0.0", "ray_commit": "x", "session_name": "x"}
            self.wfile.write(json.dumps(version if allowed else {}).encode())

        def log_message(self, *words: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(("mode", "said"), [(None, ["1", "None 0"]), ("disabled", ["wants a token", "disabled 0"])])
def test_a_process_that_had_a_local_ray_shows_its_token_to_a_cluster(
    mode: str | None, said: list[str], dashboard: str
) -> None:
    """Afterwards, nothing of it is left for the next cluster."""
    code = (
        "import os, ray; from raygpu.engines.cluster import ray_environment as e; e.prepare(local=True)\n"
        "from ray._private.authentication.authentication_token_setup import enable_token_auth_by_default as start\n"
        "from ray._raylet import get_authentication_mode as mode\n"
        "start(); e.prepare()\n"
        "from raygpu.engines.cluster.jobs import Jobs\n"
        "from raygpu.errors import BadInput\n"
        f"try:\n    Jobs('{dashboard}'); print(mode())\n"
        "except BadInput as fault:\n    print('wants a token' if 'it wants a token' in str(fault) else fault)\n"
        "del os.environ['RAY_AUTH_TOKEN']; e.prepare()\n"
        "print(os.environ.get('RAY_AUTH_MODE'), mode(), os.environ.get('RAY_API_SERVER_ADDRESS', ''))"
    )
    left_out = ("RAY_AUTH_MODE", "RAY_API_SERVER_ADDRESS")
    variables = {name: value for name, value in os.environ.items() if name not in left_out}
    variables |= {"RAY_AUTH_TOKEN": "a" * 64} | ({} if mode is None else {"RAY_AUTH_MODE": mode})
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, timeout=120)
    assert [line.strip() for line in done.stdout.splitlines()] == said, done.stderr
