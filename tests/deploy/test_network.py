"""Who reaches whom, as the network policies of an overlay have it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.services.manifests import pods, rendered

STRANGER = {"app": "stranger"}
KUBE_DNS = {"k8s-app": "kube-dns"}
SYSTEM, OPERATORS, MONITORING = "kube-system", "kuberay", "monitoring"
OPERATOR = {"app.kubernetes.io/component": "kuberay-operator"}
"""What both ways to install it give it; its name differs."""
PROMETHEUS = {"app.kubernetes.io/name": "prometheus"}


def labels(overlay: str, name: str) -> dict[str, str]:
    """Of the pods of a part: head and worker, or an application's name."""
    for pod in [*pods(overlay), *pods("jobs/sweep")]:
        if name in (pod.labels.get("ray.io/node-type"), pod.labels.get("app.kubernetes.io/name")):
            return pod.labels
    return {"stranger": STRANGER, "dns": KUBE_DNS, "operator": OPERATOR, "prometheus": PROMETHEUS}[name]


def selected(selector: dict[str, Any], given: dict[str, str]) -> bool:
    named = all(given.get(key) == value for key, value in selector.get("matchLabels", {}).items())
    return named and all(given.get(e["key"]) in e["values"] for e in selector.get("matchExpressions", []))


def admits(overlay: str, way: str, own: dict[str, str], peer: dict[str, str], place: str, port: int) -> bool:
    """Whether a pod of ours may talk to a peer, or be talked to by it. place: the peer's namespace."""
    policies = [d["spec"] for d in rendered(overlay) if d["kind"] == "NetworkPolicy"]
    policies = [p for p in policies if way.capitalize() in p["policyTypes"] and selected(p["podSelector"], own)]
    side = "from" if way == "ingress" else "to"
    if not policies:
        return True
    return any(
        (not rule.get("ports") or port in [p["port"] for p in rule["ports"]])
        and (side not in rule or any(named(of, peer, place) for of in rule[side]))
        for policy in policies
        for rule in policy.get(way, [])
    )


def named(of: dict[str, Any], peer: dict[str, str], place: str) -> bool:
    if "namespaceSelector" in of:
        if not selected(of["namespaceSelector"], {"kubernetes.io/metadata.name": place}):
            return False
    elif place != "raygpu":
        return False
    return selected(of.get("podSelector", {}), peer)


def reaches(overlay: str, source: str, target: str, port: int) -> bool:
    """By both ends' policies; a peer of another namespace has none of ours."""
    places = {"dns": SYSTEM, "operator": OPERATORS, "prometheus": MONITORING}
    one, other = labels(overlay, source), labels(overlay, target)
    out = source in places or admits(overlay, "egress", one, other, places.get(target, "raygpu"), port)
    into = target in places or admits(overlay, "ingress", other, one, places.get(source, "raygpu"), port)
    return out and into


NEEDED = [
    ("submitter", "head", 8265),
    ("operator", "head", 8265),
    ("worker", "head", 6379),
    ("head", "worker", 30000),
    ("worker", "worker", 30000),
    ("head", "redis", 6379),
    ("head", "mlflow", 5000),
    ("mlflow-user", "mlflow", 5000),
    *((part, "dns", 53) for part in ("head", "worker", "mlflow", "mlflow-migrate", "submitter", "mlflow-user")),
]
IN_THE_NAMESPACE = [
    ("mlflow", "postgres", 5432),
    ("mlflow-migrate", "postgres", 5432),
    ("mlflow", "storage", 7070),
    ("head", "storage", 7070),
    ("worker", "storage", 7070),
]
FORBIDDEN = [
    ("worker", "mlflow", 5000),
    ("worker", "redis", 6379),
    ("submitter", "mlflow", 5000),
    ("submitter", "worker", 30000),
    ("submitter", "head", 6379),
    ("submitter", "redis", 6379),
    ("mlflow", "head", 8265),
    ("mlflow", "redis", 6379),
    ("mlflow-user", "redis", 6379),
    ("operator", "head", 6379),
    ("stranger", "head", 8265),
    ("stranger", "head", 6379),
    ("stranger", "worker", 30000),
    ("stranger", "mlflow", 5000),
    ("stranger", "redis", 6379),
    ("stranger", "dns", 8053),
    ("redis", "head", 8265),
]
STORES_FORBIDDEN = [
    ("head", "postgres", 5432),
    ("worker", "postgres", 5432),
    ("submitter", "storage", 7070),
    ("stranger", "storage", 7070),
    ("stranger", "postgres", 5432),
    ("mlflow-user", "postgres", 5432),
    ("postgres", "storage", 7070),
]


@pytest.mark.parametrize("overlay", ["overlays/dev", "overlays/gpu", "overlays/prod"])
def test_each_part_reaches_what_it_needs_and_nothing_else(overlay: str) -> None:
    own = overlay != "overlays/prod"
    for way in NEEDED + IN_THE_NAMESPACE * own:
        assert reaches(overlay, *way), way
    for way in FORBIDDEN + STORES_FORBIDDEN * own:
        assert not reaches(overlay, *way), way


def test_prometheus_reaches_metrics_alone() -> None:
    for part, port in (("head", 8080), ("head", 44217), ("head", 44227), ("worker", 8080)):
        assert reaches("overlays/prod", "prometheus", part, port)
        assert not reaches("overlays/dev", "prometheus", part, port)
    for part, port in (("head", 8265), ("head", 6379), ("mlflow", 5000), ("redis", 6379)):
        assert not reaches("overlays/prod", "prometheus", part, port)
