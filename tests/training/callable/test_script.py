from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from raygpu.config.sections import ScriptSection
from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from raygpu.training.callable.printed_metrics import json_metrics
from raygpu.training.callable.script import ScriptTraining
from tests.training.callable.conftest import Make

SHARED = ScriptSection(folder="shared")


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


SAVES_AT_ITS_END = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
try:
    print('{"loss": 1}', flush=True)
    time.sleep(600)
finally:
    with open("model", "w") as model:
        for part in range(5):
            print("x" * 50_000)
            model.write(str(part))
            time.sleep(0.1)
"""
"""Script that writes a file and more text than a pipe holds when it is stopped."""


@pytest.mark.parametrize("paused", [False, True])
def test_a_stopped_script_gets_one_signal_and_does_to_its_end_what_it_does_then(
    script: Make, tmp_path: Path, paused: bool
) -> None:
    training = script(SAVES_AT_ITS_END)
    assert training.run_epoch() is not None
    if paused:
        training.pause()
    training.close()
    assert (tmp_path / "model").read_text() == "01234"
    assert (tmp_path / "output.txt").read_text().count("x") == 250_000


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


def test_a_long_report_is_taken_whole_and_one_that_is_too_long_is_a_fault(script: Make, tmp_path: Path) -> None:
    body = "import raygpu\nraygpu.report(**{f'metric_of_the_class_with_the_number_{n}': n / 7 for n in range(8000)})\n"
    training = script(body)
    result = training.run_epoch()
    assert result is not None
    assert len(result.metrics) == 8000  # about 480 KiB
    training.close()
    endless = script("import raygpu\nraygpu.report(**{'m' * 17_000_000: 1.0})\n")
    with pytest.raises(ValueError, match="read more than 16,777,216 bytes"):
        endless.run_epoch()
    endless.close()
