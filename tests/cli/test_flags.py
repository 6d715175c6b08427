"""The command as a person types it: faults in one line each, and a real process that is interrupted and resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raygpu import sweep, train
from raygpu.config import SweepConfig

GOOD = 'experiment = "tests.cases:ramp"\ntrials = 2\nepochs = 2\nmetric = "score"\n[space]\nx = { uniform = [0, 1] }\n'

MISSPELT = """
experiment = "experiments.digits:Mlp"
trials = 2
epochs = 2
metric = "accuracy"
[space]
hidden = { choice = [8, 16] }
momentun = { uniform = [0, 0.9] }
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the user's own, with a good configuration in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.toml").write_text(GOOD)
    return tmp_path


def faults(capsys: pytest.CaptureFixture[str], *argv: str) -> list[str]:
    """The lines of a command that has to refuse with exit code 2."""
    assert sweep.main(argv) == 2
    _, err = capsys.readouterr()
    assert "Traceback" not in err
    return err.splitlines()


@pytest.mark.parametrize(
    ("text", "flags", "message"),
    [
        (GOOD, ["--trails", "3"], "--trails: unknown flag (did you mean 'trials'?)"),
        (GOOD, ["--trials", "many"], "--trials: read 'many'; a whole number is wanted"),
        (GOOD, ["--trials", "0"], "--trials: read '0'; input should be greater than or equal to 1"),
        (GOOD, ["--trials"], "--trials: no value given; a whole number is wanted"),
        (GOOD, ["--gpu.fraction", "1.5"], '--gpu.fraction: read \'1.5\'; allowed: "auto", a fraction'),
        (GOOD, ["--gpu.fraction", "2"], "gpu.fraction: read 2.0; 2 GPUs per trial, but no node has more than 1"),
        (GOOD, ["--gpu.mode", "fast"], "--gpu.mode: read 'fast'; input should be 'auto'"),
        (GOOD, ["--gpu.width", "0"], "--gpu.width: read '0'; input should be 'auto' or greater than or equal to 1"),
        (GOOD, ["--gpu.devices", "0"], "gpu.devices: read '0', but no NVIDIA GPU here"),
        (GOOD, ["--space.x", "1"], "--space.x: the search space has no flags"),
        (GOOD, ["-n", "3"], "read '-n'; flags begin with two dashes"),
        (GOOD, ["--name", "a/b"], "--name: read 'a/b'"),
        (GOOD, ["--tracking.uri", "ftp://x"], "ftp://x"),
        (GOOD, ["--tracking.uri", "http://127.0.0.1:9"], "no answer"),
        (GOOD, ["--runs-dir", "/proc/runs"], "runs_dir: /proc/runs cannot be written"),
        (GOOD, ["--resume", "runs/none", "--dry-run"], "--dry-run: shows the plan of a new sweep"),
        (GOOD, ["--resume", "runs/none"], "--resume: takes the run's own configuration"),
        ("trails = 3\n" + GOOD, [], "trails: unknown key (did you mean 'trials'?)"),
        (GOOD.replace("trials = 2", "trials = 'x'"), [], "trials: read 'x'; a whole number is wanted"),
        (GOOD.replace("uniform = [0, 1]", "loguniform = [0, 1]"), [], "space.x: loguniform: low 0 is not above 0"),
        (GOOD.replace("uniform", "normal"), [], "space.x: read 'normal'"),
        (GOOD.replace("x = { uniform = [0, 1] }", ""), [], "space: empty"),
        (GOOD.replace("tests.cases:ramp", "tests.cases:rump"), [], "tests.cases has no 'rump'; it has: "),
        (GOOD.replace("tests.cases:ramp", "nowhere.at_all:f"), [], "no module 'nowhere.at_all'"),
        (GOOD.replace("tests.cases:ramp", "ramp"), [], "experiment: read 'ramp'; write"),
        (GOOD.replace("tests.cases:ramp", "broken.py:f"), [], "ZeroDivisionError: division by zero"),
        (GOOD.replace('"tests.cases:ramp"', '"experiments.digits:Mlp"'), [], "experiments.digits:Mlp reads 'hidden'"),
        (GOOD.replace("x = {", "hidden = 8\nx = {").replace("tests.cases:ramp", "experiments.digits:Mlp"), [],
         "metric: read 'score'; the experiment reports: train/loss, validation/accuracy, validation/loss"),
        (GOOD.replace("experiment", "command"), [], "command"),
        ("experiment = 'a'\n= 3", [], "not valid TOML"),
        (GOOD.replace("trials = 2\n", ""), [], "trials: not given; a grid has as many as it has, and"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_exit_code_2(
    here: Path,
    capsys: pytest.CaptureFixture[str],
    no_ray: Any,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    flags: list[str],
    message: str,
) -> None:
    if message != "command":
        monkeypatch.setattr("raygpu.sweep.ray_starting", no_ray)
    (here / "broken.py").write_text("1 / 0\n")
    (here / "sweep.toml").write_text(text)
    if message == "command":  # a command needs no braces, and runs as it is: a dry run has no fault
        assert sweep.main(["sweep.toml", "--dry-run"]) == 0
        return
    (line,) = faults(capsys, "sweep.toml", *flags)
    assert message in line
    assert not (here / "runs").exists()


def test_several_faults_are_told_at_once(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "bad.toml").write_text('experiment = "x:y"\ntrials = -1\nepochs = "x"\ncolour = 1\n[space]\nx = 1\n')
    lines = faults(capsys, "bad.toml")
    assert len(lines) == 3
    assert all("bad.toml" in line for line in lines)


def test_missing_and_unreadable_files(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "nothing.toml: no such file" in faults(capsys, "nothing.toml")[0]
    assert "conf/sweep/digits.toml: no such file" in faults(capsys)[0]
    (here / "folder.toml").mkdir()
    assert "cannot be read" in faults(capsys, "folder.toml")[0]
    assert "is no sweep's folder" in faults(capsys, "--resume", "folder.toml")[0]


def test_a_name_that_exists(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "runs" / "mine").mkdir(parents=True)
    (line,) = faults(capsys, "good.toml", "--name", "mine")
    assert "exists already" in line
    assert "--resume" in line


def test_dry_run_prints_the_plan_and_starts_nothing(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep.main(["good.toml", "--dry-run", "--gpu.fraction", "0.18", "--name=mine"]) == 0
    out = capsys.readouterr().out
    assert "sweep mine: 2 trials of tests.cases:ramp" in out
    assert "5 per GPU, 1/5 each (gpu.fraction 0.18)" in out
    assert "no NVIDIA GPU here" in out
    assert not (here / "runs").exists()


@pytest.mark.parametrize("flag", ["--gpu.no-memory-limit", "--no-gpu.memory-limit", "--gpu.memory-limit=false"])
def test_what_help_shows_turns_off(flag: str) -> None:
    split = sweep.COMMAND.flags.parse(["good.toml", flag])
    assert split.overrides == {"gpu.memory_limit": "false"}


@pytest.mark.parametrize(
    ("words", "file", "overrides"),
    [
        (["--compile", "my.toml"], "my.toml", {"compile": "true"}),
        (["--compile", "no", "my"], "my", {"compile": "no"}),
        (["--tracking.enabled", "my", "--devices_per_worker=2"], "my",
         {"tracking.enabled": "true", "devices_per_worker": "2"}),
        (["--no-tracking.enabled", "my", "--workers", "2"], "my", {"tracking.enabled": "false", "workers": "2"}),
        (["--hyperparameters.lr", "-1e-3", "--hyperparameters.weight-decay=-.5"], None,
         {"hyperparameters.lr": "-1e-3", "hyperparameters.weight_decay": "-.5"}),
    ],
)  # fmt: skip
def test_a_flag_takes_its_own_value_and_the_file_may_follow(
    words: list[str], file: str | None, overrides: dict[str, str]
) -> None:
    found = train.COMMAND.flags.parse(words)
    assert (found.file, found.overrides) == (file, overrides)


def test_all_flags_that_are_wrong_are_told_at_once(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = faults(capsys, "good.toml", "other.toml", "--trails", "3", "--seed", "--resume", "--json", "-n")
    told = ("second file 'other.toml'", "--trails: unknown", "--seed: no value", "--resume: no value", "read '-n'")
    assert len(lines) == len(told)
    assert all(any(text in line for line in lines) for text in told)
    assert "--json: takes no value" in faults(capsys, "good.toml", "--json=3")[0]


def test_an_experiment_whose_framework_is_not_installed(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, no_ray: Any
) -> None:
    monkeypatch.setattr("raygpu.sweep.ray_starting", no_ray)
    monkeypatch.setattr("raygpu.workflow.user_code.importlib.util.find_spec", lambda name: None)
    (here / "torch.toml").write_text(GOOD.replace("tests.cases:ramp", "experiments.digits:Mlp"))
    (line,) = faults(capsys, "torch.toml")
    assert line.endswith("experiments.digits:Mlp needs torch, which is not installed here: pip install torch")


def test_a_name_that_looks_misspelt_is_shown_and_taken(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "misspelt.toml").write_text(MISSPELT)
    assert sweep.main(["misspelt.toml", "--dry-run"]) == 0
    line = "space: a first step does not read momentun: if nothing does, did you mean momentum?"
    assert line in capsys.readouterr().out.splitlines()


def test_help_names_every_field(capsys: pytest.CaptureFixture[str]) -> None:
    from raygpu.config import fields

    assert sweep.main(["--help"]) == 0
    out = capsys.readouterr().out
    for name, _ in fields(SweepConfig):
        assert f"--{name.replace('_', '-')}" in out
    for own in ("--dry-run", "--resume", "--json"):
        assert own in out


def left_behind(marker: str) -> list[str]:
    """Processes whose command line or environment carries the marker."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            try:
                if marker.encode() in (process / "environ").read_bytes():
                    found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue
    return found


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_interrupted_then_resumed(new_store: Callable[[Path], str], tmp_path: Path) -> None:
    """Ctrl-C: exit code 130, nothing left behind; --resume: finished trials stay and the others run."""
    repository = Path(__file__).parents[2]
    config = GOOD.replace("trials = 2", "trials = 6").replace("epochs = 2", "epochs = 8")
    (tmp_path / "sweep.toml").write_text(config + "pause_s = 0.7\n")
    new_store(tmp_path / "runs")
    marker = f"RAYGPU_TEST_MARKER={tmp_path.name}-{os.getpid()}"
    name, _, value = marker.partition("=")
    environment = os.environ | {"PYTHONPATH": str(repository), name: value}
    del environment["RAY_AUTH_MODE"]  # as a user has it

    def command(*argv: str) -> list[str]:
        return [sys.executable, "-m", "raygpu.sweep", *argv]

    process = subprocess.Popen(
        command("sweep.toml", "--name", "mine", "--gpu.fraction", "0.5", "--json"),
        cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    seen = []
    for line in process.stderr:
        seen.append(line)
        if line.startswith(("2/6", "3/6", "4/6")):
            break
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 130, "".join(seen) + err
    summary = json.loads(out)
    assert 1 <= summary["completed"] < 6
    assert "--resume" in err
    deadline = time.monotonic() + 30
    while (rest := left_behind(value)) and time.monotonic() < deadline:
        time.sleep(1)
    assert rest == []

    finished = summary["completed"]
    result = subprocess.run(
        command("--resume", "runs/mine", "--json"), cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    resumed = json.loads(result.stdout)
    assert resumed["completed"] == 6
    assert resumed["tracking"]["run_id"] == summary["tracking"]["run_id"]
    assert finished <= resumed["completed"]
