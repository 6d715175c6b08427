"""A command line that is for Slurm, and the job that it makes."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from raygpu import config, pack, submit, sweep, train
from raygpu.errors import BadInput
from raygpu.records.best_trial import write_best
from raygpu.records.run_directory import RunDirectory
from raygpu.search.trial_record import TrialRecord
from raygpu.search.trials import Trial
from raygpu.workflow.promotion import promoted, store_to_be
from raygpu.workflow.slurm_submission import checked_job, split, store_of, table_of
from tests.services.s3 import BUCKET, ENVIRONMENT, s3

FILE = """
experiment = "mine:train"
trials = 4
seed = 5
metric = "score"
direction = "max"
[space]
x = 1
[slurm]
time = "1:00:00"
partition = "gpu"
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.toml").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    for name in ("MLFLOW_TRACKING_URI", "RAY_API_SERVER_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_flags_for_slurm_are_told_from_the_others() -> None:
    line = "mine.toml --trials 4 --slurm.time 2:00 --slurm.requeue --name a --slurm.nodes=2 --no-slurm.requeue -q"
    words = shlex.split(line)
    ours, others = split(words)
    assert ours == ["--slurm.time", "2:00", "--slurm.requeue", "--slurm.nodes=2", "--no-slurm.requeue"]
    assert others == ["mine.toml", "--trials", "4", "--name", "a", "-q"]


def test_flags_come_before_the_table() -> None:
    job = checked_job(sweep.COMMAND, ["mine.toml", "--name", "a", "--trials", "8"], ["--slurm.partition", "cpu"], {})
    assert (job.slurm.partition, job.slurm.time) == ("cpu", "1:00:00")
    assert list(job.words) == ["mine.toml", "--trials", "8"]
    assert (job.name, job.seed, job.folder) == ("a", 5, Path.cwd() / "runs" / "a")


def test_a_run_without_a_name_is_named_by_its_file() -> None:
    assert checked_job(sweep.COMMAND, ["mine.toml"], [], {}).name.startswith("mine-2")


@pytest.mark.parametrize("flags", [["--storage", "shared"], ["--runs-dir", "shared"]])
def test_the_folder_of_a_job_is_that_of_its_run(flags: list[str]) -> None:
    job = checked_job(sweep.COMMAND, ["mine.toml", "--name", "a", *flags], [], {})
    assert job.folder == Path.cwd() / "shared" / "a"
    (Path.cwd() / "shared" / "a").mkdir(parents=True)
    with pytest.raises(BadInput, match="shared/a exists already"):
        checked_job(sweep.COMMAND, ["mine.toml", "--name", "a", *flags], [], {})


def test_a_run_in_object_storage_has_the_folder_of_its_job_below_runs_dir() -> None:
    words = ["mine.toml", "--name", "a", "--storage", "s3://bucket/runs", "--runs-dir", "here"]
    assert checked_job(sweep.COMMAND, words, [], {}).folder == Path.cwd() / "here" / "a"


def test_two_places_for_the_runs_folder_are_refused_before_the_job() -> None:
    words = ["mine.toml", "--storage", "shared", "--runs-dir", "here"]
    with pytest.raises(BadInput, match="give one of the two"):
        checked_job(sweep.COMMAND, words, [], {})


@pytest.mark.parametrize(
    ("written", "flags", "below", "name", "seed"),
    [
        ('runs_dir = "own"', ["--name", "a"], "own", "a", None),
        ('runs_dir = "own"', ["--name", "a", "--runs-dir", "flag"], "flag", "a", None),
        ('storage = "own"', ["--name", "a"], "own", "a", None),
        ('name = "b"', [], "runs", "b", None),
        ('name = "b"', ["--name", "a"], "runs", "a", None),
        ("seed = 7", ["--name", "a"], "runs", "a", 7),
        ("seed = 7", ["--name", "a", "--seed", "8"], "runs", "a", 8),
        ("epochs = 3", ["--name", "a"], "runs", "a", None),
    ],
)
def test_a_training_of_a_sweeps_trial_has_its_files_folder_name_and_seed(
    written: str, flags: list[str], below: str, name: str, seed: int | None
) -> None:
    """Its jobs read the trial's seed, as the sweep may not have ended, or be elsewhere."""
    Path("own.toml").write_text(f'{written}\n[slurm]\ntime = "1:00:00"\n')
    job = checked_job(train.COMMAND, ["own.toml", "--from", "runs/night", *flags], ["--slurm.array", "0-3"], {})
    assert (job.folder, job.name, job.seed) == (Path.cwd() / below / name, name, seed)


