"""The manifests for Kubernetes: valid, as restricted as can be, and in step with each other and with raygpu."""

from __future__ import annotations

import re
import shlex
import subprocess
import tomllib
from itertools import chain
from typing import Any

import kubernetes_validate
import pytest
import yaml

import raygpu
from raygpu import config, submit, sweep, train
from tests.services.manifests import DEPLOY, JOBS, KUBERNETES, OVERLAYS, ROOT, Pod, one, pods, rendered

EVERY = [*(f"overlays/{name}" for name in OVERLAYS), *(f"jobs/{name}" for name in JOBS)]
CLUSTERS = ["overlays/dev", "overlays/gpu", "overlays/prod"]
OPERATORS = {"ray.io/v1", "monitoring.coreos.com/v1"}
"""Whose kinds Kubernetes does not know. The pods in them it does."""


def validate(document: dict[str, Any]) -> None:
    kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize("name", EVERY)
def test_what_is_rendered_is_valid_without_an_unknown_field(name: str) -> None:
    for document in rendered(name):
        if document["apiVersion"] not in OPERATORS:
            validate(document)
    for pod in pods(name):
        validate({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x", "labels": pod.labels}, "spec": pod.spec})


def test_an_unknown_field_is_refused() -> None:
    document = one("overlays/dev", "Deployment", "mlflow")
    with pytest.raises(kubernetes_validate.ValidationError):
        validate(document | {"spec": document["spec"] | {"replicsa": 1}})


@pytest.mark.parametrize("name", EVERY)
def test_pods_are_restricted(name: str) -> None:
    """More than the standard `restricted` wants: the root file system is read-only, and no pod has an API token."""
    for pod in pods(name):
        spec, context = pod.spec, pod.spec["securityContext"]
        assert spec["automountServiceAccountToken"] is False, pod.name
        assert spec["enableServiceLinks"] is False, pod.name
        assert context["runAsNonRoot"] is True, pod.name
        assert context["runAsUser"] >= 100, pod.name
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}, pod.name
        assert not {"hostNetwork", "hostPID", "hostIPC", "serviceAccountName"} & spec.keys(), pod.name
        kinds = set(chain.from_iterable(volume.keys() - {"name"} for volume in spec.get("volumes", [])))
        assert kinds <= {"configMap", "emptyDir", "projected", "secret"}, pod.name
        for container in pod.containers:
            assert_contained(container["securityContext"], f"{pod.name} {container['name']}")


def assert_contained(context: dict[str, Any], where: str) -> None:
    assert context == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }, where


@pytest.mark.parametrize("name", CLUSTERS)
def test_the_autoscaler_alone_has_a_token_of_the_kubernetes_api(name: str) -> None:
    spec = one(name, "RayCluster", "raygpu")["spec"]
    options, head = spec["autoscalerOptions"], spec["headGroupSpec"]["template"]["spec"]
    assert_contained(options["securityContext"], "autoscaler")
    mounted = {mount["name"] for mount in options["volumeMounts"]}
    tokens = {v["name"] for v in head["volumes"] if "serviceAccountToken" in str(v.get("projected"))}
    assert tokens & mounted
    assert mounted <= {volume["name"] for volume in head["volumes"]}
    (container,) = head["containers"]
    assert not mounted & {mount["name"] for mount in container["volumeMounts"]}, "what it writes, the other reads"


@pytest.mark.parametrize("name", EVERY)
def test_containers_have_bounds_and_pinned_images(name: str) -> None:
    for pod in pods(name):
        for container in pod.containers:
            where = f"{pod.name} {container['name']}"
            assert {"cpu", "memory"} <= container["resources"]["requests"].keys(), where
            assert {"cpu", "memory"} <= container["resources"]["limits"].keys(), where
            image, _, tag = container["image"].rpartition(":")
            assert re.fullmatch(r"v?\d+\.\d+(\.\d+)?(-[a-z]+)?", tag), where
            if "raygpu-" in image:
                assert tag == raygpu.__version__, where


