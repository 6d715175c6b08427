"""The batch script: readable, whole, and safe from what stands in names."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from raygpu.config import SlurmSection
from raygpu.engines.slurm.batch_script import BatchJob, command_line, options, script


def job(
    name: str = "one", words: tuple[str, ...] = ("mine.toml",), folder: Path = Path("/p/runs/one"), **slurm: object
) -> BatchJob:
    section = SlurmSection.model_validate(slurm)
    return BatchJob("sweep", name, words, 7, folder, Path("/p"), "/env/bin/python", "", section)


def test_the_options_are_those_of_the_table() -> None:
    found = options(job(partition="gpu", nodes=2, gpus_per_node="h100:4", time="2:00:00", account="def-me", mem="0"))
    assert "--partition=gpu" in found
    assert "--nodes=2" in found
    assert "--gpus-per-node=h100:4" in found
    assert "--account=def-me" in found
    assert "--mem=0" in found
    assert "--signal=B:USR1@120" in found
    assert "--requeue" in found
    assert "--open-mode=append" in found  # a second start keeps the first one's lines
    assert not any(option.startswith("--qos") for option in found)


def test_no_requeue_means_no_restart() -> None:
    found = script(job(requeue=False))
    assert "#SBATCH --no-requeue" in found
    assert "--max-restarts 0 --" in found


def test_the_words_reach_the_command_as_they_were_typed(tmp_path: Path) -> None:
    words = ("my file.toml", "--command", "python t.py --lr {lr} > $HOME; `id`", "--trials", "4")
    printed = subprocess.run(
        ["bash", "-c", f"printf '%s\\n' {command_line(job(words=words))}"], capture_output=True, text=True
    )
    assert printed.stdout.splitlines() == ["sweep", *words, "--name", "one"]


def test_each_job_of_an_array_has_its_own_name_and_seed() -> None:
    line = command_line(job(array="0-3"))
    printed = subprocess.run(
        ["bash", "-c", f"SLURM_ARRAY_TASK_ID=3; printf '%s\\n' {line}"], capture_output=True, text=True
    )
    assert printed.stdout.splitlines() == ["sweep", "mine.toml", "--name", "one-3", "--seed", "10"]
    assert "--output=/p/runs/one-%a/slurm/job.out" in options(job(array="0-3"))


def test_the_jobs_of_an_array_without_a_seed_get_their_index() -> None:
    of_trial = replace(job(array="0-3"), seed=None)
    assert "--seed" not in command_line(of_trial)
    assert "\nexport RAYGPU_SEED_OFFSET=$SLURM_ARRAY_TASK_ID\n" in script(of_trial)
    assert "RAYGPU_SEED_OFFSET" not in script(job(array="0-3")) + script(replace(job(), seed=None))


def test_a_percent_sign_in_a_path_is_no_pattern_of_sbatch() -> None:
    assert "--output=/p/100%%/slurm/job.out" in options(job(folder=Path("/p/100%")))


@pytest.mark.parametrize(
    "slurm", [{}, {"array": "0-1"}, {"wheelhouse": "/w h/", "modules": "python/3.11", "setup": ["true"]}]
)
def test_bash_takes_the_script(slurm: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "job.sh"
    path.write_text(script(job(folder=Path("/p/it's here"), **slurm)))
    assert subprocess.run(["bash", "-n", str(path)], capture_output=True, text=True).stderr == ""


@pytest.mark.slow
def test_an_environment_is_made_from_wheels_alone(tmp_path: Path) -> None:
    """The block of the script runs, with a srun that is none: it makes an environment, and asks no index."""
    wheelhouse = tmp_path / "wheels of mine"
    wheelhouse.mkdir()
    write_wheel(wheelhouse / "tiny-1.0-py3-none-any.whl")
    text = script(job(wheelhouse=str(wheelhouse), packages=["tiny"]))
    block = text[text.index("# A virtual") : text.index("# Starts Ray")]
    path = tmp_path / "block.sh"
    path.write_text(
        'srun() { shift; "$@"; }\nvirtualenv() { shift 2; python3 -m venv "$1"; }\nexport -f virtualenv\n'
        f"export RAYGPU_NODE_DISK='{tmp_path}/disk'\n{block}\n\"$python\" -c 'import tiny; print(tiny.ANSWER)'\n"
    )
    done = subprocess.run(["bash", str(path)], capture_output=True, text=True, timeout=120)
    assert done.stdout == "42\n", done.stderr


def write_wheel(path: Path) -> None:
    """A package of one module, as pip takes it."""
    import zipfile

    with zipfile.ZipFile(path, "w") as file:
        file.writestr("tiny.py", "ANSWER = 42\n")
        file.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        file.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr("tiny-1.0.dist-info/RECORD", "")
