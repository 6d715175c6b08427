"""deploy/docker and deploy/compose.yaml: sound by their specifications, and closed to everybody else."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from compose_spec import PyCompose
from docker.utils.build import exclude_paths

from raygpu import __version__
from tests.deploy.test_secrets import variables

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "deploy" / "docker" / "Dockerfile"
COMPOSE = ROOT / "deploy" / "compose.yaml"
SETTINGS = ROOT / "deploy/kubernetes/base/mlflow"
"""Files that the composition and Kubernetes share."""
TARGETS = ("torch", "tensorflow", "mlflow")
VARIABLE = re.compile(r"\$\{(\w+):\?[^}]+\}")
"""One that has to be set."""
ONCE = ("buckets", "migrate", "user")
"""Services that end."""


# The Dockerfile


@dataclass(frozen=True)
class Stage:
    name: str
    base: str
    instructions: tuple[tuple[str, str], ...]
    """Each one's name and the rest."""

    def of(self, instruction: str) -> list[str]:
        return [rest for name, rest in self.instructions if name == instruction]


@cache
def stages() -> dict[str, Stage]:
    lines = [line for line in DOCKERFILE.read_text().splitlines() if not line.lstrip().startswith("#")]
    instructions = re.sub(r"\\\n\s*", " ", "\n".join(lines)).splitlines()
    parts = [line.split(maxsplit=1) for line in instructions if line.strip()]
    found: dict[str, Stage] = {}
    for instruction, rest in parts:
        if instruction == "FROM":
            base, keyword, name = rest.split()
            assert keyword == "AS"
            found[name] = Stage(name, base, ())
        else:
            last = found.popitem()[1]
            found[last.name] = Stage(last.name, last.base, (*last.instructions, (instruction, rest)))
    return found


def lineage(target: str) -> list[Stage]:
    """What an image is made of, from its base image on."""
    chain = [stages()[target]]
    while chain[0].base in stages():
        chain.insert(0, stages()[chain[0].base])
    return chain


def environment(target: str) -> dict[str, str]:
    pairs = [pair for stage in lineage(target) for rest in stage.of("ENV") for pair in shlex.split(rest)]
    return dict(pair.split("=", 1) for pair in pairs)


