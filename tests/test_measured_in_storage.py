"""Measurements whose results go to object storage, as those of a job do, whose node nobody looks into."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import raygpu
from raygpu import pack, place
from raygpu.planning import plausibility
from raygpu.storage import Storage, StorageError, _file_system
from tests.services.s3 import BUCKET, s3

PACKED = 'epochs = 1\nexperiment = "tests.pack_functions:steady"\n[space]\npause_s = 0.001\n'
PLACED = 'experiment = "tests.models:Mlp"\n[hyperparameters]\nhidden = 8\nlr = 0.1\nbatch_size = 32\n'
RUNS = f"s3://{BUCKET}/runs"
FLAGS = ["mine.toml", "--no-tracking.enabled", "--storage", RUNS]

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("joined_ray")]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of the user's own, and an empty object storage."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    for bound in ("WIDE", "WIDEST", "AGREES", "TOLERANCE", "ONCE"):
        monkeypatch.setattr(plausibility, bound, 1e9)
    with s3() as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        yield tmp_path
    _file_system.cache_clear()


def elsewhere(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    """The run of this name, as another machine reads it."""
    folder.mkdir()
    monkeypatch.chdir(folder)
    return raygpu.open_run(f"{RUNS}/{name}")


def test_a_pack(here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    Path("mine.toml").write_text(PACKED)
    assert pack.main([*FLAGS, "--name", "packed", "--rounds", "1", "--window-s", "0.05", "--most", "1"]) == 0
    assert f"table, plot and data in {RUNS}/packed; " in capsys.readouterr().out
    assert {"curve.png", "report.html"} <= set((Storage.at(RUNS) / "packed").files())
    again = elsewhere("packed", here / "elsewhere", monkeypatch)
    assert isinstance(again, raygpu.api.PackRun)
    assert [point.n for point in again.profile.points] == [1]
    assert len(again.to_dataframe()) == 1


def test_a_comparison_of_placements(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("mine.toml").write_text(PLACED)
    assert place.main([*FLAGS, "--name", "placed", "--rounds", "2", "--stages", "none"]) == 0
    assert f"table, plot and traces (for ui.perfetto.dev) in {RUNS}/placed\n" in capsys.readouterr().out
    assert {"placements.png", "report.html"} <= set((Storage.at(RUNS) / "placed").files())
    again = elsewhere("placed", here / "elsewhere", monkeypatch)
    assert isinstance(again, raygpu.api.PlaceRun)
    assert len(again.to_dataframe()) == 4


def test_a_measurement_whose_storage_fails_at_its_end_is_kept_here(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def upload(self: Storage, path: Path) -> None:
        """Fail as a storage does."""
        raise StorageError(f"storage: {self}: no answer")

    Path("mine.toml").write_text(PACKED)
    monkeypatch.setattr(Storage, "upload", upload)
    tracked = list[object]()
    monkeypatch.setattr(pack, "_track", lambda *given: tracked.append(given))
    assert pack.main([*FLAGS, "--name", "lost", "--rounds", "1", "--window-s", "0.05", "--most", "1"]) == 1
    shown = capsys.readouterr()
    assert f"table, plot and data in {here / 'runs/lost'}; " in shown.out
    assert "no answer; the results are in" in shown.out.replace("\n", " ")
    assert "s3://raygpu/runs/lost lacks results, which are in" in shown.err
    assert len(tracked) == 1
    again = raygpu.open_run("runs/lost")
    assert isinstance(again, raygpu.api.PackRun)