@pytest.mark.parametrize(
    ("text", "said"), [("x", "--seed: read 'x'"), ("-1", "--seed: read '-1'"), ("", "--seed: read")]
)
def test_a_seed_of_a_promoted_training_is_checked_before_the_job(text: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        checked_job(train.COMMAND, ["--from", "runs/night", f"--seed={text}"], ["--slurm.array", "0-3"], {})


@pytest.mark.parametrize(
    ("words", "slurm_words", "options", "said"),
    [
        (["mine.toml", "--json"], [], {}, "--json"),
        (["mine.toml"], ["--slurm.nodes", "0"], {}, "--slurm.nodes"),
        (["mine.toml"], [], {"requirements": "r.txt"}, "slurm.wheelhouse"),
        (["mine.toml", "--cluster.address", "auto"], [], {}, "starts a Ray of its own"),
        (["mine.toml", "--name", "a b"], [], {}, "name"),
        (["mine.toml", "--name", "there"], [], {}, "exists already"),
        (["mine.toml", "--name", "th", "--trials", "0"], [], {}, "trials"),
        (["mine.toml"], ["--slurm.nodes", "2"], {}, "slurm.gpus_per_node"),
    ],
)
def test_faults_that_can_be_seen_from_here(
    words: list[str], slurm_words: list[str], options: dict[str, str], said: str
) -> None:
    Path("runs/there").mkdir(parents=True)
    with pytest.raises(BadInput) as caught:
        checked_job(sweep.COMMAND, words, slurm_words, options)
    assert said in caught.value.faults[0]


def test_what_measures_takes_one_node_and_no_array() -> None:
    for flags in (["--slurm.array", "0-1"], ["--slurm.nodes", "2", "--slurm.gpus-per-node", "1"]):
        with pytest.raises(BadInput):
            checked_job(pack.COMMAND, ["mine.toml"], flags, {})


def test_the_store_that_the_job_carries() -> None:
    for flags, wanted in (
        ([], str(Path.cwd() / "runs" / "mlflow.db")),
        (["--tracking.uri", "sqlite:////data/m.db"], "/data/m.db"),
        (["--tracking.uri", "http://mlflow:5000"], ""),
        (["--tracking.enabled", "false"], ""),
    ):
        job = checked_job(sweep.COMMAND, ["mine.toml", *flags], [], {})
        assert store_of(sweep.COMMAND, job) == wanted


def test_the_store_of_a_training_is_that_of_its_sweep_or_its_file() -> None:
    Path("swept.toml").write_text(f'epochs = 1\n{FILE}[tracking]\nuri = "sqlite:///swept/mlflow.db"\n')
    made = RunDirectory.create(Path("runs"), "night")
    swept = config.load(Path("swept.toml"), {}, config.SweepConfig)
    made.write_config(swept, Path.cwd())
    write_best(made, swept, TrialRecord(Trial("t0000", 0, {"x": 1}), "finished"))
    Path("own.toml").write_text('[tracking]\nuri = "sqlite:///own/mlflow.db"\n')
    Path("other.toml").write_text("workers = 1\n")
    run_id = "0123456789abcdef" * 2
    for words, wanted in (
        (["--from", "runs/night"], "swept/mlflow.db"),
        (["other.toml", "--from", "runs/night"], "swept/mlflow.db"),
        (["own.toml", "--from", "runs/night"], "own/mlflow.db"),
        (["own.toml", "--from", "runs/night", "--tracking.uri", "sqlite:///flag.db"], "flag.db"),
        (["--from", "runs/night", "--tracking.enabled", "false"], ""),
        (["--from", run_id], "runs/mlflow.db"),
        (["own.toml", "--from", run_id], "own/mlflow.db"),
        (["own.toml", "--from", "runs/not-yet"], "own/mlflow.db"),
    ):
        job = checked_job(train.COMMAND, words, ["--slurm.time", "1:00:00"], {})
        assert store_of(train.COMMAND, job) == (str(Path.cwd() / wanted) if wanted else "")
        if "runs/night" in words:  # what the training itself takes
            seen = train.COMMAND.flags.parse(words)
            file = Path(seen.file) if seen.file else None
            values = promoted("runs/night", config.TrackingSection, checkpoint=False).values
            settings = config.load(file, seen.overrides, config.TrainConfig, values).tracking.found()
            assert settings == store_to_be("runs/night", seen.overrides, file)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with s3() as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        yield f"s3://{BUCKET}"


def test_the_store_of_a_sweep_in_object_storage_costs_no_download(bucket: str) -> None:
    Path("swept.toml").write_text(f'epochs = 1\n{FILE}[tracking]\nuri = "sqlite:////swept/mlflow.db"\n')
    made = RunDirectory.create(Path("elsewhere"), "night", f"{bucket}/runs")
    made.write_config(config.load(Path("swept.toml"), {}, config.SweepConfig), Path.cwd())
    for name, wanted in (("night", Path("/swept/mlflow.db")), ("not-yet", Path.cwd() / "runs/mlflow.db")):
        job = checked_job(train.COMMAND, ["--from", f"{bucket}/runs/{name}"], ["--slurm.time", "1:00:00"], {})
        assert store_of(train.COMMAND, job) == str(wanted)
    assert not Path("runs").exists()


def test_a_login_node_without_object_storage_submits_a_training(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**ENVIRONMENT, "AWS_ENDPOINT_URL": "http://127.0.0.1:1"}.items():
        monkeypatch.setenv(name, value)
    job = checked_job(train.COMMAND, ["--from", f"s3://{BUCKET}/runs/night"], ["--slurm.time", "1:00:00"], {})
    assert store_of(train.COMMAND, job) == str(Path.cwd() / "runs/mlflow.db")


def test_a_file_with_a_table_is_for_slurm() -> None:
    assert table_of(sweep.COMMAND, ["mine.toml"]) is not None
    Path("plain.toml").write_text(FILE.partition("[slurm]")[0])
    assert table_of(sweep.COMMAND, ["plain.toml"]) is None
    with pytest.raises(BadInput, match="give one of both"):
        submit.submitted("sweep", ["plain.toml", "--slurm.time", "1:00"], {"address": "http://a:1"}, print)


def test_a_dry_run_prints_the_script_and_leaves_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert submit.main(["sweep", "mine.toml", "--name", "a", "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("#!/bin/bash\n")
    assert "#SBATCH --partition=gpu\n" in printed
    assert printed.endswith("  sweep mine.toml --name a\n")
    assert not Path("runs").exists()


def test_a_machine_without_slurm_says_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert submit.main(["sweep", "mine.toml", "--name", "a"]) == 2
    assert "no sbatch on this machine" in capsys.readouterr().err
    assert not Path("runs/a").exists()