def test_hadolint() -> None:
    program = Path(sys.executable).parent / "hadolint"
    done = subprocess.run([program, DOCKERFILE], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_images_are_of_one_pinned_release() -> None:
    syntax = DOCKERFILE.read_text().splitlines()[0]
    assert re.fullmatch(r"# syntax=docker/dockerfile:\d+\.\d+", syntax)
    bases = {stage.base for stage in stages().values()} - set(stages())
    assert len(bases) == 1
    assert re.fullmatch(r"python:3\.12\.\d+-slim-bookworm", bases.pop())
    others = [flag for stage in stages().values() for rest in stage.of("COPY") for flag in sources_of(rest)[1]]
    assert set(others) <= set(stages())


@pytest.mark.parametrize("target", TARGETS)
def test_target(target: str) -> None:
    chain = lineage(target)
    users = [rest for stage in chain for rest in stage.of("USER")]
    assert users == ["1000:1000"], "Kubernetes sees from the number that it is not root"
    after = [name for name, _ in chain[-1].instructions]
    assert "RUN" not in after[after.index("USER") :]
    accounts = " ".join(rest for stage in chain for rest in stage.of("RUN"))
    assert "groupadd --gid 1000 raygpu" in accounts
    assert "useradd --uid 1000 --gid 1000 --create-home" in accounts
    (health,) = chain[-1].of("HEALTHCHECK")
    assert ("/health'" if target == "mlflow" else '["ray", "health-check"]') in health
    assert chain[-1].of("CMD")[0].startswith("["), "no shell between the container and the program"
    assert not [stage for stage in chain if stage.of("ENTRYPOINT")], "KubeRay gives its own command"
    labels = dict(pair.split("=", 1) for rest in chain[-1].of("LABEL") for pair in shlex.split(rest))
    names = {f"org.opencontainers.image.{name}" for name in ("title", "description", "licenses", "version", "revision")}
    assert set(labels) == names
    assert labels["org.opencontainers.image.version"] == __version__


@pytest.mark.parametrize("target", TARGETS)
def test_root_file_system_can_be_read_only(target: str) -> None:
    values = environment(target)
    assert values["HOME"] == "/home/raygpu"
    assert values["PYTHONDONTWRITEBYTECODE"] == "1"
    assert values["MLFLOW_DISABLE_TELEMETRY"] == "true"
    caches = {"XDG_CACHE_HOME", "MPLCONFIGDIR"}
    if target != "mlflow":
        caches |= {"TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH"}
        assert values["RAY_USAGE_STATS_ENABLED"] == "0"
    for name in caches:
        assert values[name].startswith("/tmp/"), name
    assert values["PATH"].split(":")[0] == "/opt/venv/bin"


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_has_no_other_packages_of_the_system(target: str) -> None:
    """torch compiles an array's step with g++. Python's packages come from a stage that is left behind."""
    runs = [rest for stage in lineage(target) for rest in stage.of("RUN")]
    assert all("apt-get" not in run or run.startswith('if [ -n "$PACKAGES" ]') for run in runs)
    asked = [rest for stage in lineage(target) for rest in stage.of("ARG") if rest.startswith("PACKAGES")]
    assert asked == (['PACKAGES="g++"'] if target == "torch" else [])
    (venv,) = (rest for rest in stages()[target].of("COPY") if "/opt/venv" in rest)
    assert venv == f"--from={target}-dependencies /opt/venv /opt/venv"


@pytest.mark.parametrize("target", ["torch", "tensorflow"])
def test_a_change_of_code_installs_no_dependency_again(target: str) -> None:
    for stage in lineage(f"{target}-dependencies"):
        for rest in stage.of("COPY"):
            assert sources_of(rest)[0] <= {"constraints.txt", f"/requirements/{target}.txt"}
    (install,) = stages()[f"{target}-dependencies"].of("RUN")
    assert install.startswith("--mount=type=cache,target=/root/.cache/pip ")
    assert "--constraint constraints.txt" in install
    (last,) = (rest for rest in stages()[target].of("RUN") if "pip install" in rest)
    assert last.startswith("--mount=type=bind,from=wheel,")
    assert last.endswith("--no-deps --no-index /wheels/*.whl")
    order = [rest for name, rest in stages()[target].instructions if name in ("COPY", "RUN")]
    venv = next(place for place, rest in enumerate(order) if "/opt/venv" in rest)
    assert {"conf conf", "experiments experiments", last} <= set(order[venv + 1 :])


def test_mlflow_has_users_postgresql_and_s3() -> None:
    (install,) = stages()["mlflow-dependencies"].of("RUN")
    wanted = shlex.split(install)[-3:]
    assert wanted == ["mlflow[auth]", "psycopg2-binary", "boto3"]
    pinned = {line.split("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines()}
    assert {"mlflow", "flask-wtf", "wtforms", "psycopg2-binary", "boto3"} <= pinned


def test_requirements_are_those_of_the_project() -> None:
    (install,) = stages()["requirements"].of("RUN")
    for target in ("torch", "tensorflow"):
        assert f"requirements.py {target} < pyproject.toml > {target}.txt" in install
        done = subprocess.run(
            [sys.executable, DOCKERFILE.parent / "requirements.py", target],
            stdin=(ROOT / "pyproject.toml").open("rb"),
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        names = {re.split(r"[\[<>=]", line)[0] for line in done.stdout.splitlines()}
        assert {"ray", "mlflow", "nvidia-ml-py", target} <= names
        assert not {"torch", "tensorflow"} - {target} & names


def sources_of(rest: str) -> tuple[set[str], list[str]]:
    """The files that a COPY takes, and the stages that it takes them from."""
    words = shlex.split(rest)
    stage = [word.removeprefix("--from=") for word in words if word.startswith("--from=")]
    return {word for word in words[:-1] if not word.startswith("--")}, stage


@cache
def build_context() -> frozenset[str]:
    """The files that a build gets."""
    patterns = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    found = exclude_paths(str(ROOT), patterns) - {".dockerignore"}  # which always goes along
    return frozenset(path for path in found if (ROOT / path).is_file())


def test_copied_files_are_there_and_reach_the_build() -> None:
    copied = [sources_of(rest) for stage in stages().values() for rest in stage.of("COPY")]
    sources = set().union(*(names for names, stage in copied if not stage))
    assert {"pyproject.toml", "raygpu", "experiments", "conf"} <= sources
    for source in sources:
        assert (ROOT / source).exists(), source
        assert any(path == source or path.startswith(f"{source}/") for path in build_context()), source


def test_nothing_else_reaches_the_build() -> None:
    assert (ROOT / ".dockerignore").read_text().splitlines()[1] == "*", "all is left out but what is named"
    tops = {path.split("/")[0] for path in build_context()}
    assert tops == {
        "LICENSE",
        "README.md",
        "conf",
        "constraints.txt",
        "deploy",
        "experiments",
        "pyproject.toml",
        "raygpu",
    }
    assert {path for path in build_context() if path.startswith("deploy/")} == {"deploy/docker/requirements.py"}
    assert not [path for path in build_context() if "__pycache__" in path or "benchmarks/records/" in path]


# Compose


@cache
def compose() -> dict[str, Any]:
    """As Compose reads it, every variable set to something."""
    return dict(yaml.safe_load(VARIABLE.sub(r"value-of-\1", COMPOSE.read_text())))


def services() -> dict[str, dict[str, Any]]:
    return dict(compose()["services"])


SERVICES = sorted(yaml.safe_load(COMPOSE.read_text())["services"])


def test_compose_is_valid() -> None:
    parsed = PyCompose.from_json(json.dumps(compose()))
    parsed.validate()
    assert set(parsed.service_names()) == {
        "postgres",
        "buckets",
        "storage",
        "migrate",
        "mlflow",
        "user",
        "ray",
        "ray-cpu",
    }


def test_a_faulty_compose_file_is_not() -> None:
    faulty = json.loads(json.dumps(compose()))
    faulty["services"]["ray"]["comand"] = []
    with pytest.raises(ValueError, match="comand"):
        PyCompose.from_json(json.dumps(faulty))


@pytest.mark.parametrize("name", SERVICES)
def test_service_is_contained(name: str) -> None:
    service = services()[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", service["user"]), "a number, and not root's"
    assert not {"privileged", "cap_add", "pid", "ipc", "devices", "userns_mode"} & set(service)
    if name != "buckets":
        assert "/tmp" in {mount.split(":")[0] for mount in service["tmpfs"]}, "programs need one folder to write to"
    image, _, tag = service["image"].rpartition(":")
    assert re.match(r"v?\d+\.\d+", tag), f"{service['image']}: of which release?"
    if "build" in service:
        assert image.startswith("raygpu-")
        assert tag == __version__
        assert service["build"]["target"] in TARGETS
        assert (COMPOSE.parent / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
        assert (COMPOSE.parent / service["build"]["context"]).resolve() == ROOT
    for volume in service.get("volumes", []):
        source = volume.split(":")[0]
        if source.startswith("."):
            assert (COMPOSE.parent / source).is_file()
            assert volume.endswith(":ro")
        else:
            assert source in compose()["volumes"], "of this machine, nothing but one file is seen"


@pytest.mark.parametrize("name", SERVICES)
def test_service_lasts_or_ends(name: str) -> None:
    service = services()[name]
    if name in ONCE:
        assert service["restart"] == "no"
    else:
        assert service["restart"] == "unless-stopped"
        assert service["healthcheck"]["test"][0] == "CMD"
    for other, how in service.get("depends_on", {}).items():
        assert other in services()
        assert how["condition"] == ("service_completed_successfully" if other in ONCE else "service_healthy")


def test_services_start_in_order() -> None:
    def before(name: str) -> set[str]:
        first = set(services()[name].get("depends_on", {}))
        return first.union(*(before(other) for other in first))

    assert before("migrate") == {"postgres"}
    assert before("storage") == {"buckets"}
    assert before("mlflow") == {"postgres", "migrate", "storage", "buckets"}
    assert before("ray") == before("ray-cpu") == {"user", "mlflow", *before("mlflow")}


def test_ports_are_of_this_machine_alone() -> None:
    published = {name: service["ports"] for name, service in services().items() if "ports" in service}
    dashboard = ["127.0.0.1:8265:8265"]
    assert published == {"mlflow": ["127.0.0.1:5000:5000"], "ray": dashboard, "ray-cpu": dashboard}
    assert not [name for name, service in services().items() if service.get("network_mode", "none") != "none"]


def members(network: str) -> set[str]:
    return {name for name, service in services().items() if network in service.get("networks", [])}


def test_networks() -> None:
    assert services()["postgres"]["networks"] == ["database"]
    assert members("database") == {"postgres", "migrate", "mlflow"}
    assert services()["storage"]["networks"] == ["storage"]
    assert members("storage") == {"storage", "mlflow", "ray", "ray-cpu"}
    assert all(compose()["networks"][name] == {"internal": True} for name in ("database", "storage"))
    alone = {name for name, service in services().items() if not service.get("networks")}
    assert alone == {"buckets"}
    assert services()["buckets"]["network_mode"] == "none", "else Compose puts it on a network of its own"


def test_no_secret_is_written_down() -> None:
    text = COMPOSE.read_text()
    variables_of_the_shell = re.findall(r"\$(?!\{\w+:\?)\S*", re.sub("(?m)^#.*$", "", text))
    assert not variables_of_the_shell, "a variable that may be unset"
    for name, service in services().items():
        for variable, value in service.get("environment", {}).items():
            if re.search("PASSWORD|SECRET|TOKEN|KEY", variable):
                assert value.startswith("value-of-"), f"{name}: {variable} is a literal"
        shown = json.dumps({key: value for key, value in service.items() if key != "environment"})
        assert "value-of-" not in shown, f"{name}: a secret outside its environment"
    for text in (
        COMPOSE.read_text(),
        (SETTINGS / "basic_auth.ini").read_text(),
        DOCKERFILE.read_text(),
    ):
        assert not re.search(r"://[^/\s@]+:[^/\s@]+@", text), "an address with a password"
        assert not re.search(r"\b[0-9a-f]{20,}\b", text), "a secret of secrets.sh"


def test_every_variable_is_one_that_secrets_sh_prints() -> None:
    wanted = set(VARIABLE.findall(COMPOSE.read_text()))
    assert wanted == set(variables()) - {"REDIS_PASSWORD"}


def test_tracking() -> None:
    """Both halves of the database are migrated, the tracking one first, and the server finds what they find."""
    import configparser

    settings = configparser.ConfigParser()
    settings.read(SETTINGS / "basic_auth.ini")
    section = settings["mlflow"]
    assert section["default_permission"] == "NO_PERMISSIONS"
    assert "admin_password" not in section
    database = section["database_uri"]
    lines = services()["migrate"]["command"][-1].splitlines()
    assert lines == [f"mlflow db upgrade {database}", f"python -m mlflow.server.auth db upgrade --url {database}"]
    server = services()["mlflow"]["environment"]
    found = services()["migrate"]["environment"]
    assert found["PGHOST"] in services()
    assert found["PGPASSWORD"] == services()["postgres"]["environment"]["POSTGRES_PASSWORD"]
    assert found.items() <= server.items(), "both find the same database"
    assert server["MLFLOW_BACKEND_STORE_URI"] == database
    assert server["MLFLOW_AUTH_CONFIG_PATH"] == services()["mlflow"]["volumes"][0].split(":")[1]
    ray = services()["ray"]["environment"]
    user = services()["user"]["environment"]
    assert user["MLFLOW_TRACKING_USERNAME"] == section["admin_username"]
    assert user["MLFLOW_TRACKING_PASSWORD"] == server["MLFLOW_AUTH_ADMIN_PASSWORD"]
    assert ray["MLFLOW_TRACKING_USERNAME"] == user["RAYGPU_USER"] != section["admin_username"]
    assert ray["MLFLOW_TRACKING_PASSWORD"] == user["RAYGPU_PASSWORD"] != user["MLFLOW_TRACKING_PASSWORD"]
    assert ray["MLFLOW_TRACKING_URI"].removeprefix("http://") in server["MLFLOW_SERVER_ALLOWED_HOSTS"].split(",")
    assert ray["AWS_ENDPOINT_URL"] == server["MLFLOW_S3_ENDPOINT_URL"]
    made = services()["buckets"]["command"]
    asked = next(word for word in services()["mlflow"]["command"] if word.startswith("--artifacts-destination="))
    assert asked.replace("--artifacts-destination=s3://", "/data/") in made


def test_the_driver_that_mlflow_takes_is_installed() -> None:
    from sqlalchemy import make_url

    text = (SETTINGS / "basic_auth.ini").read_text()
    (address,) = re.findall("(?m)^database_uri = (.*)$", text)
    assert make_url(address).get_dialect().import_dbapi().__name__ == "psycopg2"


@pytest.mark.parametrize("name", ["ray", "ray-cpu"])
def test_ray_asks_for_its_token(name: str) -> None:
    service = services()[name]
    assert service["environment"]["RAY_AUTH_MODE"] == "token"
    assert service["environment"]["RAY_AUTH_TOKEN"] == "value-of-RAY_AUTH_TOKEN"
    assert service["build"]["target"] == "torch"
    (temporary,) = service["tmpfs"]
    assert "exec" in temporary.split(":")[1].split(","), "/tmp has programs that torch compiles"


def test_gpus() -> None:
    (reserved,) = services()["ray"]["deploy"]["resources"]["reservations"]["devices"]
    assert reserved == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
    assert not services()["ray-cpu"]["deploy"]
    assert services()["ray-cpu"]["profiles"] == ["cpu"], "else both would start"
    assert services()["ray-cpu"]["build"]["args"] == {"DEVICE": "cpu"}
    assert services()["ray-cpu"]["command"] == [*services()["ray"]["command"], "--num-gpus=1"]
