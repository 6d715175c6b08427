"""The Grafana dashboard: each of its queries names metrics that a Ray with a sweep on it exports."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from raygpu.engines.cluster import prometheus
from tests.services.ray_cluster import HEAD, RayCluster

pytestmark = pytest.mark.timeout(900)

DASHBOARD = json.loads((Path(__file__).parents[2] / "deploy/grafana/raygpu.json").read_text())
TRIALS = 3
WAIT_S = 300
PROJECT = """
import time
from pathlib import Path

import raygpu

def train(config):
    while not Path(config["seen"]).exists():
        time.sleep(0.1)
        raygpu.report(score=1.0, samples_per_s=1000.0)
    raygpu.report(score=1.0, samples_per_s=1000.0)
"""
CONFIGURATION = f"""
experiment = "project:train"
name = "shown"
trials = {TRIALS}
metric = "score"
direction = "max"

[gpu]
fraction = 0.5

[space]
seen = "seen"

[tracking]
enabled = false
"""
KEYWORDS = {"by", "without", "on", "ignoring", "group_left", "group_right", "or", "and", "unless", "bool", "offset"}


def named(query: str) -> set[str]:
    """The metrics in a PromQL expression: identifiers that are no function, keyword or label."""
    bare = re.sub(r'"(\\.|[^"\\])*"', "", query)
    bare = re.sub(r"\{[^}]*\}|\[[^]]*\]", " ", bare)
    bare = re.sub(r"\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)", " ", bare)
    return set(re.findall(r"(?<![\w:.])[A-Za-z_:][\w:]*\b(?!\s*\()", bare)) - KEYWORDS


def queries() -> Iterator[str]:
    """Of all panels and variables."""
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            yield target["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            asked = re.fullmatch(r"label_values\((.*),\s*\w+\)", variable["query"]["query"])
            assert asked, variable
            yield asked[1]


def in_dashboard() -> set[str]:
    return set().union(*map(named, queries()))


def raygpus() -> set[str]:
    return {metric.exported for metric in prometheus.METRICS}


def only_elsewhere() -> set[str]:
    """What Ray exports where there are GPUs that it can ask, or once a node is lost."""
    from ray.dashboard.modules.reporter.reporter_agent import METRICS_GAUGES

    return {f"ray_{name}" for name in METRICS_GAUGES if re.search("gpus_|gram_|failed_nodes", name)}


@dataclass(slots=True)
class Scrape:
    """What the head exported at a moment, by name: labels and value of each series."""

    series: dict[str, list[tuple[dict[str, str], float]]] = field(default_factory=dict)

    def by(self, metric: prometheus.Metric, label: str) -> dict[str, float]:
        """Of the sweep."""
        of_run = [one for one in self.series.get(metric.exported, []) if one[0]["run"] == "shown"]
        assert len({labels[label] for labels, _ in of_run}) == len(of_run), "one series each"
        return {labels[label]: value for labels, value in of_run}

    @property
    def has_sweep(self) -> bool:
        return any(name.startswith("ray_raygpu") for name in self.series)

    @property
    def at_once(self) -> bool:
        """Whether two trials run on the GPU, and both have told their throughput."""
        return self.by(prometheus.TRIALS_PER_GPU, "gpu") == {"0": 2.0} and self.by(prometheus.SAMPLES, "gpu") == {
            "0": 2000.0
        }


def scrape(cluster: RayCluster) -> Scrape:
    found = Scrape()
    try:
        text = cluster.scrape()
    except OSError:  # the node does not export yet
        return found
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.series.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
    return found


@dataclass(frozen=True, slots=True)
class Watched:
    """Scrapes while the sweep ran, and after its driver had ended."""

    during: list[Scrape]
    after: list[Scrape]

    def names(self) -> set[str]:
        return set().union(*(one.series for one in self.during))


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """A sweep of three trials, two at once, on a Ray that reports every two seconds: seen, told to end, gone."""
    folder = tmp_path_factory.mktemp("dashboard")
    (folder / "project.py").write_text(PROJECT)
    (folder / "shown.toml").write_text(CONFIGURATION.replace('"seen"', f'"{folder}/seen"'))
    cluster = RayCluster({"RAY_metrics_report_interval_ms": "2000"})
    try:
        cluster.start(num_cpus=2, num_gpus=1)
        yield watch(cluster, folder)
    finally:
        cluster.kill(HEAD)  # sooner than it ends by itself
        cluster.stop()


def watch(cluster: RayCluster, folder: Path) -> Watched:
    during: list[Scrape] = []
    after: list[Scrape] = []
    wanted = in_dashboard() - raygpus() - only_elsewhere()
    deadline = time.monotonic() + WAIT_S
    with (folder / "log").open("wb") as log:
        words = [sys.executable, "-m", "raygpu.sweep", "shown.toml", "--cluster.address", cluster.address]
        sweep = subprocess.Popen(words, env=cluster.environment, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
        try:
            seen = False
            while sweep.poll() is None and time.monotonic() < deadline:
                during.append(scrape(cluster))
                seen = seen or during[-1].at_once
                # A name that does not exist is not waited for long.
                if seen and (Watched(during, []).names() >= wanted or len(during) > 100):
                    (folder / "seen").touch()
                time.sleep(0.2)
            assert sweep.poll() == 0, (folder / "log").read_text()
        finally:
            (folder / "seen").touch()
            sweep.kill()
            sweep.wait()
    while time.monotonic() < deadline:
        after.append(scrape(cluster))
        if not after[-1].has_sweep:
            break
        time.sleep(0.2)
    return Watched(during, after)


@pytest.mark.slow
def test_every_query_names_metrics_that_exist(watched: Watched) -> None:
    unknown = in_dashboard() - raygpus() - only_elsewhere() - watched.names()
    assert not unknown
    assert only_elsewhere() & in_dashboard(), "GPUs are on the dashboard"


@pytest.mark.slow
def test_what_raygpu_exports_is_on_the_dashboard(watched: Watched) -> None:
    assert raygpus() <= in_dashboard()
    of_sweep = raygpus() - {prometheus.TRAINING_SAMPLES.exported, prometheus.MEMORY.exported}
    assert of_sweep <= watched.names()


@pytest.mark.slow
def test_the_gauges_tell_what_the_sweep_does(watched: Watched) -> None:
    moment = next(one for one in watched.during if one.at_once)
    trials = moment.by(prometheus.TRIALS, "status")
    assert sum(trials.values()) == TRIALS
    assert (trials["running"], trials["waiting"]) == (2, 1)
    assert moment.by(prometheus.RETRIES, "reason") == {"out_of_memory": 0, "lost_worker": 0}
    before = next(one for one in watched.during if one.has_sweep)
    assert not before.by(prometheus.SAMPLES, "gpu"), "no trial has told its throughput yet: absent, not 0"
    assert sum(before.by(prometheus.TRIALS, "status").values()) == TRIALS


@pytest.mark.slow
def test_the_gauges_end_with_the_sweep(watched: Watched) -> None:
    told = [one.by(prometheus.TRIALS, "status") for one in watched.during + watched.after if one.has_sweep]
    assert told[-1]["finished"] == TRIALS, "the last word is the sweep's end"
    assert told[-1]["running"] == 0
    assert not watched.after[-1].has_sweep, "they expire"
    assert watched.after[-1].series, "and Ray's own stay"


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ('sum by (run, gpu) (rate(a_total{run=~"$run", gpu!="}"}[5m])) > 2e3', {"a_total"}),
        ("max by (ip) (a) / on (ip) group_left (name) b * 1024 or vector(0)", {"a", "b"}),
        ("sum(a:rate5m offset 5m) without (x) unless c", {"a:rate5m", "c"}),
    ],
)
def test_names_are_found_in_queries(query: str, found: set[str]) -> None:
    assert named(query) == found


def panels() -> list[Any]:
    return [pytest.param(panel, id=panel["title"]) for panel in DASHBOARD["panels"]]


@pytest.mark.parametrize("panel", panels())
def test_a_panel_says_what_it_shows(panel: Mapping[str, Any]) -> None:
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"] in {"short", "percent", "bytes"}
    for target in panel["targets"]:
        assert target["datasource"] == panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert '=~"$session"' in target["expr"]
        chosen = any(name in raygpus() for name in named(target["expr"]))
        assert chosen == ('run=~"$run"' in target["expr"]), "raygpu's own are those of the chosen runs"
    in_percent = panel["fieldConfig"]["defaults"]["unit"] == "percent"
    assert in_percent == ("max" in panel["fieldConfig"]["defaults"]), "shares have the whole scale"


def test_it_is_one_screen() -> None:
    boxes = [panel["gridPos"] for panel in DASHBOARD["panels"]]
    assert max(box["x"] + box["w"] for box in boxes) == 24
    assert max(box["y"] + box["h"] for box in boxes) <= 24, "of 38 pixels each"
    for a, b in combinations(boxes, 2):
        beside = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        assert beside or a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"], (a, b)
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(boxes)


def test_its_variables() -> None:
    kinds = {variable["name"]: variable["type"] for variable in DASHBOARD["templating"]["list"]}
    assert kinds == {"datasource": "datasource", "session": "query", "run": "query"}
    assert {json.dumps(one["datasource"]) for one in DASHBOARD["templating"]["list"][1:]} == {
        json.dumps(DASHBOARD["panels"][0]["datasource"])
    }
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD))) - {"__all"}
    assert used == set(kinds)
