"""A service's logs are held to a size."""

from __future__ import annotations

from pathlib import Path

import pytest

from raygpu.engines.cluster.service import log_files
from raygpu.engines.cluster.service.log_files import LogFile, prune, superfluous


def file(name: str, size: int, changed: float) -> LogFile:
    return LogFile(Path("/logs") / name, size, changed)


def test_the_oldest_of_ended_workers_go() -> None:
    files = [
        file("worker-ab-01000000-11.out", 10, 1.0),
        file("python-core-worker-ab_12.log", 10, 2.0),
        file("worker-ab-01000000-13.err", 10, 3.0),
        file("gcs_server.out", 10, 0.0),
        file("worker-ab-01000000-14.out", 10, 0.5),
    ]
    assert superfluous(files, 50, living={14}) == []
    assert superfluous(files, 35, living={14}) == [files[0], files[1]]
    assert superfluous(files, 0, living={14}) == files[:3]


def test_a_folder_is_pruned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_files, "MOST_BYTES", 150)
    (tmp_path / "worker-ab-01000000-999999999.out").write_bytes(b"0" * 100)
    (tmp_path / "raylet.out").write_bytes(b"0" * 100)
    prune(tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["raylet.out"]
    prune(tmp_path / "none")
