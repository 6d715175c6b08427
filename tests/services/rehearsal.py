"""The composition of an overlay without containers: its commands, flags and environment, as processes on loopback."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.services.manifests import DEPLOY, ROOT, Pod, command, environment, one, pods, rendered
from tests.services.postgres import Postgres, postgres
from tests.services.ray_cluster import RayCluster
from tests.services.redis import redis
from tests.services.s3 import s3
from tests.tracking.services import free_port

OVERLAY = "overlays/dev"
WORKER = "127.0.0.12"
START_S = 180
ADMINISTRATOR, USER = "admin", "raygpu"
IN_THE_IMAGE = ("conf", "experiments")
Secrets = dict[str, dict[str, str]]


def secrets() -> Secrets:
    """As deploy/secrets.sh makes them, by name and key."""
    done = subprocess.run(
        ["sh", str(DEPLOY / "secrets.sh"), "kubernetes"], capture_output=True, text=True, check=True, timeout=60
    )
    return {document["metadata"]["name"]: document["stringData"] for document in yaml.safe_load_all(done.stdout)}


@dataclass
class Rehearsal:
    """All of it, running."""

    folder: Path
    """Logs of MLflow and of what ran once."""
    secrets: Secrets
    database: Postgres
    storage: Mapping[str, str]
    """The variables by which object storage is found."""
    mlflow_port: int
    took_s: dict[str, float] = field(default_factory=dict)
    """Until each part answered."""
    cluster: RayCluster = field(init=False)
    start_head: Callable[[], None] = field(init=False)
    """Of the cluster; again, after it was killed."""
    redis_port: int = field(init=False)
    worker: dict[str, str] = field(init=False)
    """The environment of a node that works."""
    _server: subprocess.Popen[bytes] | None = None

    @property
    def app(self) -> Path:
        """The working folder of Ray's nodes, which in a pod cannot be written."""
        return self.folder / "app"

    @property
    def mlflow(self) -> str:
        return f"http://127.0.0.1:{self.mlflow_port}"

    @property
    def token(self) -> str:
        return self.secrets["raygpu-ray-token"]["auth_token"]

    def password(self, user: str) -> str:
        return self.secrets["raygpu-mlflow"][{ADMINISTRATOR: "admin-password", USER: "user-password"}[user]]

    def variables(self, container: Mapping[str, Any]) -> dict[str, str]:
        """Of a container, with the services' names as the addresses that they have here."""
        found = environment(dict(container), rendered(OVERLAY), self.secrets)
        storage = self.storage["AWS_ENDPOINT_URL"]
        for name, value in found.items():
            found[name] = value.replace("http://mlflow:5000", self.mlflow).replace("http://storage:7070", storage)
        if "PGHOST" in found:
            assert (found["PGHOST"], found["PGPORT"]) == ("postgres", "5432")
            found |= {"PGHOST": "127.0.0.1", "PGPORT": str(self.database.port)}
        return found

    def run(self, pod: Pod, container: Mapping[str, Any]) -> str:
        """What a container does that ends. What it printed."""
        variables = self.variables(container)
        words = [self._file(pod, word) for word in command(dict(container), variables)]
        path = f"{Path(sys.executable).parent}:{self.database.tools}:{os.environ['PATH']}"
        done = subprocess.run(
            words, env={**_bare(), "PATH": path, **variables}, cwd=self.folder, capture_output=True, text=True,
            check=False, timeout=START_S,
        )  # fmt: skip
        assert done.returncode == 0, f"{pod.name}: {done.stdout}{done.stderr}"
        with (self.folder / "once.log").open("a") as log:
            log.write(done.stdout + done.stderr)
        return done.stdout

    def start_mlflow(self) -> None:
        """Until it answers."""
        pod = _pods()["Deployment/mlflow"]
        container = pod.container("mlflow")
        self._server = self._serve(pod, container)
        _wait_for(f"{self.mlflow}{_health(container)}", self._server, self.folder / "mlflow.log")

    def stop_mlflow(self) -> None:
        if self._server is not None:
            os.killpg(self._server.pid, signal.SIGTERM)
            self._server.wait(30)
            self._server = None

    @contextmanager
    def mlflow_away(self) -> Iterator[None]:
        """Meanwhile nobody listens at its port."""
        self.stop_mlflow()
        yield
        self.start_mlflow()

    def _serve(self, pod: Pod, container: Mapping[str, Any]) -> subprocess.Popen[bytes]:
        """What a container does until it is stopped; on loopback, at a port of its own."""
        variables = self.variables(container)
        variables["MLFLOW_AUTH_CONFIG_PATH"] = self._file(pod, variables["MLFLOW_AUTH_CONFIG_PATH"])
        words = command(dict(container), variables)
        assert {"--host=0.0.0.0", "--port=5000"} <= set(words)
        words = [w.replace("0.0.0.0", "127.0.0.1").replace("=5000", f"={self.mlflow_port}") for w in words]
        # The Host header has this port here, and the service's in the cluster.
        assert "localhost:*" in variables["MLFLOW_SERVER_ALLOWED_HOSTS"]
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        with (self.folder / "mlflow.log").open("ab") as log:
            return subprocess.Popen(
                words, env={**_bare(), "PATH": path, **variables}, cwd=self.folder, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def _file(self, pod: Pod, word: str) -> str:
        """Where this has what a container finds at that path: a file of a ConfigMap."""
        for volume in pod.spec.get("volumes", []):
            for item in volume.get("configMap", {}).get("items", []):
                mounts = [m for c in pod.containers for m in c.get("volumeMounts", []) if m["name"] == volume["name"]]
                if any(word == f"{mount['mountPath']}/{item['path']}" for mount in mounts):
                    text = one(OVERLAY, "ConfigMap", volume["configMap"]["name"])["data"][item["key"]]
                    (self.folder / item["path"]).write_text(text)
                    return str(self.folder / item["path"])
        return word

    def ask(self, path: str, *, user: str | None = None, password: str | None = None, body: Any = None,
            **headers: str) -> tuple[int, Any]:  # fmt: skip
        """MLflow's answer: its status, and what is in it. password: instead of the user's own."""
        if user is not None:
            pair = f"{user}:{password if password is not None else self.password(user)}"
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        return answer(f"{self.mlflow}{path}", body, headers)

    def experiment(self, name: str, user: str = USER) -> str:
        """The id of an experiment."""
        status, found = self.ask(f"/api/2.0/mlflow/experiments/get-by-name?experiment_name={name}", user=user)
        assert status == 200, found
        return str(found["experiment"]["experiment_id"])

    def runs(self, experiment: str) -> list[dict[str, Any]]:
        """MLflow's runs of an experiment."""
        body = {"experiment_ids": [self.experiment(experiment)], "max_results": 1000}
        status, found = self.ask("/api/2.0/mlflow/runs/search", user=USER, body=body)
        assert status == 200, found
        return list(found.get("runs", []))


def answer(url: str, body: Any = None, headers: Mapping[str, str] | None = None) -> tuple[int, Any]:
    """The status of an answer, and its JSON or text."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", **(headers or {})})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            status, text = response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        status, text = error.code, error.read().decode()
    try:
        return status, json.loads(text)
    except ValueError:
        return status, text


@contextmanager
def rehearsal(folder: Path) -> Iterator[Rehearsal]:
    """Everything of the overlay, in the order in which its parts wait for each other."""
    by_name = _pods()
    made, began = secrets(), time.monotonic()
    with ExitStack() as ending:
        storage = ending.enter_context(_storage(made))
        database = ending.enter_context(
            postgres("mlflow", made["raygpu-postgres"]["password"], _database(by_name["StatefulSet/postgres"]))
        )
        found = Rehearsal(folder, made, database, storage, free_port())
        migrate, server = by_name["Job/mlflow-migrate"], by_name["Deployment/mlflow"]
        for name in ("runs", "users"):
            found.run(migrate, migrate.container(name))
        found.took_s["migrated"] = time.monotonic() - began
        found.run(server, server.container("wait-for-migration"))
        ending.callback(found.stop_mlflow)
        found.start_mlflow()
        maker = by_name["Job/mlflow-user"]
        assert found.run(maker, maker.container("create-user")).startswith("made the user raygpu")
        found.took_s["mlflow"] = time.monotonic() - began
        _start_ray(found, by_name, ending)
        found.took_s["ray"] = time.monotonic() - began
        yield found


def _pods() -> dict[str, Pod]:
    return {pod.name: pod for pod in pods(OVERLAY)}


def _start_ray(found: Rehearsal, by_name: Mapping[str, Pod], ending: ExitStack) -> None:
    """The head and one worker, each with its own pod's environment."""
    spec = one(OVERLAY, "RayCluster", "raygpu")["spec"]
    assert spec["authOptions"] == {"mode": "token", "secretName": "raygpu-ray-token"}
    password = found.secrets["raygpu-redis"]["password"]
    found.redis_port = ending.enter_context(_redis(found, by_name, password))
    survives = _survives(spec["gcsFaultToleranceOptions"], found.redis_port)
    (group,) = spec["workerGroupSpecs"]
    head = by_name["RayCluster/raygpu head"].container("ray-head")
    worker = by_name[f"RayCluster/raygpu {group['groupName']}"].container("ray-worker")
    # Such a worker waits longer for a head that restarts than Ray's minute.
    found.worker = found.variables(worker) | {"RAY_gcs_rpc_server_reconnect_timeout_s": "600"}
    # As the image's working folder; raygpu is installed.
    found.app.mkdir()
    for name in IN_THE_IMAGE:
        (found.app / name).symlink_to(ROOT / name)
    (found.app / "runs").touch()  # no folder can be made there
    found.cluster = RayCluster(token=found.token, cwd=found.app)
    ending.callback(found.cluster.stop)
    num_cpus = int(spec["headGroupSpec"]["rayStartParams"]["num-cpus"])
    found.start_head = lambda: found.cluster.start(
        num_cpus=num_cpus, environment=found.variables(head) | survives, flags=["--redis-password", password]
    )
    found.start_head()
    found.cluster.add_node(
        WORKER,
        num_cpus=int(worker["resources"]["limits"]["cpu"]),
        num_gpus=int(group["rayStartParams"]["num-gpus"]),
        environment=found.worker,
    )


def _redis(found: Rehearsal, by_name: Mapping[str, Pod], password: str) -> AbstractContextManager[int]:
    """Where the head keeps what outlives it."""
    container = by_name["StatefulSet/redis"].container("redis")
    assert found.variables(container)["REDIS_PASSWORD"] == password
    folder = found.folder / "redis"
    folder.mkdir()
    return redis(folder, command(container, {}), one(OVERLAY, "ConfigMap", "redis")["data"]["redis.conf"], password)


def _survives(options: Mapping[str, Any], port: int) -> dict[str, str]:
    """A head's environment, as KubeRay makes it from gcsFaultToleranceOptions, beside the flag of the password."""
    assert options["redisAddress"] == "redis:6379"
    assert options["redisPassword"]["valueFrom"]["secretKeyRef"] == {"name": "raygpu-redis", "key": "password"}
    return {
        "RAY_REDIS_ADDRESS": f"127.0.0.1:{port}",
        "RAY_external_storage_namespace": options["externalStorageNamespace"],
    }


@contextmanager
def _storage(made: Secrets) -> Iterator[dict[str, str]]:
    """Object storage with the buckets that the storage's pod makes."""
    pod = next(pod for pod in pods(OVERLAY) if pod.name == "StatefulSet/storage")
    (
        make,
        *_,
    ) = pod.container("buckets")["command"]
    assert make == "mkdir"
    buckets = [Path(word).name for word in pod.container("buckets")["command"] if word.startswith("/data/")]
    keys = made["raygpu-storage"]
    with s3(*buckets, key=keys["access-key"], secret=keys["secret-key"]) as variables:
        yield variables


def _database(pod: Pod) -> str:
    values = {variable["name"]: variable.get("value") for variable in pod.container("postgres")["env"]}
    assert values["POSTGRES_USER"] == "mlflow"
    return str(values["POSTGRES_DB"])


def _health(container: Mapping[str, Any]) -> str:
    return str(container["readinessProbe"]["httpGet"]["path"])


def _wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if answer(url)[0] == 200:
                return
        except OSError:
            time.sleep(0.3)
    pytest.fail(log.read_text())


def _bare() -> dict[str, str]:
    """An environment without what could find a store or a secret."""
    kept = ("HOME", "LANG", "TMPDIR")
    return {name: os.environ[name] for name in kept if name in os.environ}
