from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from raygpu.config.sections import ScriptSection
from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from raygpu.training.callable.printed_metrics import json_metrics
from raygpu.training.callable.script import ScriptTraining

Make = Callable[..., ScriptTraining]
SHARED = ScriptSection(folder="shared")


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Make]:
    made: list[ScriptTraining] = []

    def make(body: str, epochs: int | None = None, **hp: object) -> ScriptTraining:
        (tmp_path / "train.py").write_text(body)
        settings = Settings(epochs, 1, "float32", tmp_path)
        made.append(ScriptTraining("python train.py", str(tmp_path), SHARED, Trial("t0000", 7, hp), settings))
        return made[-1]

    yield make
    for training in made:
        training.close()


def test_json_lines_are_epochs_and_other_lines_are_not(script: Make, tmp_path: Path) -> None:
    training = script(
        "print('hi'); print('{\"loss\": 1.5}'); print('{broken'); print('{\"loss\": 0.5, \"tag\": \"x\"}')"
    )
    first, second = training.run_epoch(), training.run_epoch()
    assert first is not None
    assert (first.epoch, first.metrics) == (1, {"loss": 1.5})
    assert second is not None
    assert (second.epoch, second.metrics) == (2, {"loss": 0.5})
    assert training.run_epoch() is None
    assert "hi" in (tmp_path / "output.txt").read_text()


def test_what_follows_the_last_report_runs_and_one_more_report_is_too_many(script: Make, tmp_path: Path) -> None:
    body = "print('{\"loss\": 1}'); print('{\"loss\": 2}'); open('model.txt', 'w').write('saved')"
    training = script(body, epochs=2)
    while training.run_epoch() is not None:
        pass
    assert (tmp_path / "model.txt").read_text() == "saved"
    endless = script("import time\nwhile True: print('{\"loss\": 1}'); time.sleep(0.05)", epochs=2)
    results = [endless.run_epoch() for _ in range(3)]
    assert [result and result.epoch for result in results] == [1, 2, None]


