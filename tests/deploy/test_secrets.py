"""deploy/secrets.sh: the names that the deployments look for, with a new value at every run."""

from __future__ import annotations

import re
import stat
import subprocess
import tempfile
from pathlib import Path

import pytest
import yaml

from tests.deploy.test_kubernetes import references
from tests.services.manifests import rendered

SCRIPT = Path(__file__).parents[2] / "deploy" / "secrets.sh"
VARIABLES = {
    "RAY_AUTH_TOKEN",
    "REDIS_PASSWORD",
    "POSTGRES_PASSWORD",
    "MLFLOW_ADMIN_PASSWORD",
    "MLFLOW_USER_PASSWORD",
    "MLFLOW_SECRET_KEY",
    "STORAGE_ACCESS_KEY",
    "STORAGE_SECRET_KEY",
}
SECRETS = {
    "raygpu-ray-token": {"auth_token"},
    "raygpu-redis": {"password"},
    "raygpu-postgres": {"password"},
    "raygpu-mlflow": {"admin-password", "user-password", "secret-key"},
    "raygpu-storage": {"access-key", "secret-key"},
}
READ_ONCE = {
    ("statefulset/postgres", "password"),
    ("deployment/mlflow", "admin-password"),
    ("job/mlflow-user", "admin-password"),
}
"""Who has kept a value since its first start, and the job that reads it again when it runs again."""
IDENTIFIERS = {"STORAGE_ACCESS_KEY", "access-key"}
"""Names of somebody, which need not be long."""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["sh", str(SCRIPT), *arguments], capture_output=True, text=True, check=False, timeout=60)


def variables() -> dict[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, ".env")
        done = run("env", str(file))
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        return dict(line.split("=", 1) for line in file.read_text().splitlines())


def documents() -> list[dict]:
    done = run("kubernetes")
    assert (done.returncode, done.stderr) == (0, "")
    return list(yaml.safe_load_all(done.stdout))


def secrets() -> dict[tuple[str, str], str]:
    return {(doc["metadata"]["name"], key): value for doc in documents() for key, value in doc["stringData"].items()}


def check_values(values: dict[str, str]) -> None:
    assert len(set(values.values())) == len(values), "a value is used twice"
    for name, value in values.items():
        assert re.fullmatch("[0-9a-f]+", value), name
        assert len(value) >= (20 if name in IDENTIFIERS else 48), name


def test_variables() -> None:
    values = variables()
    assert set(values) == VARIABLES
    check_values(values)


def test_secrets_of_kubernetes() -> None:
    found = documents()
    assert {doc["metadata"]["name"]: set(doc["stringData"]) for doc in found} == SECRETS
    for doc in found:
        assert (doc["apiVersion"], doc["kind"], doc["type"]) == ("v1", "Secret", "Opaque")
        assert set(doc["metadata"]) == {"name"}, "kubectl is told the namespace"
    values = secrets()
    assert len(set(values.values())) == len(values), "a value is used twice"
    for (_, key), value in values.items():
        check_values({key: value})


def test_every_run_has_new_values() -> None:
    assert not set(variables().values()) & set(variables().values())
    assert not set(secrets().values()) & set(secrets().values())


@pytest.mark.parametrize("arguments", [(), ("docker",), ("env",), ("kubernetes", "file"), ("",)], ids=str)
def test_usage(arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "usage: sh deploy/secrets.sh env FILE | kubernetes\n"


def test_a_file_is_for_its_owner(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    assert run("env", str(path)).returncode == 0
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text().startswith("RAY_AUTH_TOKEN=")


def test_secrets_in_use_are_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    assert run("env", str(path)).returncode == 0
    before = path.read_text()
    again = run("env", str(path))
    assert (again.returncode, again.stdout) == (2, "")
    assert again.stderr.startswith(f"secrets.sh: {path} exists, or cannot be written; ")
    assert path.read_text() == before


def test_no_secret_is_an_argument(tmp_path: Path) -> None:
    """Each program that the script runs is one that writes down its arguments."""
    log = tmp_path / "arguments"
    for name in ("head", "od", "tr", "chmod", "cat", "echo", "printf"):
        program = tmp_path / name
        program.write_text(f'#!/bin/sh\necho "{name} $*" >> "{log}"\nPATH=/usr/bin:/bin exec {name} "$@"\n')
        program.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(
        ["sh", str(SCRIPT), "kubernetes"], capture_output=True, text=True, env=environment, check=True, timeout=60
    )
    arguments = log.read_text()
    assert "head -c 32 /dev/urandom" in arguments
    values = re.findall('"([0-9a-f]{20,})"', done.stdout)
    assert len(values) == sum(map(len, SECRETS.values()))
    assert not [value for value in values if value in arguments]


def test_git_leaves_the_file_out() -> None:
    done = subprocess.run(
        ["git", "check-ignore", "--quiet", "deploy/.env"], cwd=SCRIPT.parents[1], check=False, timeout=60
    )
    assert done.returncode == 0


def test_the_page_names_who_has_to_start_again_with_a_new_secret() -> None:
    """Each pod that has read the value, but for what reads it anew or has kept it elsewhere since its first start."""
    text = (SCRIPT.parent / "kubernetes/README.md").read_text().partition("## Changing a Secret")[2].partition("## ")[0]
    rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in text.splitlines() if line[:3] == "| `"]
    keys = {(row[0].strip("` "), key): row for row in rows for key in re.findall(r"`([a-z_-]+)`", row[1])}
    assert keys.keys() == {(name, key) for name, names in SECRETS.items() for key in names}
    found = set()
    for document in rendered("overlays/dev"):
        reader = f"{document['kind'].lower()}/{document['metadata']['name']}"
        for kind, name, key in references(document.get("spec", {})):
            if kind == "secret" and (reader, key) not in READ_ONCE and reader != "job/mlflow-migrate":
                found.add(reader)
                told = {"raycluster/raygpu": "delete Ray's pods", "job/mlflow-user": "delete job"}.get(reader, reader)
                assert told in keys[name, str(key)][-1], (reader, name, key)
    assert found == {
        "statefulset/redis",
        "statefulset/storage",
        "deployment/mlflow",
        "job/mlflow-user",
        "raycluster/raygpu",
    }
    assert "delete Ray's pods" in keys["raygpu-ray-token", "auth_token"][-1]
    assert all(
        keys[name, key][2] for name, key in (("raygpu-postgres", "password"), ("raygpu-mlflow", "admin-password"))
    )
