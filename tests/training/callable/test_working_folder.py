"""A script's own working folder: what it finds there, and what stays of it."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from raygpu.config.sections import ScriptSection
from raygpu.reporting import Kept
from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from raygpu.training.callable import working_folder
from raygpu.training.callable.script import ScriptTraining
from raygpu.training.callable.working_folder import WorkingFolder, settle

REPORT = "print('{\"loss\": 1}')\n"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "project" / "mnist"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "train.csv").write_text("rows")
    (tmp_path / "project" / "shared-data").mkdir()
    (tmp_path / "project" / "shared-data" / "labels.csv").write_text("labels")
    return folder


def run(source: Path, body: str, name: str = "t0000", *, folder: str = "own", load: Path | None = None) -> Path:
    """Train a script to its end; return the trial's folder, which lies in the source's runs."""
    (source / "train.py").write_text(body)
    home = source / "runs" / "a" / "trials" / name
    home.mkdir(parents=True, exist_ok=True)
    section = ScriptSection.model_validate({"folder": folder})
    settings = Settings(None, 1, "float32", home)
    training = ScriptTraining("python train.py", str(source), section, Trial(name, 7, {}), settings)
    try:
        if load is not None:
            training.load(load)
        while training.run_epoch() is not None:
            pass
    finally:
        training.close()
    return home


def files(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_what_a_script_writes_stays_with_its_trial_and_the_source_is_as_before(source: Path) -> None:
    (source / "model.pt").write_text("of a run by hand")
    (source / "models").mkdir()
    (source / "models" / "best.pt").write_text("of a run by hand")
    body = (
        "import os, helper\n"
        "assert open('data/train.csv').read() == 'rows'\n"
        "assert open('../shared-data/labels.csv').read() == 'labels'\n"
        "assert open(os.environ['RAYGPU_SOURCE_FOLDER'] + '/data/train.csv').read() == 'rows'\n"
        "assert os.path.basename(os.getcwd()) == 'mnist' and not os.path.exists('runs')\n"
        "for file in ('model.pt', 'models/best.pt', 'models/new.pt'):\n"
        "    open(file, 'w').write(os.environ['RAYGPU_TRIAL_ID'])\n" + REPORT
    )
    (source / "helper.py").write_text("")
    for name in ("t0000", "t0001"):
        home = run(source, body, name)
        assert files(home / "files") == dict.fromkeys(["model.pt", "models/best.pt", "models/new.pt"], name)
        assert sorted(path.name for path in home.iterdir()) == ["files", "output.txt"]
    assert (source / "model.pt").read_text() == "of a run by hand"
    assert not (source / "models" / "new.pt").exists()


def test_a_script_that_writes_nothing_leaves_no_folder(source: Path) -> None:
    assert [path.name for path in run(source, REPORT).iterdir()] == ["output.txt"]


def test_large_files_and_folders_are_links(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(working_folder, "LARGEST_COPY", 3)
    monkeypatch.setattr(working_folder, "MOST_FILES", 2)
    (source / "small").write_text("abc")
    (source / "large").write_text("abcd")
    for number in range(3):
        (source / "data" / str(number)).touch()
    folder = WorkingFolder(source, source.parent)
    path = folder.enter(goes_on=False)
    linked = {entry.name for entry in path.iterdir() if entry.is_symlink()}
    assert linked == {"large", "data"}
    assert (path / "small").read_text() == "abc"
    assert (path / "data" / "train.csv").read_text() == "rows"
    folder.leave()
    assert not folder.path.exists()
    assert (source / "data" / "train.csv").read_text() == "rows", "no link is followed when the folder is deleted"


def test_a_trial_that_goes_on_finds_its_files_and_one_that_begins_anew_does_not(source: Path, tmp_path: Path) -> None:
    body = (
        "import os\n"
        "count = int(open('count').read()) if os.path.exists('count') else 0\n"
        "open('count', 'w').write(str(count + 1))\n" + REPORT
    )
    Kept(1, pickle.dumps(None)).dump(tmp_path / "kept")
    assert files(run(source, body) / "files") == {"count": "1"}
    assert files(run(source, body, load=tmp_path / "kept") / "files") == {"count": "2"}
    home = run(source, body)
    assert files(home / "files") == {"count": "1"}
    assert files(home / "files.before" / "1") == {"count": "2"}, "nothing is lost"
    assert files(run(source, body) / "files.before" / "2") == {"count": "1"}
    assert files(home / "files.before" / "1") == {"count": "2"}


@pytest.mark.parametrize("folder", ["own", "shared"])
def test_without_a_saved_state_a_script_that_keeps_files_begins_anew_and_a_line_says_so(
    source: Path, tmp_path: Path, folder: str
) -> None:
    """Its own epochs are those that are counted, unless it finds files in a folder that is not the trial's."""
    (source / "train.py").write_text(
        "import os\n"
        "first = int(open('last').read()) + 1 if os.path.exists('last') else 1\n"
        "for epoch in range(first, 7):\n"
        "    open('last', 'w').write(str(epoch)); print('{\"real\": %d}' % epoch)\n"
        "    while epoch == 3 and first == 1 and not os.path.exists('never'): pass\n"
    )
    section, settings = ScriptSection.model_validate({"folder": folder}), Settings(None, 1, "float32", tmp_path)
    saved = tmp_path / "saved"
    saved.mkdir()
    pairs, notes = [], []
    for start in range(2):
        training = ScriptTraining("python train.py", str(source), section, Trial("t0000", 7, {}), settings)
        if start:
            training.load(saved)
            notes = list(training.notes)
        results = [training.run_epoch() for _ in range(3)]
        training.save(saved)
        training.close()
        pairs.append([(each.epoch, each.metrics["real"]) for each in results if each])
    assert pairs[0] == [(1, 1), (2, 2), (3, 3)]
    if folder == "own":
        assert pairs[1] == pairs[0]
        assert notes == [
            "begins anew; the files that it wrote are in files.before of its folder: it has saved no state by"
            " raygpu.checkpoint"
        ]
        assert (tmp_path / "files.before" / "1" / "last").read_text() == "3"
    else:
        assert "begins at epoch 1, and may find files of its own" in notes[0]


