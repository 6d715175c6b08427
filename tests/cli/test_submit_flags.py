"""The command line of raygpu.submit, where no cluster is needed: faults, and what would be sent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raygpu import submit
from raygpu.engines.cluster.jobs import JOB_FILE, _packed
from raygpu.errors import BadInput
from raygpu.records.submitted_job import Submission
from raygpu.workflow.submission import checked_submission

CONFIGURATION = """
experiment = "mine:Mine"
trials = 4
epochs = 1

[space]
lr = 0.1
"""
NOWHERE = "http://127.0.0.1:1"
AT = "--address"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.toml").write_text(CONFIGURATION)
    (tmp_path / "there.toml").write_text('storage = "there"')
    (tmp_path / "mine.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_API_SERVER_ADDRESS", raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["swep", "mine.toml"], "read 'swep' (did you mean 'sweep'?); allowed: sweep, pack, train, balance, place, "),
        (["sweep", "mine.toml"], "--address: not given, and no RAY_API_SERVER_ADDRESS either; the Ray dashboard's is"),
        (["sweep", "none.toml", AT, NOWHERE], "none.toml: no such file; name a configuration"),
        (["sweep", "mine.toml", "--trils", "2", AT, NOWHERE], "--trils: unknown flag (did you mean 'trials'?)"),
        (["sweep", "mine.toml", "--trials", "x", AT, NOWHERE], "--trials: read 'x'; a whole number is wanted"),
        (["sweep", "mine.toml", AT, "127.0.0.1:8265"], "--address: read '127.0.0.1:8265'; wanted: that of"),
        (["sweep", "mine.toml", AT, "http://me:pw@host:1"], "--address: has credentials in it; set RAY_AUTH"),
        (["sweep", "mine.toml", AT], "--address: no value given; That of the Ray dashboard"),
        (["sweep", "mine.toml", "--env", "A=b", AT, NOWHERE], "--env: names of variables by commas are wanted"),
        (["sweep", "mine.toml", "--env", "NOT_SET_HERE", AT, NOWHERE], "--env: NOT_SET_HERE is not set here"),
        (["sweep", "mine.toml", "--requirements", "no.txt", AT, NOWHERE], "--requirements: no.txt cannot be read"),
        (["sweep", "--resume", "runs/old", AT, NOWHERE], "--resume: runs/old is on this machine; name it in the"),
        (["train", "--from", "runs/old", AT, NOWHERE], "or its MLflow run's id, 0123456789abcdef"),
        (["sweep", "mine.toml", "--storage", "here", AT, NOWHERE], "storage: read 'here'; of a job, a folder that"),
        (["sweep", "mine.toml", "--storage", "ftp://x/y", AT, NOWHERE], "--storage: read 'ftp://x/y'; allowed: local"),
        (["train", "--from", "s3://b/r", "--storage", "here", AT, NOWHERE], "storage: read 'here'; of a job, a folder"),
        (["train", "there.toml", "--from", "s3://b/r", AT, NOWHERE], "storage: read 'there'; of a job, a folder"),
        (["train", "--from", "s3://b/r", "--storage", "ftp://x", AT, NOWHERE], "storage: read 'ftp://x'; allowed: lo"),
        (["sweep", "mine.toml", "--json", AT, NOWHERE], "--json: of a job, all output is one"),
        (["train", "--from", "s3://b/r", "--name", "a/b", AT, NOWHERE], "--name: read 'a/b'; letters, digits, '.', '"),
        (["sweep", "mine.toml", "-q", "-v", AT, NOWHERE], "-q, -v: one prints less, the other more; give one of them"),
        (["status", AT, NOWHERE], "status: read nothing; the name of one job is wanted: list shows them"),
        (["logs", "a", "b", AT, NOWHERE], "logs: read a b; the name of one job is wanted"),
        (["list", "a", AT, NOWHERE], "list: read 'a'; it takes nothing"),
    ],
)  # fmt: skip
def test_faults_are_one_line(project: Path, capsys: pytest.CaptureFixture[str], words: list[str], told: str) -> None:
    old = project / "runs" / "old"
    old.mkdir(parents=True)
    (old / "run.json").write_text(json.dumps({"mlflow_run_id": "0123456789abcdef"}))
    assert submit.main(words) == 2
    shown = capsys.readouterr()
    assert told in shown.err
    assert len(shown.err.splitlines()) == 1
    assert "submitted" not in shown.out


def test_nobody_answers(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert submit.main(["sweep", "mine.toml", AT, NOWHERE]) == 1
    shown = capsys.readouterr().err
    assert f"no Ray answers at {NOWHERE}" in shown
    assert len(shown.splitlines()) == 1


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert submit.main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in (*submit.COMMANDS, *submit.VERBS, *submit.OPTIONS, "RAY_AUTH_TOKEN"))
    assert submit.main([]) == 2


def asked(*words: str) -> Submission:
    split = submit.FLAGS.parse(words)
    name, *rest = split.words
    command = submit.COMMANDS[name]
    return checked_submission(command, command.flags.parse(rest), split.options, print)


def test_gpus_may_be_asked_of_the_cluster_that_a_job_runs_in(project: Path) -> None:
    found = asked("sweep", "mine.toml", "--cluster.min-gpus", "4", AT, NOWHERE)
    assert {"--cluster.min-gpus", "4", "--cluster.address", "auto"} <= set(found.argv)


def test_what_goes_along(
    project: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.setenv("MY_KEY", "s3cret")
    (project / "needs.txt").write_text("# for the nodes\nmlflow==3.17.2\n\n")
    found = asked(
        *("sweep", "mine.toml", "--trials", "2", "--name", "one", "--storage", "s3://bucket/runs"),
        *(AT, NOWHERE, "--env", "MY_KEY", "--requirements", "needs.txt"),
    )
    assert (found.command, found.name, found.source_folder) == ("sweep", "one", project)
    assert found.config == Path("mine.toml")
    assert list(found.argv[:6]) == ["--trials", "2", "--name", "one", "--storage", "s3://bucket/runs"]
    assert list(found.argv[-2:]) == ["--cluster.address", "auto"]
    assert found.requirements == ["mlflow==3.17.2"]
    package = _packed(found, tmp_path_factory.mktemp("package"))
    assert (package / "mine.toml").read_text() == CONFIGURATION
    assert json.loads((package / JOB_FILE).read_text())["environment"] == {"MY_KEY": "s3cret"}


def test_a_folder_goes_that_has_the_experiment_beside_its_configuration(project: Path) -> None:
    inner = project / "inner"
    inner.mkdir()
    (inner / "other.py").touch()
    (inner / "other.toml").write_text(CONFIGURATION.replace("mine:Mine", "other:Other"))
    assert asked("sweep", "inner/other.toml", AT, NOWHERE).source_folder == inner


def test_runs_within_the_clusters_reach_are_named_as_they_are(project: Path) -> None:
    found = asked("sweep", "--resume", "s3://bucket/runs/one", AT, NOWHERE)
    assert list(found.argv) == ["--resume", "s3://bucket/runs/one", "--cluster.address", "auto"]
    assert found.config is None
    found = asked("train", "--from", "s3://bucket/runs/one", "--workers", "2", AT, NOWHERE)
    assert list(found.argv[:4]) == ["--from", "s3://bucket/runs/one", "--workers", "2"]
    assert found.config is None


def test_where_the_results_of_a_job_stay_is_told(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A promoted training has a storage of its own: the sweep's is not taken over."""
    stays = "results stay on the cluster's head node, as long as Ray keeps the job's folder: see --storage\n"
    train = ("train", "--from", "s3://bucket/runs/one", AT, NOWHERE)
    for words in (("sweep", "mine.toml", AT, NOWHERE), train):
        asked(*words)
        assert capsys.readouterr().out == stays
        asked(*words, "--storage", "s3://bucket/runs")
        assert capsys.readouterr().out == ""


