"""The composition that deploy/kubernetes describes, rehearsed without containers, used, and attacked."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from raygpu.storage import Storage, _file_system
from tests.services.manifests import ROOT, one
from tests.services.ray_cluster import HEAD
from tests.services.rehearsal import ADMINISTRATOR, IN_THE_IMAGE, USER, WORKER, Rehearsal, answer, rehearsal
from tests.services.sleeping import TRIALS, Sleeping, ended, submitted

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]
OF_THE_SWEEP = 4


class Watch:
    """Looks at the arguments of all processes for secrets, while others do something."""

    def __init__(self, secrets: set[str]) -> None:
        self.secrets, self.found, self.looked = secrets, set[str](), 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(0.2):
            for process in psutil.process_iter():
                try:
                    line = " ".join(process.cmdline())
                except psutil.Error:
                    continue
                self.looked += 1
                self.found |= {line for secret in self.secrets if secret in line}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rehearsal]:
    with pytest.MonkeyPatch.context() as patch, rehearsal(tmp_path_factory.mktemp("rehearsal")) as found:
        for name, value in found.storage.items():
            patch.setenv(name, value)
        patch.delenv("RAY_AUTH_MODE", raising=False)
        _file_system.cache_clear()
        yield found
    _file_system.cache_clear()


def secret_words(whole: Rehearsal) -> set[str]:
    return {value for of in whole.secrets.values() for value in of.values()}


def used(whole: Rehearsal) -> tuple[str, Watch]:
    """A sweep from outside; then what jobs/train says, as KubeRay submits it. What both printed."""
    # Ray hands the password of Redis to the head's own processes as an argument (SECURITY.md).
    with Watch(secret_words(whole) - {whole.secrets["raygpu-redis"]["password"]}) as watch:
        # All that a person has is the token: where MLflow and the storage are, the cluster's pods know.
        outside = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "MLFLOW_", "RAY_"))}
        outside |= {"RAY_AUTH_TOKEN": whole.token, "RAY_AUTH_MODE": "token"}
        words = shlex.split(one("jobs/sweep", "RayJob", "sweep-digits")["spec"]["entrypoint"])[3:]
        del words[words.index("--runs-dir") :]
        sweep = ["-m", "raygpu.submit", "sweep", *words, "--trials", str(OF_THE_SWEEP), "--epochs", "2"]
        told = run([sys.executable, *sweep, "--address", whole.cluster.dashboard], outside)
        entry = one("jobs/train", "RayJob", "train-digits")["spec"]["entrypoint"]
        entry = entry.replace("/tmp/runs", str(whole.folder / "runs"))  # a pod's /tmp is its own
        submit = [str(Path(sys.executable).with_name("ray")), "job", "submit", "--address", whole.cluster.dashboard]
        told += run([*submit, "--", *shlex.split(entry), "--epochs", "12"], outside)  # enough to beat the trial
    return told, watch


def run(words: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run(words, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def told(whole: Rehearsal) -> tuple[str, Watch]:
    return used(whole)


def test_a_sweep_and_a_training_end_in_mlflow_and_the_storage(whole: Rehearsal, told: tuple[str, Watch]) -> None:
    storage = Storage.at("s3://raygpu/runs")
    assert json.loads((storage / "digits").read("summary.json"))["completed"] == OF_THE_SWEEP
    runs = whole.runs("raygpu")
    (parent,) = (run for run in runs if run["info"]["run_name"] == "digits")
    run_id = parent["info"]["run_id"]
    trials = [run for run in runs if {"key": "mlflow.parentRunId", "value": run_id} in run["data"]["tags"]]
    assert len(trials) == OF_THE_SWEEP
    for trial in trials:
        assert trial["info"]["status"] == "FINISHED"
        assert {"train/loss", "validation/accuracy"} <= {metric["key"] for metric in trial["data"]["metrics"]}
    status, found = whole.ask(f"/api/2.0/mlflow/artifacts/list?run_id={run_id}", user=USER)
    assert status == 200
    assert "best.toml" in {file["path"] for file in found["files"]}
    assert Storage.at("s3://mlflow").folders(), "artifacts go through the server to its own bucket"

    status, found = whole.ask("/api/2.0/mlflow/registered-models/get?name=digits", user=USER)
    assert status == 200, found
    (version,) = found["registered_model"]["latest_versions"]
    assert version["status"] == "READY"
    assert "digits" in told[0]
    assert {path.name for path in whole.app.iterdir()} == {*IN_THE_IMAGE, "runs"}, "a pod could not write there"


def test_what_was_printed_kept_or_listed_has_no_secret(whole: Rehearsal, told: tuple[str, Watch]) -> None:
    printed, watch = told
    words = secret_words(whole)
    assert watch.looked > 1000
    assert not watch.found
    assert not [word for word in words if word in printed]
    for path in [*whole.folder.rglob("*"), *whole.cluster.folder.rglob("*")]:
        if path.is_file() and not path.is_symlink() and path != whole.folder / "redis/run/password.conf":
            text = path.read_bytes()
            assert not [path for word in words if word.encode() in text], path
    for bucket in ("raygpu", "mlflow"):
        for name, text in objects(bucket):
            assert not [word for word in words if word.encode() in text], name
    environment = {**os.environ, "PGPASSWORD": whole.secrets["raygpu-postgres"]["password"]}
    dump = [str(whole.database.tools / "pg_dump"), "-h", "127.0.0.1", "-p", str(whole.database.port)]
    kept = run([*dump, "-U", whole.database.user, whole.database.database], environment)
    assert "digits" in kept
    assert not [word for word in words if word in kept]


def objects(bucket: str) -> Iterator[tuple[str, bytes]]:
    """The name and content of each object."""
    import boto3

    client = boto3.client("s3")
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket):
        for entry in page.get("Contents", []):
            yield entry["Key"], client.get_object(Bucket=bucket, Key=entry["Key"])["Body"].read()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/", None),
        ("/api/jobs/", None),
        ("/api/jobs/", {"entrypoint": "touch /tmp/entered"}),
        ("/api/cluster_status", None),
        ("/nodes?view=summary", None),
        ("/logical/actors", None),
        ("/api/packages/gcs/x.zip", None),
    ],
)
def test_ray_wants_its_token(whole: Rehearsal, path: str, body: Any) -> None:
    """Of the dashboard, whose page may be had but not what it shows, and of the Jobs API, which runs code."""
    url = f"{whole.cluster.dashboard}{path}"
    wrong = {"Authorization": "Bearer " + "0" * 64}
    if path == "/":
        assert whole.token not in str(answer(url)[1])
        return
    assert answer(url, body)[0] == 401
    assert answer(url, body, wrong)[0] == 403
    assert answer(url, body, wrong | {"Cookie": "ray-authentication-token=x"})[0] in (401, 403)


def test_ray_itself_wants_its_token(whole: Rehearsal) -> None:
    code = f"import ray; ray.init(address='{HEAD}:{whole.cluster.port}', log_to_driver=False); print('entered')"
    bare = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    tried = [
        subprocess.Popen([sys.executable, "-c", code], env=bare | given, stdout=subprocess.PIPE, text=True)
        for given in ({"RAY_AUTH_MODE": "disabled"}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64})
    ]
    for process in tried:
        assert "entered" not in process.communicate(timeout=300)[0]
        assert process.returncode != 0


SEARCH = "/api/2.0/mlflow/experiments/search?max_results=10"


def test_mlflow_wants_a_password(whole: Rehearsal) -> None:
    for path in (SEARCH, "/", "/api/2.0/mlflow-artifacts/artifacts", "/api/2.0/mlflow/users/get?username=admin"):
        assert whole.ask(path)[0] == 401, path
        assert whole.ask(path, user=ADMINISTRATOR, password="wrong")[0] == 401, path
        assert whole.ask(path, user=USER, password="")[0] == 401, path
    assert whole.ask(SEARCH, user=USER)[0] == 200
    new = {"username": "mallory", "password": "a-long-password-of-mallory"}
    assert whole.ask("/api/2.0/mlflow/users/create", body=new)[0] == 401
    assert whole.ask("/api/2.0/mlflow/users/create", user=USER, body=new)[0] == 403
    elevated = {"username": USER, "is_admin": True}
    assert whole.ask("/api/2.0/mlflow/users/update-admin", user=USER, body=elevated)[0] in (403, 404, 405)
    status, found = whole.ask(f"/api/2.0/mlflow/users/get?username={USER}", user=ADMINISTRATOR)
    assert (status, found["user"]["is_admin"]) == (200, False)


def test_mlflow_refuses_foreign_hosts_and_origins(whole: Rehearsal) -> None:
    assert whole.ask(SEARCH, user=USER, Host="evil.example.com")[0] == 403
    body = {"name": "from elsewhere"}
    create = "/api/2.0/mlflow/experiments/create"
    assert whole.ask(create, user=USER, body=body, Origin="http://evil.example.com")[0] == 403
    assert whole.ask("/health", Host="10.1.2.3:5000")[0] == 200, "probes ask it by the pod's address"


def test_raygpus_user_sees_what_is_its_own(whole: Rehearsal) -> None:
    status, made = whole.ask("/api/2.0/mlflow/experiments/create", user=ADMINISTRATOR, body={"name": "payroll"})
    assert status == 200, made
    path = f"/api/2.0/mlflow/experiments/get?experiment_id={made['experiment_id']}"
    assert whole.ask(path, user=ADMINISTRATOR)[0] == 200
    assert whole.ask(path, user=USER)[0] == 403
    status, found = whole.ask(SEARCH, user=USER)
    assert status == 200
    assert "payroll" not in {experiment["name"] for experiment in found.get("experiments", [])}


def test_storage_and_database_want_their_passwords(whole: Rehearsal) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PG")}
    ask = [str(whole.database.tools / "psql"), "-w", "-h", "127.0.0.1", "-p", str(whole.database.port)]
    for password in ("", "wrong"):
        done = subprocess.run(
            [*ask, "-U", whole.database.user, "-c", "select 1", whole.database.database],
            env={**environment, "PGPASSWORD": password}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode != 0
        assert re.search("password", done.stderr)


def test_redis_wants_its_password(whole: Rehearsal) -> None:
    ask = ["redis-cli", "-h", "127.0.0.1", "-p", str(whole.redis_port)]
    for variables in ({}, {"REDISCLI_AUTH": "wrong"}):
        done = subprocess.run([*ask, "keys", "*"], env={**os.environ, **variables}, capture_output=True, text=True)
        assert "NOAUTH" in done.stdout


def test_a_head_that_comes_back_knows_its_workers_and_jobs(whole: Rehearsal, tmp_path: Path) -> None:
    """Its drivers end with it; the state is in Redis, and the worker waits."""
    sweep = Sleeping(whole, tmp_path, "lost-head", epochs=8)
    sweep.under_way(4)
    whole.cluster.kill(HEAD)
    whole.start_head()
    deadline = time.monotonic() + 60
    while WORKER not in whole.cluster.alive():
        assert time.monotonic() < deadline, whole.cluster.log(WORKER)
        time.sleep(0.3)
    out = sweep.process.communicate(timeout=240)[0]
    assert sweep.process.returncode not in (0, None)
    assert "Traceback" not in out
    jobs = ended(submitted(whole, ["list"], tmp_path), 0)
    assert "lost-head" in jobs
    sweep.resume()
    sweep.end()
    found = sweep.result()
    assert found["completed"] == len(TRIALS)
    assert found["epochs done twice"] <= 2 * len(TRIALS)