def test_a_killed_workers_folder_is_gone_on_with_or_settled(source: Path) -> None:
    home = source.parent / "home"
    home.mkdir()
    (source / "train.py").write_text("1")
    first = WorkingFolder(source, home).enter(goes_on=False)
    (first / "model.pt").write_text("half")
    (source / "train.py").write_text("edited meanwhile")
    second = WorkingFolder(source, home).enter(goes_on=True)
    assert (second / "model.pt").read_text() == "half"
    settle(home)
    settle(home)
    assert files(home) == {"files/model.pt": "half"}, "a copy is told by its own time, not by the source's"


def test_only_regular_files_stay(source: Path) -> None:
    body = (
        "import os\n"
        "os.makedirs('empty/deep'); os.mkfifo('pipe'); os.symlink('/etc/passwd', 'passwd'); os.symlink('.', 'loop')\n"
        "os.makedirs('out'); open('out/log', 'w').write('x')\n" + REPORT
    )
    home = run(source, body)
    assert sorted(str(path.relative_to(home)) for path in home.rglob("*")) == [
        "files",
        "files/out",
        "files/out/log",
        "output.txt",
    ]


def test_a_trial_folder_in_the_source_is_no_part_of_it(source: Path) -> None:
    (source / "runs").mkdir()
    for home in (source / "runs", source):
        path = WorkingFolder(source, home).enter(goes_on=False)
        assert (path / "data" / "train.csv").read_text() == "rows"
        assert not list(path.rglob("work"))
        (path / "model.pt").write_text("x")
        settle(home)
        assert files(home / "files") == {"model.pt": "x"}


def test_a_shared_folder_is_the_source_itself(source: Path) -> None:
    home = run(source, "open('model.pt', 'w').write('x')\n" + REPORT, folder="shared")
    assert (source / "model.pt").read_text() == "x"
    assert [path.name for path in home.iterdir()] == ["output.txt"]


def test_a_missing_file_tells_of_the_folder(source: Path) -> None:
    with pytest.raises(
        RuntimeError, match=r'exit status 1; it ran in a folder of its own: \[script\] folder = "shared"'
    ):
        run(source, "open('../../elsewhere.csv')")
    assert not (source / "runs/a/trials/t0000/work").exists()


def test_paths_above_the_source_are_found_on_the_command_line(source: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys\nassert open(sys.argv[1].partition('=')[2]).read()\n" + REPORT)
    (tmp_path / "config").write_text("x")
    home = tmp_path / "home"
    home.mkdir()
    command = "python ../../train.py --config=../../config"
    settings = Settings(None, 1, "float32", home)
    training = ScriptTraining(command, str(source), ScriptSection(), Trial("t", 0, {}), settings)
    assert training.run_epoch() is not None
    training.close()


def test_a_measurement_keeps_nothing(source: Path, tmp_path: Path) -> None:
    (source / "train.py").write_text("open('model.pt', 'w').write('x')\n" + REPORT)
    settings = Settings(None, 1, "float32", tmp_path, keeps_files=False)
    training = ScriptTraining("python train.py", str(source), ScriptSection(), Trial("t", 0, {}), settings)
    training.run_epoch()
    training.close()
    assert sorted(os.listdir(tmp_path)) == ["output.txt", "project"]


def test_the_folder_of_many_small_files_is_noted_twice_not_for_each(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(200):
        (source / "data" / f"{number}.txt").write_text("x")
    notes: list[WorkingFolder] = []
    monkeypatch.setattr(WorkingFolder, "_write_note", lambda folder: notes.append(folder))
    folder = WorkingFolder(source, source.parent)
    folder.enter(goes_on=False)
    assert len(folder._copies) == 201
    assert len(notes) == 2, "before and after: a note of all copies takes the longer the more there are"


def test_a_link_to_itself_is_no_fault(source: Path) -> None:
    (source / "loop").symlink_to("loop")
    (source.parent / "loop").symlink_to("loop")
    (source / "data" / "loop").symlink_to("loop")
    home = run(source, REPORT)
    assert files(home / "files") == {}


def test_a_full_disk_at_the_end_leaves_the_files(source: Path, tmp_path: Path) -> None:
    (source / "train.py").write_text(
        "import time\nopen('model', 'w').close()\n" + REPORT + "time.sleep(0.3); print('saved')\n"
    )
    section, settings = ScriptSection(), Settings(None, 1, "float32", tmp_path)
    training = ScriptTraining("python train.py", str(source), section, Trial("t0000", 7, {}), settings)
    assert training.run_epoch() is not None
    assert training._process is not None
    training._process.wait()
    training._output.close()
    training._output = open("/dev/full", "wb", buffering=0)  # noqa: SIM115 - the training closes it
    training.close()
    assert files(tmp_path / "files") == {"model": ""}
    assert not (tmp_path / "work").exists()