def test_a_measurement_has_its_own_gpu_and_no_cluster(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = asked("pack", "mine.toml", AT, NOWHERE)
    assert found.num_gpus == 1
    assert "--cluster.address" not in found.argv
    assert "results stay on the node that measures, as long as Ray keeps the job's folder" in capsys.readouterr().out


def test_credentials_in_a_storage_are_refused_here_already(project: Path) -> None:
    with pytest.raises(BadInput, match="AWS_SECRET_ACCESS_KEY in the environment of all nodes") as fault:
        asked("sweep", "mine.toml", "--storage", "s3://key:s3cret@bucket/runs", AT, NOWHERE)
    assert "s3cret" not in str(fault.value)


def test_a_value_that_begins_with_a_dash_arrives() -> None:
    parsed = submit.COMMANDS["train"].flags.parse(["--hyperparameters.note=-abc", "--epochs", "2"])
    assert set(parsed.argv(parsed.overrides)) == {"--hyperparameters.note=-abc", "--epochs", "2"}


def test_how_much_is_printed_arrives(project: Path) -> None:
    assert "--quiet" in asked("sweep", "mine.toml", "-q", AT, NOWHERE).argv
    assert "--verbose" in asked("sweep", "mine.toml", "--verbose", AT, NOWHERE).argv


def test_a_training_of_a_sweeps_trial_has_its_files_name(project: Path) -> None:
    (project / "own.toml").write_text('name = "kept"\nworkers = 2\n')
    words = ["train", "own.toml", "--from", "s3://bucket/runs/one", AT, NOWHERE]
    assert asked(*words).name == "kept"
    assert asked(*words, "--name", "other").name == "other"
