"""What Slurm prints, read. The texts are those of Slurm 22.05."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raygpu.engines.slurm.command_output import (
    State,
    hopeless,
    job_number,
    of_accounting,
    of_control,
    of_queue,
    own_words,
    queued_by_hand,
    state_of,
    submitted_job,
)
from raygpu.records.slurm_job import SlurmJob

SHOWN = (
    "JobId=5 JobName=sweep-a b UserId=root(0) Priority=4294901755 Nice=0 Account=(null) QOS=(null) JobState=RUNNING"
    " Reason=None Dependency=(null) Requeue=1 Restarts=2 BatchFlag=1 Reboot=0 ExitCode=0:0 RunTime=00:00:30"
    " PreemptTime=2026-11-25T03:48:39 Partition=cpu AllocNode:Sid=vm:29 NodeList=n[1-2] Command=/tmp/a b/job.sh"
    " WorkDir=/tmp/a b Power="
)
RECORD = SlurmJob("sweep-one", "sweep", "5", "/p/runs/one", 1000.0, script="/p/runs/one/slurm/job.sh", started=1010.0)


def test_the_number_that_sbatch_prints() -> None:
    assert job_number("Submitted batch job 12\n") == "12"
    assert job_number("Submitted batch job 12 on cluster beluga\n") == "12"
    assert job_number("sbatch: error: no") is None


def test_a_refusal_in_slurms_words() -> None:
    printed = (
        "sbatch: error: invalid partition specified: nosuch\n"
        "sbatch: error: Batch job submission failed: Invalid partition name specified\n"
    )
    assert own_words(printed) == (
        "invalid partition specified: nosuch; Batch job submission failed: Invalid partition name specified"
    )


def test_the_queue() -> None:
    assert of_queue("12|RUNNING|None|n1|/a|b/job.sh\n13_1|PENDING|Resources||\n") == {
        "12": State("RUNNING", "", "n1", script="/a|b/job.sh"),
        "13_1": State("PENDING", "Resources"),
    }


def test_a_job_whose_script_was_queued_again_by_hand_is_its_next_start() -> None:
    ended = SlurmJob("sweep-a", "sweep", "12", "/runs/a", 0.0, script="/runs/a/job.sh", exit_code=130, ended=5.0)
    live = of_queue("12|COMPLETING|None|n1|/runs/a/job.sh\n14|PENDING|Priority||/runs/a/job.sh\n15|RUNNING|||/b.sh\n")
    assert queued_by_hand(ended, of_queue("12|COMPLETING|None|n1|/runs/a/job.sh\n15|RUNNING|||/b.sh\n")) == ended
    again = queued_by_hand(ended, live)
    assert (again.slurm_id, again.exit_code) == ("14", None)
    assert submitted_job(again, live["14"]).status == "PENDING"
    assert queued_by_hand(replace(ended, exit_code=None), live).slurm_id == "12"
    third = replace(ended, slurm_id="12_3")
    assert queued_by_hand(third, live) == third
    assert queued_by_hand(third, of_queue("16_3|RUNNING|||/runs/a/job.sh")).slurm_id == "16_3"


def test_the_fields_of_a_job() -> None:
    shown = of_control(SHOWN)
    assert shown["JobName"] == "sweep-a b"
    assert shown["WorkDir"] == "/tmp/a b"
    assert shown["AllocNode:Sid"] == "vm:29"
    assert state_of(shown) == State("RUNNING", "", "n[1-2]", 0)
    assert state_of({}) is None


def test_the_accounting() -> None:
    assert of_accounting("CANCELLED by 0|0:15\nCANCELLED|0:15\n") == State("CANCELLED", exit_code=0)
    assert of_accounting("") is None


@pytest.mark.parametrize(
    ("record", "state", "status", "said"),
    [
        (RECORD, State("RUNNING", "", "n1"), "RUNNING", "runs on n1"),
        (RECORD, State("PENDING", "Resources"), "PENDING", "waits: Resources"),
        (replace(RECORD, restarts=1), State("PENDING", "BeginTime"), "PENDING", "queued again once"),
        (RECORD, State("CANCELLED"), "STOPPED", "was cancelled"),
        (RECORD, State("TIMEOUT", "TimeLimit"), "FAILED", "sbatch /p/runs/one/slurm/job.sh"),
        (RECORD, State("NODE_FAIL"), "FAILED", "NODE_FAIL"),
        (RECORD, None, "FAILED", "Slurm does not know it any more"),
        (replace(RECORD, ended=1.0), None, "STOPPED", "was ended by Slurm"),
        (replace(RECORD, exit_code=0), None, "SUCCEEDED", "has ended"),
        (replace(RECORD, exit_code=3), None, "SUCCEEDED", "has ended"),
        (replace(RECORD, exit_code=130), None, "STOPPED", "was stopped"),
        (replace(RECORD, exit_code=1, message="no memory"), State("FAILED"), "FAILED", "no memory"),
    ],
)
def test_a_job_as_it_is_shown(record: SlurmJob, state: State | None, status: str, said: str) -> None:
    found = submitted_job(record, state)
    assert found.status == status
    assert said in found.message


def test_a_job_that_waits_in_vain() -> None:
    assert len(hopeless([State("PENDING", "PartitionTimeLimit")] * 2)) == 1
    assert hopeless([State("PENDING", "Resources"), State("RUNNING", "PartitionTimeLimit")]) == []
