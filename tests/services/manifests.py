"""The manifests of deploy/, as `kubectl kustomize` renders them."""

from __future__ import annotations

import functools
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
OVERLAYS = ("dev", "gpu", "prod", "existing")
JOBS = ("sweep", "train")


@functools.cache
def rendered(name: str) -> tuple[dict[str, Any], ...]:
    """The documents of an overlay, or of a job: overlays/dev, jobs/sweep."""
    if shutil.which("kubectl") is None:
        pytest.skip("there is no kubectl to render manifests with")
    done = subprocess.run(
        ["kubectl", "kustomize", str(KUBERNETES / name)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return tuple(document for document in yaml.safe_load_all(done.stdout) if document)


def one(name: str, kind: str, of: str) -> dict[str, Any]:
    """The document of this kind and name."""
    (found,) = (d for d in rendered(name) if (d["kind"], d["metadata"]["name"]) == (kind, of))
    return dict(found)


@dataclass(frozen=True)
class Pod:
    """A template that pods are made from."""

    name: str
    labels: dict[str, str]
    spec: dict[str, Any]

    @property
    def containers(self) -> list[dict[str, Any]]:
        return [*self.spec.get("initContainers", []), *self.spec["containers"]]

    def container(self, name: str) -> dict[str, Any]:
        (found,) = (container for container in self.containers if container["name"] == name)
        return dict(found)


def pods(name: str) -> list[Pod]:
    """Of an overlay or job, with those that KubeRay makes, and the labels that it gives them."""
    return [pod for document in rendered(name) for pod in _pods(document)]


def _pods(document: dict[str, Any]) -> Iterator[Pod]:
    spec, name = document.get("spec", {}), f"{document['kind']}/{document['metadata']['name']}"
    if document["kind"] == "RayCluster":
        cluster = {"ray.io/cluster": document["metadata"]["name"]}
        yield _pod(f"{name} head", spec["headGroupSpec"]["template"], cluster | {"ray.io/node-type": "head"})
        for group in spec["workerGroupSpecs"]:
            labels = cluster | {"ray.io/node-type": "worker", "ray.io/group": group["groupName"]}
            yield _pod(f"{name} {group['groupName']}", group["template"], labels)
    elif document["kind"] == "RayJob":
        yield _pod(name, spec["submitterPodTemplate"])
    elif "template" in spec:
        yield _pod(name, spec["template"])


def _pod(name: str, template: dict[str, Any], labels: dict[str, str] | None = None) -> Pod:
    return Pod(name, template["metadata"]["labels"] | (labels or {}), template["spec"])


def environment(container: dict[str, Any], documents: tuple[dict[str, Any], ...], secrets: dict[str, Any]) -> dict:
    """A container's variables, as the kubelet sets them. secrets: by name and key."""
    maps = {d["metadata"]["name"]: d["data"] for d in documents if d["kind"] == "ConfigMap"}
    found: dict[str, str] = {}
    for source in container.get("envFrom", []):
        if "configMapRef" in source:
            found |= maps[source["configMapRef"]["name"]]
        else:
            found |= secrets[source["secretRef"]["name"]]
    for variable in container.get("env", []):
        if "value" in variable:
            found[variable["name"]] = variable["value"]
        else:
            reference = variable["valueFrom"]["secretKeyRef"]
            found[variable["name"]] = secrets[reference["name"]][reference["key"]]
    return found


def command(container: dict[str, Any], variables: dict[str, str]) -> list[str]:
    """A container's command and arguments, with $(NAME) replaced as the kubelet does."""
    words = [*container.get("command", []), *container.get("args", [])]
    for name, value in variables.items():
        words = [word.replace(f"$({name})", value) for word in words]
    return words
