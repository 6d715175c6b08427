"""Workers that import a training's modules before they are asked for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from raygpu.engines.cluster.preload import RAY_VARIABLE, Preload
from raygpu.engines.cluster.preloaded import IMPORTS, VARIABLE, import_announced

LOCAL_RAY = """
import json, os, sys
from raygpu.engines.cluster import ray_environment
ray_environment.prepare(local=True)
from raygpu.engines.cluster import preload
from raygpu.engines.cluster.local_cluster import start_local
from raygpu.engines.cluster.node_actors import pinned
from raygpu.engines.tune.tune_private_api import in_started_workers
import ray
from ray import tune
from ray.tune.execution import class_cache

class Asked:
    def seen(self):
        return "colorsys" in sys.modules, os.environ.get("SET_BEFORE"), os.getpid()

imports = preload.Preload(workers=1)
cluster = start_local([], "preload", preload=imports)
import psutil
raylet = next(child for child in psutil.Process().children() if child.name() == "raylet")
waiting = [child for child in raylet.children() if child.name().startswith("ray::IDLE")]
imports.announce(["colorsys"], {"SET_BEFORE": "yes"})
with in_started_workers(True):
    trainable = class_cache._ActorClassCache().get(Asked).options(num_cpus=1, num_gpus=0.5).remote()
told = {"trainable": ray.get(trainable.seen.remote()), "waiting": [child.pid for child in waiting]}
from ray._private.services import get_webui_url_from_internal_kv
told["url"] = cluster.dashboard.wait()
told["known"] = get_webui_url_from_internal_kv()
told["nice"] = [c.nice() for c in psutil.Process().children() if "dashboard.py" in " ".join(c.cmdline())]
told["other"] = ray.get(pinned(Asked, runtime_env=preload.WITHOUT).remote().seen.remote())
imports.close()
cluster.close()
print(json.dumps(told))
"""


def test_a_trial_s_worker_has_imported_what_was_announced_and_a_rule_s_has_not(tmp_path: Path) -> None:
    """One process waits, and Tune's first trial takes it; an actor that trains nothing leaves it alone."""
    command = [sys.executable, "-c", LOCAL_RAY]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    imported, variable, pid = told["trainable"]
    assert (imported, variable) == (True, "yes")
    assert len(told["waiting"]) <= 1
    host, _, port = told["url"].removeprefix("http://").partition(":")
    assert host == "127.0.0.1"
    assert int(port) > 0
    assert told["known"] in (told["url"], told["url"].removeprefix("http://"))
    assert told["nice"] == [19]
    assert told["other"][0] is False
    assert told["other"][2] != pid


def test_a_worker_waits_for_the_announcement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SET_BEFORE", "no")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "announced_module.py").write_text("import os\nfound = os.environ['SET_BEFORE']\n")
    preload = Preload(workers=1)
    with preload.variables():
        folder = Path(os.environ[VARIABLE])
        assert os.environ[RAY_VARIABLE] == "raygpu.engines.cluster.preloaded"
    assert VARIABLE not in os.environ
    late = threading.Timer(0.1, preload.announce, (["announced_module"], {"SET_BEFORE": "yes"}))
    late.start()
    assert import_announced(folder) == ["announced_module"]
    assert sys.modules["announced_module"].found == "yes"
    preload.close()
    assert not folder.exists()


def test_a_worker_of_a_command_that_has_ended_imports_nothing(tmp_path: Path) -> None:
    assert import_announced(tmp_path / "gone") == []


def test_nobody_waits_for_ever(tmp_path: Path) -> None:
    assert import_announced(tmp_path, patience_s=0.05) == []


def test_a_module_that_cannot_be_imported_is_left_to_the_training(tmp_path: Path) -> None:
    text = json.dumps({"modules": ["colorsys", "no_such_module_of_ours", "chunk"], "variables": {}})
    (tmp_path / IMPORTS).write_text(text)
    assert import_announced(tmp_path) == ["colorsys"]
