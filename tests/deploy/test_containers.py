"""The images, built by whichever container engine is here and run as deploy/ runs them. Minutes, and gigabytes.

RAYGPU_BUILD_FLAGS: of the engine's `build`, where the default does not do: a mirror, say.
"""

from __future__ import annotations

import functools
import os
import shlex
import shutil
import subprocess

import pytest

from tests.services.manifests import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
CONTAINED = ["--rm", "--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--tmpfs", "/tmp:exec"]
WHO = "import os; assert (os.getuid(), os.getgid()) == (1000, 1000); "
READ_ONLY = """
try:
    open("/app/x", "w")
except OSError:
    pass
else:
    raise SystemExit("/app can be written")
"""
NODE = (
    WHO
    + "import ray, raygpu, mlflow; from experiments.digits import Mlp; import subprocess; subprocess.run({compiler})"
)
SERVER = WHO + "import mlflow.server.auth, psycopg2, boto3"


@functools.cache
def engine() -> str:
    for name in ("docker", "podman"):
        if shutil.which(name) and subprocess.run([name, "info"], capture_output=True, check=False).returncode == 0:
            return name
    pytest.skip("no container engine answers: docker or podman")


@functools.cache
def image(target: str) -> str:
    """The image of a stage, built for a machine without a GPU."""
    name = f"raygpu-{target}:test"
    words = [engine(), "build", "--file", "deploy/docker/Dockerfile", "--target", target, "--tag", name]
    words += shlex.split(os.environ.get("RAYGPU_BUILD_FLAGS", "--build-arg DEVICE=cpu"))
    done = subprocess.run([*words, "."], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return name


def run(target: str, *words: str) -> subprocess.CompletedProcess[str]:
    """What a contained container of it does."""
    command = [engine(), "run", *CONTAINED, image(target), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ("mlflow", SERVER),
        ("torch", NODE.format(compiler=["g++", "--version"]) + "; import torch"),
        ("tensorflow", NODE.format(compiler=["true"]) + "; import keras"),
    ],
)
def test_what_it_is_for_is_in_it(target: str, code: str) -> None:
    done = run(target, "python", "-c", code + "\n" + READ_ONLY)
    assert done.returncode == 0, done.stderr


def test_a_sweep_runs_in_it() -> None:
    """As a user without rights, in a folder that cannot be written, with what torch compiles on /tmp."""
    words = ["conf/sweep/digits.toml", "--trials", "2", "--epochs", "1", "--runs-dir", "/tmp/runs"]
    done = run("torch", "python", "-m", "raygpu.sweep", *words)
    assert done.returncode == 0, done.stderr
    assert "2 finished" in done.stdout
