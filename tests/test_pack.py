"""The command as a person types it: real measurements, as small as can be, and faults in one line each."""

from __future__ import annotations

import csv
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

import raygpu
from raygpu import pack
from raygpu.config import PackConfig, fields, load
from raygpu.engines.profiling import concurrency_benchmark
from raygpu.errors import BadInput
from raygpu.planning import plausibility
from raygpu.planning.profiles import Point, Profile
from raygpu.records.profile_store import ProfileStore
from raygpu.workflow import packing
from tests.cli.test_flags import left_behind
from tests.fakes.nvml import FakeNvml

pytestmark = pytest.mark.timeout(600)
QUESTION = "one GPU, several trainings on it, or several GPUs? "
STEADY = 'experiment = "tests.pack_functions:steady"\n'
SMALL = 'experiment = "tests.models:Mlp"\nepochs = 2\n[space]\nhidden = 8\nlr = 0.1\nbatch_size = 32\n'


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the user's own, and a cache folder that is not."""
    monkeypatch.chdir(tmp_path)
    for bound in (
        "WIDE",
        "WIDEST",
        "AGREES",
        "TOLERANCE",
        "ONCE",
    ):  # what a busy machine's spread does is tested elsewhere
        monkeypatch.setattr(plausibility, bound, 1e9)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    return tmp_path


def command(text: str, *flags: str) -> int:
    Path("mine.toml").write_text(text)
    return pack.main(["mine.toml", "--rounds", "1", "--window-s", "0.05", "--name", "x", *flags])


def kept() -> list[Profile]:
    return list(ProfileStore.at(None).all())