def test_what_a_shell_has_started_ends_with_a_killed_worker(tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text("import os, time; open('pid', 'w').write(str(os.getpid())); time.sleep(600)")
    (tmp_path / "run.sh").write_text("python work.py\necho done\n")
    worker = os.fork()
    if not worker:
        trial = Trial("t0000", 7, {})
        ScriptTraining("bash run.sh", str(tmp_path), SHARED, trial, Settings(None, 1, "float32", tmp_path)).run_epoch()
        os._exit(0)
    deadline = time.monotonic() + 60
    while not (tmp_path / "pid").is_file() or not (tmp_path / "pid").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(worker, signal.SIGKILL)
    os.waitpid(worker, 0)
    started = Path("/proc") / (tmp_path / "pid").read_text()
    while _runs(started):
        assert time.monotonic() < deadline
        time.sleep(0.05)


DAEMON = """
import os, subprocess, time
start = "import os, time; open('pid.new', 'w').write(str(os.getpid())); os.rename('pid.new', 'pid'); time.sleep(600)"
subprocess.Popen(["setsid", "-f", "python", "-c", start])
while not os.path.exists("pid"):
    time.sleep(0.02)
print('{"loss": 1}', flush=True)
"""


@pytest.mark.parametrize("end", ["it ends", "it is closed", "its worker is killed"])
def test_a_daemon_in_a_session_of_its_own_ends_with_its_script(end: str, tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text(DAEMON + ("" if end == "it ends" else "time.sleep(600)\n"))
    worker = os.fork()
    if not worker:
        trial = Trial("t0000", 7, {})
        training = ScriptTraining(
            "python work.py", str(tmp_path), SHARED, trial, Settings(None, 1, "float32", tmp_path)
        )
        training.run_epoch()
        if end == "it ends":
            training.run_epoch()
        elif end == "it is closed":
            training.close()
        time.sleep(600)
    deadline = time.monotonic() + 60
    while not (tmp_path / "pid").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    started = Path("/proc") / (tmp_path / "pid").read_text()
    if end == "its worker is killed":
        time.sleep(0.2)
        os.kill(worker, signal.SIGKILL)
    try:
        while _runs(started):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        with suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)
        os.waitpid(worker, 0)


ENDS_CLEANLY = """
import os, signal, sys, time
def end(*_):
    open('ending', 'w').write('cleanly'); os.rename('ending', 'ended'); os._exit(0)
signal.signal(signal.SIGTERM, end)
"""
"""Beginning of a script that hears SIGTERM."""


def _runs(process: Path) -> bool:
    """Neither gone nor a zombie. process: its folder in /proc."""
    try:
        return "Z" not in (process / "status").read_text().split("State:")[1][:4]
    except OSError:
        return False


def test_a_paused_script_ends_with_a_killed_worker(tmp_path: Path) -> None:
    body = "import os, time\nopen('pid', 'w').write(str(os.getpid())); print('{\"loss\": 1}', flush=True)\n"
    (tmp_path / "work.py").write_text(ENDS_CLEANLY + body + "time.sleep(600)\n")
    worker = os.fork()
    if not worker:
        trial = Trial("t0000", 7, {})
        training = ScriptTraining(
            "python work.py", str(tmp_path), SHARED, trial, Settings(None, 1, "float32", tmp_path)
        )
        training.run_epoch()
        training.pause()
        (tmp_path / "paused").touch()
        time.sleep(600)
    deadline = time.monotonic() + 60
    while not (tmp_path / "paused").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    started = Path("/proc") / (tmp_path / "pid").read_text()
    assert "T (stopped)" in (started / "status").read_text()
    os.kill(worker, signal.SIGKILL)
    os.waitpid(worker, 0)
    deadline = time.monotonic() + 60
    while _runs(started):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert (tmp_path / "ended").read_text() == "cleanly", "and not by force"


def test_a_paused_script_forgets_its_reports_and_goes_on(script: Make, tmp_path: Path) -> None:
    reports = "for i in range(10**6):\n    print('{\"i\": %d}' % i, flush=True); time.sleep(0.01)"
    training = script(ENDS_CLEANLY + reports)
    first = training.run_epoch()
    assert first is not None
    time.sleep(0.3)
    training.pause()
    time.sleep(0.3)
    training.resume()
    second = training.run_epoch()
    assert second is not None
    assert second.metrics["i"] > 1
    training.pause()
    training.close()
    assert (tmp_path / "ended").read_text() == "cleanly", "a paused one hears that it is to end"


def test_a_last_line_needs_no_end(script: Make) -> None:
    training = script("print('{\"loss\": 1}', end='')")
    result = training.run_epoch()
    assert result is not None
    assert result.metrics == {"loss": 1.0}


def test_a_script_goes_on_from_its_own_checkpoint(script: Make, tmp_path: Path) -> None:
    body = (
        "import raygpu\n"
        "for epoch in range(raygpu.load(0) + 1, 10):\n"
        "    raygpu.checkpoint(epoch)\n"
        "    raygpu.report(epoch=epoch)\n"
        "    if epoch == 4: break\n"
    )
    first = script(body)
    while first.run_epoch() is not None:
        pass
    kept = tmp_path / "kept"
    first.save(kept)
    second = script(body.replace("epoch == 4", "epoch == 6"))
    second.load(kept)
    results = [second.run_epoch() for _ in range(2)]
    assert [(result.epoch, result.metrics["epoch"]) for result in results if result] == [(5, 5.0), (6, 6.0)]


def test_reports_of_child_processes_arrive_too(script: Make) -> None:
    body = (
        "import subprocess, sys, raygpu\n"
        "raygpu.report(loss=1)\n"
        "subprocess.run([sys.executable, '-c', 'import raygpu; raygpu.report(loss=2)'], check=True)\n"
    )
    training = script(body)
    assert [training.run_epoch().metrics["loss"] for _ in range(2)] == [1.0, 2.0]


def test_a_script_that_fails_says_how_and_shows_its_last_lines(script: Make) -> None:
    with pytest.raises(RuntimeError, match=r"(?s)exit status 1.*ZeroDivisionError"):
        script("1 / 0").run_epoch()
    with pytest.raises(RuntimeError, match="signal SIGKILL"):
        script("import os; os.kill(os.getpid(), 9)").run_epoch()


def test_a_command_that_does_not_exist(tmp_path: Path) -> None:
    training = ScriptTraining(
        "no-such-program", str(tmp_path), SHARED, Trial("t", 0, {}), Settings(None, 1, "float32", tmp_path)
    )
    with pytest.raises(RuntimeError, match="'no-such-program' cannot be started"):
        training.run_epoch()
    training.close()


def test_a_stopped_script_gets_a_signal_that_it_can_catch(script: Make, tmp_path: Path) -> None:
    training = script(ENDS_CLEANLY + "print('{\"loss\": 1}', flush=True)\ntime.sleep(60)\n")
    assert training.run_epoch() is not None
    training.close()
    assert (tmp_path / "ended").read_text() == "cleanly"


def test_what_a_stopped_script_had_started_is_gone(script: Make, tmp_path: Path) -> None:
    body = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import signal, time; '\n"
        "    'signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)'])\n"
        "open('child', 'w').write(str(child.pid)); print('{\"loss\": 1}', flush=True)\n"
        "time.sleep(60)\n"
    )
    training = script(body)
    training.run_epoch()
    training.close()
    child = int((tmp_path / "child").read_text())
    for _ in range(50):
        state = Path(f"/proc/{child}/stat")
        if not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.1)
    os.kill(child, signal.SIGKILL)
    raise AssertionError("the child outlived its script")


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


@pytest.mark.parametrize(
    ("line", "metrics"),
    [
        ('{"a": 1, "b": 2.5}', {"a": 1.0, "b": 2.5}),
        ('{"a": true, "b": "x"}', {}),
        ("[1]", {}),
        ("{", {}),
        ("loss: 1", {}),
    ],
)
def test_json_metrics(line: str, metrics: dict[str, float]) -> None:
    assert json_metrics(line) == metrics


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


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        ("run.sh", "command: 'run.sh' cannot be started: no such program, or not executable"),  # as a shell does
        ("./folder", "command: './folder' cannot be started: no such program, or not executable"),
        ("./run.sh", r"the script ended with exit status 126: ./run.sh\n./run.sh: Exec format error"),
        ("./killed.sh", "the script ended with signal 40: ./killed.sh"),
    ],
)
def test_what_cannot_be_executed_is_told_without_a_traceback(tmp_path: Path, command: str, fault: str) -> None:
    for name, text in (("run.sh", "echo done\n"), ("killed.sh", "#!/bin/sh\nkill -40 $$\n")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "folder").mkdir()
    settings = Settings(None, 1, "float32", tmp_path)
    training = ScriptTraining(command, str(tmp_path), SHARED, Trial("t0000", 7, {}), settings)
    with pytest.raises(RuntimeError, match=fault) as raised:
        training.run_epoch()
    assert "Traceback" not in str(raised.value)
    training.close()
