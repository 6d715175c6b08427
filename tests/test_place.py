"""The command as a person types it: placements by turns, as small as can be, and faults in one line each."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

import raygpu
from raygpu import place

pytestmark = pytest.mark.timeout(600)
SMALL = 'experiment = "tests.models:Mlp"\n[hyperparameters]\nhidden = 8\nlr = 0.1\nbatch_size = 32\n'
SPLIT = SMALL + '[placements]\nends = { "0" = 0, "2" = 1 }\n'


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the user's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    return tmp_path


def command(text: str, *flags: str) -> int:
    Path("mine.toml").write_text(text)
    return place.main(["mine.toml", "--rounds", "2", "--name", "x", *flags])


@pytest.mark.usefixtures("joined_ray")
def test_placements_by_turns(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(SPLIT) == 0
    out = capsys.readouterr().out
    names = ["one_device", "ends", "alternating", "pipeline_gpipe", "pipeline_1f1b"]
    assert f"on 2 logical devices of this machine's CPU; placements: {', '.join(names)}" in out
    assert "round 2 of 2: one_device" in out
    assert "verdict: " in out
    assert "the devices are logical ones of this machine's CPU" in out
    folder = here / "runs" / "x"
    summary = json.loads((folder / "summary.json").read_text())
    assert list(summary["placements"]) == names
    assert summary["verdict"][0] in out
    one, ends, _, *pipelines = summary["placements"].values()
    assert one["loss"] == ends["loss"]
    for pipeline in pipelines:
        assert pipeline["fault"] is None
        assert pipeline["loss"] == pytest.approx(one["loss"], rel=1e-4)
        assert 0 < pipeline["bubble"] < 1
    assert "4 micro-batches; devices wait" in out
    assert "20 % if stages took equally long" in out
    assert len(set(one["loss"])) == 1, "each turn begins with the same parameters"
    assert (one["step"]["num_copies"], ends["step"]["num_copies"]) == (0, 4)
    assert one["memory_gib"][1] == 0 < ends["memory_gib"][1]
    assert (folder / "placements.png").stat().st_size > 10_000
    with (folder / "turns.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["placement"] for row in rows] == [name for name in summary["placements"] for _ in range(2)]
    assert json.loads(gzip.decompress((folder / "ends.trace.json.gz").read_bytes()))["traceEvents"]
    client = MlflowClient("sqlite:///runs/mlflow.db")
    (run,) = client.search_runs([each.experiment_id for each in client.search_experiments()])
    assert run.data.metrics["place/ends/copies_per_step"] == 4
    assert run.data.params["best"] == summary["best"]
    assert {each.path for each in client.list_artifacts(run.info.run_id)} >= {
        "placements.png", "ends.trace.json.gz", "report.html",
    }  # fmt: skip
    assert "Seconds of an epoch" in (folder / "report.html").read_text()
    again = raygpu.open_run(folder)
    assert isinstance(again, raygpu.api.PlaceRun)
    assert (again.best, len(again.to_dataframe())) == (summary["best"], 10)
    assert "image/png;base64" in again._repr_html_()


@pytest.mark.slow
@pytest.mark.usefixtures("joined_ray")
def test_a_placement_beyond_the_memory_of_a_device_fails_and_the_others_go_on(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = 'experiment = "experiments.digits:Mlp"\n[tracking]\nenabled = false\n[hyperparameters]\nhidden = 4000\n'
    parts = '[placements]\nlast = { "2" = 1 }\nfirst = { "0" = 1 }\n'
    assert command(whole + parts, "--memory-gib", "0.0031", "--stages", "none") == 0
    out = capsys.readouterr().out
    summary = json.loads((here / "runs" / "x" / "summary.json").read_text())
    faults = {name: each["fault"] for name, each in summary["placements"].items()}
    assert "out of memory: takes 0.003" in faults["one_device"]
    assert "of 0.0031 on device 0" in faults["one_device"]
    assert faults["last"] is None
    assert "verdict: one device does not hold the training; " in out


def test_a_dry_run_names_the_parts(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(SPLIT, "--devices", "3", "--dry-run") == 0
    out = capsys.readouterr().out
    assert "one_device: all on 0\nends: 0 on 0, 2 on 1\nalternating: 0 on 0, 1 on 1, 2 on 2" in out
    assert not (here / "runs").exists()


OWN_STEP = SMALL.replace("Mlp", "SmoothedMlp")


@pytest.mark.parametrize(
    ("text", "flags", "line"),
    [
        (SPLIT.replace('"2"', '"5"'), [], "placements.ends: the model has no part '5'; it has: 0, 1, 2"),
        (SPLIT.replace("1 }", "2 }"), [], "placements.ends.2: read device 2; there are devices 0 to 1"),
        (SPLIT.replace("ends", "one_device"), [], "one_device is always there; choose another name"),
        (SPLIT.replace('"0" = 0, "2" = 1', ""), [], "ends names no part, which is one_device"),
        (SPLIT.replace("= 1 }", '= "cuda:1" }'), [], "placements.ends.2: read 'cuda:1'; a whole number is wanted"),
        (SMALL, ["--devices", "1"], "devices"),
        (SMALL, ["--stages", "7"], "stages: the model has no submodule '7'; it has: 0, 1, 2"),
        (SMALL, ["--stages", "1,2"], "stages: read 1,2, 3 stages for 2 devices"),
        (OWN_STEP, ["--stages", "1"], "a pipeline does not use tests.models:SmoothedMlp's own training_step"),
        (
            SMALL.replace("lr = 0.1", "lr = 0.1\nema_decay = 0.9"),
            ["--stages", "1"],
            "no average of the parameters, as ema",
        ),
        (SMALL, ["--micro-batches", "0"], "--micro-batches: read '0'"),
        (SMALL, ["--rounds", "1"], "rounds"),
        (SMALL.replace("Mlp", "Nothing"), [], "tests.models has no 'Nothing'"),
        (
            SMALL.replace("tests.models:Mlp", "tests.keras_cases:FewKeras"),
            ["--gpu.precision", "fp16"],
            "gpu.precision: read fp16; placements of a KerasExperiment take float32, tf32 or bf16",
        ),
        ('experiment = "tests.pack_functions:steady"\n', [], "is a function; a placement needs a TorchExperiment"),
        (SMALL + "[space]\nlr = 0.1\n", [], "space: is for a search; a placement takes one set of [hyperparameters]"),
    ],
)
def test_faults_are_a_line(
    text: str, flags: list[str], line: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(text, *flags) == 2
    err = capsys.readouterr().err
    assert line in err
    assert "Traceback" not in err
    assert not (here / "runs" / "x").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("joined_ray")
def test_a_model_that_one_device_does_not_hold_needs_more_and_a_pipeline_tells_how_many(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = 'experiment = "tests.models:Mlp"\n[tracking]\nenabled = false\n[hyperparameters]\nhidden = 8\n'
    assert command(whole, "--memory-gib", "1e-9") == 1
    out = capsys.readouterr().out
    assert "verdict: no placement could be trained" in out
    assert "no number of devices holds it as a pipeline" in out
    summary = json.loads((here / "runs" / "x" / "summary.json").read_text())
    assert (summary["best"], summary["fewest_devices"]) == (None, None)
    run = raygpu.open_run(here / "runs" / "x")
    assert "no placement could be trained" in run._repr_html_()  # type: ignore[union-attr]
