"""What a local Ray leaves where other users are."""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from raygpu.engines.cluster import ray_files
from raygpu.errors import RaygpuError


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_MODE", "RAY_TMPDIR", *ray_files.GIVEN):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_token_is_for_its_owner(home: Path) -> None:
    ray_files.keep_token_private()
    token = home / ".ray" / "auth_token"
    assert (mode(token), mode(token.parent), len(token.read_text())) == (0o600, 0o700, 64)
    before = token.read_text()
    token.chmod(0o644)  # as Ray makes it
    ray_files.keep_token_private()
    assert (mode(token), token.read_text()) == (0o600, before)


@pytest.mark.parametrize(("name", "value"), [("RAY_AUTH_MODE", "disabled"), ("RAY_AUTH_TOKEN", "given")])
def test_no_token_is_made_where_none_is_needed(
    home: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    ray_files.keep_token_private()
    assert not (home / ".ray").exists()


def test_sessions_lie_in_a_folder_of_one_s_own(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_files, "SESSIONS", f"{home}/ray-{{}}")
    folder = home / f"ray-{os.getuid()}"
    assert ray_files.folders()[0] == str(folder / "ray")
    assert mode(folder) == 0o700
    folder.chmod(0o777)
    with pytest.raises(RaygpuError, match="is open to others; remove it; or choose another folder by RAY_TMPDIR"):
        ray_files.folders()
    shutil.rmtree(folder)
    folder.symlink_to(home)
    with pytest.raises(RaygpuError, match="is open to others"):
        ray_files.folders()
    monkeypatch.setenv("RAY_TMPDIR", "/tmp/mine")
    assert ray_files.folders() == (None, None)


PROGRAM = """
from raygpu.engines.cluster import ray_environment
ray_environment.prepare(local=True)
import os, subprocess, ray
from raygpu.engines.cluster.local_cluster import start_local
cluster = start_local([])
from pathlib import Path
session = Path(ray._private.worker._global_node.get_session_dir_path())
print("session:", session, flush=True)
as_nobody = dict(user=65534, group=65534, extra_groups=[])
looked = subprocess.run(["ls", str(session)], capture_output=True, **as_nobody)
wrote = subprocess.run(["touch", str(session / "logs" / "x")], capture_output=True, **as_nobody)
read = subprocess.run(["cat", str(Path.home() / ".ray" / "auth_token")], capture_output=True, **as_nobody)
print("codes:", looked.returncode != 0, wrote.returncode != 0, read.returncode != 0, flush=True)
cluster.close()
"""


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_another_user_reaches_nothing_of_a_local_ray(home: Path) -> None:
    home.chmod(0o755)
    environment = {**os.environ, "HOME": str(home), "PYTHONPATH": str(Path.cwd())}
    environment.pop("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", None)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=False, timeout=200
    )
    assert done.returncode == 0, done.stderr
    assert f"session: /tmp/raygpu-ray-{os.getuid()}/ray/session_" in done.stdout
    assert "codes: True True True" in done.stdout


def test_a_home_that_takes_no_token_is_named_with_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*ray_files.GIVEN, "RAY_AUTH_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/proc/1")
    with pytest.raises(RaygpuError, match=r"kept in /proc/1/\.ray/auth_token: .*; set HOME to a folder that can be"):
        ray_files.keep_token_private()


def test_a_user_without_a_home_directory_has_no_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr(pwd, "getpwuid", nobody)
    monkeypatch.delenv("HOME")
    monkeypatch.chdir(tmp_path)
    for name in ("RAY_AUTH_MODE", *ray_files.GIVEN):
        monkeypatch.delenv(name, raising=False)
    ray_files.keep_token_private()
    assert ray_files.token_file() is None
    assert list(tmp_path.iterdir()) == []
