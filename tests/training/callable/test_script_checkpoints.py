"""The state that a script saves, and the reports that raygpu has not read yet when it does."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from raygpu.config.sections import ScriptSection
from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from raygpu.training.callable.script import ScriptTraining
from tests.training.callable.conftest import Make


def test_checkpoints_go_on(script: Make, tmp_path: Path) -> None:
    body = (
        "import raygpu\n"
        "done = raygpu.load(0)\n"
        "for e in range(done + 1, 4):\n"
        "    raygpu.checkpoint(e)\n"
        "    raygpu.report(e=e)\n"
    )
    training = script(body)
    while training.run_epoch() is not None:
        pass
    saved = tmp_path / "saved"
    saved.mkdir()
    training.save(saved)
    again = script(body.replace("range(done + 1, 4)", "range(done + 1, 6)"))
    again.load(saved)
    result = again.run_epoch()
    assert result is not None
    assert (result.epoch, result.metrics) == (4, {"e": 4.0})


SEVERAL = """
import json, os, time, raygpu
first = raygpu.load(0) + 1
for epoch in range(first, 6):
    raygpu.checkpoint(epoch - 1)  # nothing of the epoch is complete
    raygpu.checkpoint(epoch)
    {how}
    while not os.path.exists(f"read{{epoch}}"):
        time.sleep(0.02)
"""


@pytest.mark.parametrize("how", ["raygpu.report(real=epoch)", "print(json.dumps({'real': epoch}))"])
def test_several_checkpoints_in_an_epoch_are_one(script: Make, tmp_path: Path, how: str) -> None:
    first = script(SEVERAL.format(how=how), epochs=5)
    for epoch in (1, 2):
        assert first.run_epoch() is not None
        assert first.has_saved(epoch)
        (tmp_path / f"read{epoch}").touch()
    assert first.run_epoch() is not None
    first.save(tmp_path / "kept")
    first.close()
    for epoch in range(1, 6):
        (tmp_path / f"read{epoch}").touch()
    again = script(SEVERAL.format(how=how), epochs=5)
    again.load(tmp_path / "kept")
    results = list(iter(again.run_epoch, None))
    assert [(result.epoch, result.metrics["real"]) for result in results] == [(4, 4.0), (5, 5.0)]


GOES_BACK = """
import os, time, raygpu
for epoch in range(raygpu.load(0) + 1, 8):
    {first}
    if epoch in (3, 6):
        raygpu.load()  # its last state again, as after a bad epoch
    raygpu.checkpoint(epoch)
    raygpu.report(real=epoch)
    while not os.path.exists(f"read{{epoch}}"):
        time.sleep(0.02)
"""


@pytest.mark.parametrize("first", ["pass", "raygpu.checkpoint(0); raygpu.load()"], ids=["once", "twice"])
def test_a_script_that_loads_its_state_while_it_runs_has_the_same_epochs(
    script: Make, tmp_path: Path, first: str
) -> None:
    """In its second start too."""
    training, last = script(GOES_BACK.format(first=first)), 0
    for until in (4, 7):
        for epoch in range(last + 1, until + 1):
            result = training.run_epoch()
            assert result is not None
            assert (result.epoch, result.metrics["real"]) == (epoch, epoch)
            assert training.has_saved(epoch)
            if epoch < until:
                (tmp_path / f"read{epoch}").touch()
        kept, last = tmp_path / f"kept{until}", until
        training.save(kept)
        training = script(GOES_BACK.format(first=first))
        training.load(kept)
        assert training.epoch == until


FAST = """
import json, os, raygpu
for epoch in range(raygpu.load(0) + 1, 10):
    raygpu.checkpoint(epoch)
    {how}
    if epoch == 6:
        open("ahead", "w").close()
        while not os.path.exists("go_on"):
            pass
"""


def read_slowly(training: ScriptTraining, folder: Path, kept: Path) -> None:
    """Read two reports of a script that is at its sixth one by then, and save it."""
    assert training.run_epoch() is not None
    while not (folder / "ahead").exists():
        time.sleep(0.02)
    assert training.run_epoch() is not None
    training.save(kept)
    training.close()


@pytest.mark.parametrize("how", ["raygpu.report(real=epoch)", "print(json.dumps({'real': epoch}))"])
def test_reports_that_were_not_read_are_not_lost(script: Make, tmp_path: Path, how: str) -> None:
    read_slowly(script(FAST.format(how=how), epochs=9), tmp_path, tmp_path / "kept")
    (tmp_path / "go_on").touch()
    second = script(FAST.format(how=how), epochs=9)
    second.load(tmp_path / "kept")
    results = [second.run_epoch()]
    second.save(tmp_path / "again")  # before its process begins
    third = script(FAST.format(how=how), epochs=9)
    third.load(tmp_path / "again")
    results += list(iter(third.run_epoch, None))
    assert [(each.epoch, each.metrics["real"]) for each in results if each] == [(i, i) for i in range(3, 10)]


def test_a_report_that_was_on_its_way_leaves_its_number(script: Make, tmp_path: Path) -> None:
    body = FAST.format(how="if epoch < 6: raygpu.report(real=epoch)")
    read_slowly(script(body, epochs=9), tmp_path, tmp_path / "kept")
    (tmp_path / "go_on").touch()
    again = script(FAST.format(how="raygpu.report(real=epoch)"), epochs=9)
    again.load(tmp_path / "kept")
    results = list(iter(again.run_epoch, None))
    assert [(each.epoch, each.metrics["real"]) for each in results] == [(i, i) for i in (3, 4, 5, 7, 8, 9)]


def test_text_that_is_no_number_is_told_after_a_save(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import time, raygpu\nraygpu.checkpoint(1)\nprint('loss 1', flush=True)\n"
        "time.sleep(0.3)\nprint('loss 1.2.3', flush=True)\nopen('ahead', 'w').close(); time.sleep(60)\n"
    )
    section = ScriptSection(folder="shared", metrics={"loss": "loss (.*)"})
    settings = Settings(None, 1, "float32", tmp_path)
    training = ScriptTraining("python train.py", str(tmp_path), section, Trial("t0000", 7, {}), settings)
    try:
        assert training.run_epoch() is not None
        while not (tmp_path / "ahead").exists():
            time.sleep(0.02)
        training.save(tmp_path / "kept")
        with pytest.raises(ValueError, match=r"1\.2\.3"):
            training.run_epoch()
    finally:
        training.close()


def test_printed_epochs_that_are_read_at_once_have_a_checkpoint_each(script: Make, tmp_path: Path) -> None:
    body = "import raygpu\nlines = ''\nfor epoch in range(1, 5):\n    raygpu.checkpoint(epoch)\n"
    body += "    lines += '{\"real\": %d}\\n' % epoch\nprint(lines, flush=True)\n"
    training = script(body)
    while training.run_epoch() is not None:
        pass
    assert training.has_saved(4)
