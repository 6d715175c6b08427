"""May this command use that service? A pure decision on two fingerprints."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from raygpu.devices.nvml import Gpu
from raygpu.engines.cluster.ray_environment import SETTINGS
from raygpu.engines.cluster.service import fingerprint
from raygpu.engines.cluster.service.fingerprint import Fingerprint, at_start, may_take_over, of_a_command, refusal

TERMS = Fingerprint(
    versions={"raygpu": "1.0", "Python": "3.11.7", "ray": "2.60.0", "torch": "2.13.0"},
    python="/home/a/.venv/bin/python",
    packages="0123",
    variables={"HOME": "1", "PYTHONPATH": "2"},
    gpus=[["GPU-aaaa", "GPU-bbbb"]],
    cpus=[0, 1, 2, 3, 8],
    limits={"RLIMIT_AS": -1, "nice": 0},
    of_a_command={"MPLBACKEND": "3"},
)


def as_written(fingerprint: Fingerprint) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(fingerprint.as_json()))
    return found


def test_equal_terms_fit() -> None:
    assert refusal(as_written(TERMS), TERMS) is None
    assert may_take_over(as_written(TERMS), TERMS)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"versions": {**TERMS.versions, "torch": "2.14.0"}}, "it has torch 2.13.0, and this command 2.14.0"),
        (
            {"versions": {name: v for name, v in TERMS.versions.items() if name != "torch"}},
            "it has torch 2.13.0, and this command has none",
        ),
        (
            {"versions": {**TERMS.versions, "mlflow": "3.17"}},
            "it has mlflow not at all, and this command 3.17",
        ),
        ({"python": "/usr/bin/python"}, "its Python is /home/a/.venv/bin/python, and this command's is"),
        ({"packages": "4567"}, "packages or raygpu's code have changed"),
        ({"variables": {"HOME": "1"}}, "PYTHONPATH differs from its environment"),
        (
            {"variables": {"HOME": "9", "PYTHONPATH": "2", "OMP_NUM_THREADS": "1"}},
            "HOME, OMP_NUM_THREADS differ from its environment",
        ),
        ({"gpus": [["GPU-aaaa"]]}, "it has 2 GPUs (GPU-aaaa, GPU-bbbb), and this command wants 1 GPU (GPU-aaaa)"),
        ({"gpus": [["GPU-bbbb", "GPU-aaaa"]]}, "it has 2 GPUs"),
        ({"gpus": [[]]}, "and this command wants a simulated GPU"),
        ({"cpus": [0, 1]}, "it runs on CPUs 0-3,8, and this command on 0-1"),
        ({"limits": {"RLIMIT_AS": 2**30, "nice": 0}}, f"RLIMIT_AS is -1 there, and {2**30} here"),
        ({"limits": {"RLIMIT_AS": -1, "nice": 10}}, "nice is 0 there, and 10 here"),
    ],
)
def test_a_difference_is_told(change: dict[str, Any], reason: str) -> None:
    told = refusal(as_written(TERMS), replace(TERMS, **change))
    assert told is not None
    assert reason in told


def test_a_service_of_another_version_is_refused_and_no_fault() -> None:
    assert refusal({}, TERMS) is not None
    assert not may_take_over({}, TERMS)


def test_a_waiting_process_does_not_look_at_gpus_but_at_more_variables() -> None:
    assert may_take_over(as_written(TERMS), replace(TERMS, gpus=[[]]))
    assert not may_take_over(as_written(TERMS), replace(TERMS, of_a_command={}))
    assert refusal(as_written(TERMS), replace(TERMS, of_a_command={})) is None


def test_only_variables_that_count_at_the_start_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    later = {"HF_HOME": "/data", "CUDA_VISIBLE_DEVICES": "0", "RAY_ADDRESS": "here", "PATH": "/bin", **SETTINGS}
    assert at_start(later) == {}
    own = {"RAY_AIR_NEW_OUTPUT": "1", "OMP_NUM_THREADS": "2", "LD_LIBRARY_PATH": "/opt/lib"}
    assert at_start(later | own).keys() == own.keys()
    assert of_a_command({"MLFLOW_TRACKING_URI": "x", "MPLBACKEND": "agg"}).keys() == {"MPLBACKEND"}


def test_secrets_are_not_written() -> None:
    assert "hunter2" not in json.dumps(at_start({"RAY_AUTH_TOKEN": "hunter2"}))


def test_a_relative_path_is_another_one_elsewhere(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    here = at_start({"PYTHONPATH": "src:/opt"})
    monkeypatch.chdir(tmp_path)
    assert at_start({"PYTHONPATH": "src:/opt"}) != here
    assert at_start({"PYTHONPATH": "/opt"}) == at_start({"PYTHONPATH": "/opt"})


def test_two_processes_of_one_environment_fit() -> None:
    """And so does a process whose libraries have set variables since its start."""
    ask = "from raygpu.engines.cluster.service.fingerprint import Fingerprint; import json, sys\n"
    ask += "print(json.dumps(Fingerprint.here([], apart=True).as_json()))"
    told = [
        json.loads(subprocess.run([sys.executable, "-c", before + ask], capture_output=True, check=True).stdout)
        for before in (
            "",
            "import ray, sklearn\nfrom raygpu.engines.cluster import ray_environment as e\ne.prepare()\n",
        )
    ]
    assert refusal(told[0], Fingerprint(**told[1])) is None


def test_a_command_in_a_smaller_control_group_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by `systemd-run --scope -p MemoryMax=8G -p CPUQuota=150% raygpu sweep`."""
    service = as_written(Fingerprint.here([], apart=True))
    for name, limit, shown in (("limit_bytes", 2**33, f"memory.max is .* there, and {2**33} here"),
                               ("cpu_quota", 1.25, "cpu.max is .* there, and 1.25 here")):  # fmt: skip
        with monkeypatch.context() as patch:
            patch.setattr(fingerprint.control_group, name, lambda limit=limit: limit)
            command = Fingerprint.here([], apart=True)
        told = refusal(service, command)
        assert told is not None
        assert re.fullmatch(shown, told)
        assert refusal(as_written(command), command) is None
        assert not may_take_over(service, command)


def test_gpus_are_grouped_as_ray_s_nodes_are() -> None:
    gpus = [Gpu(0, "GPU-0", "A", 8.0), Gpu(1, "GPU-1", "B", 24.0)]
    assert Fingerprint.here(gpus, apart=True).gpus == [["GPU-0"], ["GPU-1"]]
    assert Fingerprint.here(gpus, apart=False).gpus == [["GPU-0", "GPU-1"]]
    assert Fingerprint.here([], apart=True).gpus == [[]]
    assert Fingerprint.here([], apart=True).cpus == sorted(os.sched_getaffinity(0))