@pytest.mark.parametrize("name", CLUSTERS)
def test_the_ray_cluster_has_what_it_needs(name: str) -> None:
    spec = one(name, "RayCluster", "raygpu")["spec"]
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    assert spec["rayVersion"] == pins["ray"]
    assert spec["authOptions"] == {"mode": "token", "secretName": "raygpu-ray-token"}
    assert (spec["enableInTreeAutoscaling"], spec["autoscalerOptions"]["version"]) == (True, "v2")
    assert spec["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    assert "valueFrom" in spec["gcsFaultToleranceOptions"]["redisPassword"]
    for pod in pods(name):
        if "ray.io/cluster" not in pod.labels:
            continue
        (container,) = pod.spec["containers"]
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        volumes = {volume["name"]: volume for volume in pod.spec["volumes"]}
        assert {"/dev/shm", "/tmp", "/home/raygpu"} <= mounts.keys()
        memory = volumes[mounts["/dev/shm"]]["emptyDir"]
        assert memory["medium"] == "Memory"
        share = in_bytes(memory["sizeLimit"]) / in_bytes(container["resources"]["limits"]["memory"])
        assert 0.3 <= share < 0.5, "less, and Ray keeps its objects on the disk"


@pytest.mark.parametrize("name", EVERY)
def test_what_pods_name_is_there(name: str) -> None:
    """Secrets as deploy/secrets.sh makes them, ConfigMaps of the overlay, volumes of the pod."""
    made = subprocess.run(
        ["sh", str(DEPLOY / "secrets.sh"), "kubernetes"], capture_output=True, text=True, check=True, timeout=60
    )
    secrets = {document["metadata"]["name"]: document["stringData"] for document in yaml.safe_load_all(made.stdout)}
    secrets["raygpu-existing"] = {}  # a team's own, in a namespace of theirs
    assert all(d["metadata"].get("namespace") == (None if "existing" in name else "raygpu") for d in rendered(name))
    maps = {d["metadata"]["name"]: d["data"] for d in rendered(name) if d["kind"] == "ConfigMap"}
    maps["kube-root-ca.crt"] = {"ca.crt": ""}
    found = 0
    for pod in pods(name):
        volumes = {volume["name"] for volume in pod.spec.get("volumes", [])} | claims(name, pod)
        for container in pod.containers:
            assert {mount["name"] for mount in container.get("volumeMounts", [])} <= volumes, pod.name
        for kind, of, key in references(pod.spec):
            found += 1
            there = secrets if kind == "secret" else maps
            assert of in there, (pod.name, of)
            assert key is None or key in there[of], (pod.name, of, key)
    assert found


def references(node: Any) -> list[tuple[str, str, str | None]]:
    """The kind, name and key of each Secret and ConfigMap that is named."""
    if isinstance(node, list):
        return list(chain.from_iterable(map(references, node)))
    if not isinstance(node, dict):
        return []
    found: list[tuple[str, str, str | None]] = []
    for key, value in node.items():
        if key in ("secretKeyRef", "secretRef"):
            found.append(("secret", value["name"], value.get("key")))
        elif key == "secret":
            found += [("secret", value["secretName"], item["key"]) for item in value["items"]]
        elif key == "configMapRef":
            found.append(("map", value["name"], None))
        elif key == "configMap":
            found += [("map", value["name"], item["key"]) for item in value.get("items", [])]
            found.append(("map", value["name"], None))
        else:
            found += references(value)
    return found


def claims(name: str, pod: Pod) -> set[str]:
    """The volumes that a StatefulSet brings."""
    kind, _, of = pod.name.partition("/")
    if kind != "StatefulSet":
        return set()
    return {claim["metadata"]["name"] for claim in one(name, kind, of)["spec"]["volumeClaimTemplates"]}


@pytest.mark.parametrize("name", EVERY)
def test_nothing_secret_is_written_down(name: str) -> None:
    assert all(document["kind"] != "Secret" for document in rendered(name))
    for pod in pods(name):
        for container in pod.containers:
            for variable in container.get("env", []):
                if re.search("PASSWORD|TOKEN|SECRET|ACCESS_KEY", variable["name"]) and "FILE" not in variable["name"]:
                    assert "value" not in variable, (pod.name, variable)


@pytest.mark.parametrize("name", CLUSTERS)
def test_services_budgets_and_monitors_select_pods(name: str) -> None:
    found = pods(name)
    for document in rendered(name):
        match document["kind"]:
            case "Service":
                (pod,) = (pod for pod in found if document["spec"]["selector"].items() <= pod.labels.items())
                ports = {port["name"] for container in pod.spec["containers"] for port in container["ports"]}
                assert {port["targetPort"] for port in document["spec"]["ports"]} <= ports
            case "PodDisruptionBudget":
                assert chosen(document, found)
                replicas = one(name, "Deployment", document["metadata"]["name"])["spec"]["replicas"]
                assert replicas > document["spec"]["minAvailable"], "else no node is ever drained"
            case "PodMonitor":
                endpoints = {endpoint["port"] for endpoint in document["spec"]["podMetricsEndpoints"]}
                assert chosen(document, found)
                for pod in chosen(document, found):
                    assert endpoints <= {port["name"] for port in pod.spec["containers"][0]["ports"]}


def chosen(document: dict[str, Any], found: list[Pod]) -> list[Pod]:
    wanted = document["spec"]["selector"]["matchLabels"]
    return [pod for pod in found if wanted.items() <= pod.labels.items()]


def test_production_has_budgets_and_monitors_for_each_part() -> None:
    kinds = {(d["kind"], d["metadata"]["name"]) for d in rendered("overlays/prod")}
    assert ("PodDisruptionBudget", "mlflow") in kinds
    assert {("PodMonitor", part) for part in ("ray-head", "ray-workers")} <= kinds
    assert one("overlays/prod", "Deployment", "mlflow")["spec"]["replicas"] == 2
    assert not {("StatefulSet", "postgres"), ("StatefulSet", "storage")} & kinds


def test_the_page_says_that_a_drain_takes_the_head_and_redis_along() -> None:
    budgets = {d["metadata"]["name"] for d in rendered("overlays/prod") if d["kind"] == "PodDisruptionBudget"}
    assert budgets == {"mlflow"}
    (row,) = [line for line in (KUBERNETES / "README.md").read_text().splitlines() if line.startswith("| drain a node")]
    assert "nothing holds the head or Redis back" in row
    assert "`--resume`" in row


def test_a_small_node_is_enough_for_dev() -> None:
    """4 CPUs and 8 GiB, of which Kubernetes itself takes a part."""
    spec = one("overlays/dev", "RayCluster", "raygpu")["spec"]
    requests = [spec["autoscalerOptions"]["resources"]["requests"]]
    for pod in pods("overlays/dev"):
        requests += [container["resources"]["requests"] for container in pod.spec["containers"]]
    assert not any("gpu" in key for request in requests for key in request)
    assert spec["workerGroupSpecs"][0]["maxReplicas"] == 1
    assert sum(in_cpus(request["cpu"]) for request in requests) <= 3
    assert sum(in_bytes(request["memory"]) for request in requests) <= 6.5 * 2**30


def test_gpu_groups_have_whole_gpus_of_one_type_each() -> None:
    groups = one("overlays/gpu", "RayCluster", "raygpu")["spec"]["workerGroupSpecs"]
    assert sum(group["minReplicas"] for group in groups) >= 1, "raygpu plans with the GPUs that there are"
    for group in groups:
        (container,) = group["template"]["spec"]["containers"]
        assert int(container["resources"]["limits"]["nvidia.com/gpu"]) >= 1
        assert container["resources"]["limits"] == container["resources"]["requests"]
        assert group["labels"]
        assert "num-gpus" not in group["rayStartParams"], "what the pod has counts"
    selectors = {str(group["template"]["spec"]["nodeSelector"]) for group in groups}
    assert len(selectors) == len(groups)


@pytest.mark.parametrize("job", JOBS)
def test_jobs_run_commands_that_raygpu_takes(job: str) -> None:
    words = shlex.split(one(f"jobs/{job}", "RayJob", f"{job}-digits")["spec"]["entrypoint"])
    assert words[:3] == ["python", "-m", f"raygpu.{job}"]
    assert_taken(job, words[3:])


@pytest.mark.parametrize("job", JOBS)
def test_a_team_with_a_cluster_gets_by_with_a_submit(job: str) -> None:
    """The same commands; the second waits for a person."""
    document = one("overlays/existing", "Job", f"raygpu-{job}")
    assert document["spec"].get("suspend", False) is (job == "train")
    (container,) = document["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["python", "-m", "raygpu.submit"]
    asked = submit.FLAGS.parse(container["args"])
    assert asked.words[0] == job
    assert asked.options.keys() == {"env", "requirements"}
    assert_taken(job, asked.words[1:])
    assert {d["kind"] for d in rendered("overlays/existing")} == {"Job", "ConfigMap"}


def assert_taken(job: str, words: list[str]) -> None:
    command = {"sweep": sweep.COMMAND, "train": train.COMMAND}[job]
    arguments = command.flags.parse(words)
    if arguments.file is not None:
        config.load(ROOT / arguments.file, arguments.overrides, command.schema)
    else:
        assert "from" in arguments.options
    assert arguments.overrides["storage"].startswith(("s3://", "$(STORAGE)"))


def test_a_teams_cluster_gets_the_packages_that_raygpu_needs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {line for line in project["dependencies"] if not line.startswith("ray[")}
    lines = (KUBERNETES / "overlays/existing/requirements.txt").read_text().splitlines()
    assert {line for line in lines if not line.startswith("#")} == wanted


def in_bytes(quantity: str) -> float:
    return float(quantity[:-2]) * {"Mi": 2**20, "Gi": 2**30}[quantity[-2:]]


def in_cpus(quantity: str) -> float:
    return float(quantity[:-1]) / 1000 if quantity.endswith("m") else float(quantity)