def rows() -> list[dict[str, str]]:
    with Path("runs/x/points.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
@pytest.mark.usefixtures("joined_ray")
def test_torch_in_every_way(
    here: Path,
    new_store: Callable[[Path], str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    new_store(here / "runs")
    monkeypatch.setattr(concurrency_benchmark, "HOPELESS", math.inf)  # a compilation takes most of the time
    assert command(SMALL, "--most", "2", "--json", "--ways", "process,fused,threads") == 0
    out, err = capsys.readouterr()
    profile = json.loads(out)
    measured = [(point["way"], point["n"], point["compiled"]) for point in profile["points"]]
    assert measured == [
        ("process", 1, False), ("fused", 1, False), ("process", 2, False), ("fused", 2, False), ("threads", 2, False),
    ]  # fmt: skip
    assert "fused: step not compiled: it is too far behind" in err
    assert all(point["samples_per_s"] > 0 and point["gain"] > 0 for point in profile["points"])
    assert profile["subject"]["hyperparameters"] == {
        "hidden": "8", "batch_size": "32", "micro_batch_size": "absent", "optimizer": "absent",
    }  # fmt: skip
    assert (profile["num_train"], profile["subject"]["device_gib"], profile["synthetic"]) == (200, None, False)
    lines = err.splitlines()
    assert lines[0] == "pack x: tests.models:Mlp; hidden=8 lr=0.1 batch_size=32"
    assert lines[1].startswith("on one simulated GPU, the CPU: ")
    assert lines[-1].startswith(QUESTION)
    assert any(line.split()[:2] == ["process", "2"] for line in lines), "the table's row"
    assert any(line.startswith("fused: a step takes ") for line in lines)

    assert json.loads((here / "runs/x/profile.json").read_text()) == profile
    assert [(row["way"], int(row["n"])) for row in rows()] == [(way, n) for way, n, _ in measured]
    assert (here / "runs/x/curve.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in (here / "runs/x").iterdir()) == [
        "config.toml", "curve.png", "points.csv", "profile.json", "report.html", "run.json",
    ]  # fmt: skip
    assert "Throughput by the number of trainings at once" in (here / "runs/x/report.html").read_text()
    again = raygpu.open_run(here / "runs/x")
    assert isinstance(again, raygpu.api.PackRun)
    assert [p.n for p in again.profile.points] == [n for _, n, _ in measured]
    assert again.verdict[-1] == lines[-1]
    (found,) = kept()
    assert found.as_dict() == json.loads(out) | {"points": found.as_dict()["points"], "notes": found.notes}
    assert ProfileStore.at(None).find(found.subject) == found

    client = MlflowClient(f"sqlite:///{here}/runs/mlflow.db")
    (experiment,) = client.search_experiments(filter_string="name = 'raygpu'")
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.status, run.data.tags["raygpu.kind"]) == ("FINISHED", "pack")
    assert {"pack/best/n", "pack/best/gain", "pack/process/samples_per_s", "pack/threads/gain",
            "pack/fused/time_per_training_s"} <= set(run.data.metrics)  # fmt: skip
    assert [m.step for m in client.get_metric_history(run.info.run_id, "pack/process/gain")] == [1, 2]
    files = {item.path for item in client.list_artifacts(run.info.run_id)}
    assert files == {"curve.png", "points.csv", "profile.json", "report.html"}
    assert run.data.params["hidden"] == "8"


@pytest.mark.slow
@pytest.mark.usefixtures("joined_ray")
def test_keras_on_a_split_device(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = SMALL.replace("tests.models:Mlp", "tests.keras_cases:FewKeras")
    assert command(text, "--most", "2", "--ways", "process,split,fused", "--no-tracking.enabled") == 0
    out = capsys.readouterr().out
    assert [(row["way"], row["n"], row["fault"]) for row in rows()] == [
        ("process", "1", ""), ("process", "2", ""), ("split", "2", ""),
    ]  # fmt: skip
    assert "fused: not measured: only a TorchExperiment can be fused" in out
    assert not (here / "runs/mlflow.db").exists()
    (found,) = kept()
    assert "tensorflow" in found.subject.versions


@pytest.mark.usefixtures("joined_ray")
def test_a_sweeps_file_of_a_function(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (
        f"trials = 8\nmetric = 'loss'\n{STEADY}[search]\nalgorithm = 'grid'\n[stopping]\nalgorithm = 'median'\n"
        "[space]\npause_s = { grid_search = [0.001, 5] }\n"
    )
    assert command(text, "--most", "1", "--no-tracking.enabled") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "pack x: tests.pack_functions:steady; pause_s=0.001"
    assert "one training on this device: no more than one at once was measured" in lines
    (found,) = kept()
    assert (found.num_train, found.unit) == (None, "reports")


@pytest.mark.slow
@pytest.mark.usefixtures("joined_ray")
def test_where_everything_fails(
    here: Path, new_store: Callable[[Path], str], capsys: pytest.CaptureFixture[str]
) -> None:
    new_store(here / "runs")
    text = STEADY.replace("steady", "raises") + "[space]\nafter = 0\n"
    assert command(text, "--most", "2", "--ways", "process") == 1
    out = capsys.readouterr().out
    fault = "process: 1 at once failed: ValueError: this training was meant to fail"
    assert out.splitlines()[-2:] == [f"nothing could be measured: {fault}", f"{QUESTION}not known"]
    assert "Traceback" not in out
    assert [(row["way"], row["n"], row["fault"]) for row in rows()] == [
        ("process", "1", "ValueError: this training was meant to fail")
    ]
    assert kept() == []
    client = MlflowClient(f"sqlite:///{here}/runs/mlflow.db")
    (run,) = client.search_runs([client.get_experiment_by_name("raygpu").experiment_id])
    assert run.info.status == "FAILED"


@pytest.mark.parametrize(
    ("text", "flags", "message"),
    [
        (SMALL, ["--ways", "magic"], "--ways: read 'magic'; 'magic' is no way; allowed: all, or some of process, mps"),
        (SMALL, ["--ways", ""], "--ways: read ''; '' is no way"),
        (SMALL, ["--ways", "mps"], "ways: mps: no NVIDIA GPU here"),
        (STEADY, ["--ways", "fused"], "ways: fused: only a TorchExperiment can be fused"),
        (SMALL, ["--ways", "split"], "ways: split: only a KerasExperiment"),
        (SMALL, ["--profiles", "/proc/profiles"], "profiles: /proc/profiles cannot be written"),
        (SMALL, ["--profiles", "mine.toml"], "profiles: mine.toml cannot be written"),
        (SMALL, ["--runs-dir", "/proc/runs"], "runs_dir: /proc/runs cannot be written"),
        (SMALL, ["--space.lr", "1"], "--space.lr: the search space has no flags"),
        (SMALL, ["--trials", "3"], "--trials: unknown flag"),
        (SMALL, ["--most", "0"], "--most: read '0'"),
        (SMALL, ["--workers", "0"], "--workers: read '0'; input should be 'all' or greater than or equal to 1"),
        (SMALL, ["--advise", "--compare"], "--compare, --advise: one measures nothing"),
        (SMALL, ["--numbers", "4,none"], "--numbers: read '4,none'; allowed: auto, or whole numbers above 0 by commas"),
        (SMALL, ["--numbers", "0"], "--numbers: read '0'"),
        (SMALL, ["--window-s", "0"], "--window-s: read '0'"),
        (SMALL, ["--rounds", "x"], "--rounds: read 'x'"),
        (SMALL, ["--gpu.devices", "0"], "gpu.devices: read '0', but no NVIDIA GPU here"),
        (SMALL, ["--data.synthetic", "--experiment", "tests.pack_functions:steady"], "data.synthetic: read true"),
        (SMALL.replace("hidden = 8\n", ""), [], "space: tests.models:Mlp reads 'hidden', which [space] does not have"),
        (SMALL.replace("Mlp", "Nothing"), [], "tests.models has no 'Nothing'"),
        (SMALL.replace("lr = 0.1", "lr = { normal = [0, 1] }"), [], "space.lr: read 'normal'"),
        ("most = 3\n", [], "give either experiment"),
        ("moist = 3\n" + SMALL, [], "moist: unknown key (did you mean 'most'?)"),
        (SMALL, ["--compare"], "has no profile of this training"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_exit_code_2(
    here: Path, capsys: pytest.CaptureFixture[str], text: str, flags: Sequence[str], message: str
) -> None:
    (here / "mine.toml").write_text(text)
    assert pack.main(["mine.toml", "--json", *flags]) == 2
    out, err = capsys.readouterr()
    lines = [line for line in err.splitlines() if not line.startswith(("pack mine", "on one"))]
    assert len(lines) == 1, err
    assert message in lines[0]
    assert out == ""
    assert not (here / "runs").exists()


def test_a_dry_run_starts_nothing(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(SMALL, "--dry-run", "--ways", "process,fused,mps", "--numbers", "1,3") == 0
    out = capsys.readouterr().out
    assert "would measure 1, 3 trainings at once, by: process, fused\nmps: not measured: no NVIDIA GPU here" in out
    assert not (here / "runs").exists()
    assert command(STEADY, "--dry-run") == 0
    assert "the function itself was not tried" in capsys.readouterr().out


def test_no_such_file(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert pack.main(["nothing.toml"]) == 2
    assert "nothing.toml: no such file" in capsys.readouterr().err


def test_help_names_every_field(capsys: pytest.CaptureFixture[str]) -> None:
    assert pack.main(["--help"]) == 0
    out = capsys.readouterr().out
    for name in [*(name for name, _ in fields(PackConfig)), "compare", "advise", "json"]:
        assert f"--{name.replace('_', '-')}" in out


def test_profiles_of_two_devices_side_by_side(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "mine.toml").write_text(SMALL)
    subject = packing.find_training(load(Path("mine.toml"), {}, PackConfig), "mine", None, list).subject
    store = ProfileStore(here / "profiles")

    def keep(gains: dict[int, float], **values: Any) -> None:
        points = tuple(Point("process", n, samples_per_s=1000 * gain, gain=gain) for n, gain in gains.items())
        store.keep(Profile(replace(subject, **values), 200, points))

    elsewhere = subject.versions | {"raygpu": "0"}
    keep({1: 1.0, 2: 1.5})
    keep({1: 1.0, 2: 2.0, 3: 3.0}, device="NVIDIA A100-SXM4-40GB", device_gib=39.6, versions=elsewhere)
    keep({1: 1.0}, device="edited", versions=elsewhere | {"code": "other"})
    keep({1: 1.0}, source="another:Training")
    store.keep(Profile(replace(subject, device="lost"), 200, (Point("process", 1, fault="x"),)))
    assert pack.main(["mine.toml", "--compare", "--profiles", "profiles", "--name", "x", "--json"]) == 0
    out, err = capsys.readouterr()
    assert {profile["subject"]["device"] for profile in json.loads(out)} == {subject.device, "NVIDIA A100-SXM4-40GB"}
    assert (
        "NVIDIA A100-SXM4-40GB: 3 packed processes: 3.0x (spread not known) one, 54,000 epochs an hour, 13,500 per RGU"
        " (4 of them)" in err
    )
    assert (
        f"{subject.device}: 2 packed processes: 1.5x (spread not known) one, 27,000 epochs an hour, RGU not known"
        in err
    )
    assert "left out, measured with other code of the experiment: edited\n" in err
    assert [path.name for path in (here / "runs/x").iterdir()] == ["devices.png"]


def keep_one(gains: dict[int, float]) -> None:
    """Keep a profile of SMALL on this machine, with these gains of packed processes."""
    Path("mine.toml").write_text(SMALL)
    subject = packing.find_training(load(Path("mine.toml"), {}, PackConfig), "mine", None, list).subject
    points = tuple(
        Point("process", n, 1000 * gain, gain, gain_low=0.99 * gain, gain_high=1.01 * gain) for n, gain in gains.items()
    )
    ProfileStore.at(None).keep(Profile(subject, 200, points, ("fused: no", "threads: no")))


def test_advice_from_a_kept_profile_starts_nothing(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep_one({1: 1.0, 2: 1.9, 3: 1.5})
    assert command(SMALL, "--advise", "--json") == 0
    out, err = capsys.readouterr()
    advice = json.loads(out)
    assert (advice["answer"], advice["point"]["n"], advice["scaling"]["speedups"]) == ("share", 2, [])
    assert "evidence, several trainings on one device: kept profile of" in err
    assert err.splitlines()[-1].startswith(f"{QUESTION}several trainings on one GPU, for one is too small for it: 2")
    files = {path.name for path in (here / "runs/x").iterdir()}
    written = {"config.toml", "run.json", "profile.json", "points.csv", "curve.png", "report.html"}
    assert files == written | {"advice.json", "advice.png"}
    assert json.loads((here / "runs/x/advice.json").read_text()) == advice | {"kept": True}
    assert "kept profile of" in (here / "runs/x/report.html").read_text()


@pytest.mark.usefixtures("joined_ray")
def test_advice_on_one_device_is_an_upper_bound(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep_one({1: 1.0, 2: 1.01, 3: 0.9})
    assert command(SMALL, "--advise", "--json") == 0
    out, err = capsys.readouterr()
    scaling = json.loads(out)["scaling"]
    assert (scaling["evidence"], [each["devices"] for each in scaling["speedups"]]) == ("one_device", [1, 2, 4, 8])
    assert all(each["times"]["middle"] > 0 for each in scaling["speedups"])
    assert "predicted from parts of the batch on one device; the exchange of gradients is not in it" in err


@pytest.mark.slow
@pytest.mark.parametrize("experiment", ["tests.models:Mlp", "tests.keras_cases:FewKeras"])
@pytest.mark.usefixtures("joined_ray")
def test_advice_measures_data_parallel_trainings(
    experiment: str, here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Profile, "tells_of", lambda *_: True)
    text = SMALL.replace("tests.models:Mlp", experiment)
    monkeypatch.setitem(globals(), "SMALL", text)
    keep_one({1: 1.0, 2: 1.01, 3: 0.9})
    assert command(text, "--advise", "--json", "--workers", "2", "--no-tracking.enabled") == 0
    out, err = capsys.readouterr()
    advice = json.loads(out)
    assert (advice["scaling"]["evidence"], advice["scaling"]["notes"]) == ("measured", [])
    assert [each["devices"] for each in advice["scaling"]["speedups"]] == [1, 2]
    assert advice["scaling"]["speedups"][1]["times"]["middle"] > 0
    assert "measured now, short data-parallel trainings with the same batch" in err
    assert not (here / "runs/x/checkpoints").exists()


def test_advice_for_a_function_says_what_is_missing(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.toml").write_text(STEADY)
    found = packing.find_training(load(Path("mine.toml"), {}, PackConfig), "mine", None, list)
    points = tuple(Point("process", n, 10.0, gain, gain_low=gain, gain_high=gain) for n, gain in ((1, 1.0), (2, 0.9)))
    ProfileStore.at(None).keep(Profile(found.subject, None, points))
    assert command(STEADY, "--advise") == 0
    out = capsys.readouterr().out
    assert "not measured: only an experiment's batch can be divided over devices" in out
    assert out.splitlines()[-1].endswith("which it fills; what more GPUs would gain was not measured")


def test_what_is_measured_on_a_gpu(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of those that are chosen, and MPS only where it can be."""
    fake = FakeNvml(["NVIDIA A100-SXM4-40GB", "NVIDIA H100 80GB HBM3"]).install(monkeypatch)
    config = PackConfig(experiment="tests.models:Mlp", space={"hidden": 8}, gpu={"devices": "1"})  # type: ignore[arg-type]
    found = packing.find_training(config, "mine", Path(__file__).parents[1], list)
    assert found.subject.device == "NVIDIA H100 80GB HBM3"
    assert [gpu.uuid for gpu in found.prepared.gpus] == [fake.uuids[1]]
    monkeypatch.setattr(packing.mps, "unavailable", lambda uuid: None if uuid == fake.uuids[1] else "another GPU")
    assert packing._ways(found) == (["process", "mps", "fused", "threads"], [])
    monkeypatch.setattr(packing.mps, "unavailable", lambda uuid: "WSL2 has no CUDA MPS")
    assert packing._ways(found) == (["process", "fused", "threads"], ["mps: not measured: WSL2 has no CUDA MPS"])


def test_a_card_that_takes_one_process_is_not_measured(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeNvml(["NVIDIA A100-SXM4-40GB"]).install(monkeypatch)
    fake.devices[0].compute_mode = 3
    with pytest.raises(BadInput, match=r"nothing can be measured: .* exclusive-process.* `nvidia-smi -c DEFAULT`"):
        pack.run(PackConfig(experiment="tests.models:Mlp", space={"hidden": 8}))  # type: ignore[arg-type]


@pytest.mark.slow
def test_interrupted(tmp_path: Path) -> None:
    """Ctrl-C in the midst of it: exit code 130, nothing kept, nothing left behind, scripts neither."""
    (tmp_path / "train.py").write_text(
        "import time\nwhile True:\n    print('{\"loss\": 1}', flush=True); time.sleep(0.01)\n"
    )
    (tmp_path / "mine.toml").write_text('command = "python train.py"\nrounds = 1000\n[space]\nlr = 1\n')
    value = f"{tmp_path.name}-{os.getpid()}"
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1]), "RAYGPU_TEST_MARKER": value}
    del environment["RAY_AUTH_MODE"]  # as a user has it
    process = subprocess.Popen(
        [sys.executable, "-m", "raygpu.pack", "mine.toml", "--name", "x", "--profiles", "profiles", "--json"],
        cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 200
    while not any("train.py" in line for line in left_behind(value)):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.5)
    time.sleep(2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert out == ""
    assert "Traceback" not in err
    assert err.splitlines()[-1] == "raygpu: interrupted; nothing was kept"
    assert list((tmp_path / "profiles").iterdir()) == []
    assert list((tmp_path / "runs").iterdir()) == []
    deadline = time.monotonic() + 30
    while (rest := left_behind(value)) and time.monotonic() < deadline:
        time.sleep(1)
    assert rest == []
