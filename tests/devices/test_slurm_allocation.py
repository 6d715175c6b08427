"""The part of a node that Slurm gives to a job."""

from __future__ import annotations

import pytest

from raygpu.devices import host
from raygpu.devices.slurm_allocation import Allocation, allocation


def test_a_job_with_memory_of_the_node() -> None:
    found = allocation({"SLURM_JOB_ID": "1", "SLURM_CPUS_ON_NODE": "8", "SLURM_MEM_PER_NODE": "32768"})
    assert found == Allocation(num_cpus=8, num_gpus=None, memory_gib=32.0)
    assert found.object_store_bytes is not None
    assert found.worker_bytes is not None
    assert 0 < found.object_store_bytes + found.worker_bytes <= 32 * 2**30


def test_a_job_with_memory_of_each_cpu_and_gpus() -> None:
    variables = {"SLURM_JOB_ID": "1", "SLURM_CPUS_ON_NODE": "4", "SLURM_MEM_PER_CPU": "1024", "SLURM_GPUS_ON_NODE": "2"}
    assert allocation(variables) == Allocation(num_cpus=4, num_gpus=2, memory_gib=4.0)


def test_a_job_with_memory_of_each_gpu() -> None:
    variables = {"SLURM_JOB_ID": "1", "SLURM_CPUS_ON_NODE": "8", "SLURM_MEM_PER_GPU": "16384"}
    assert allocation(variables | {"SLURM_GPUS_ON_NODE": "2"}) == Allocation(num_cpus=8, num_gpus=2, memory_gib=32.0)
    assert allocation(variables | {"CUDA_VISIBLE_DEVICES": "0,1,3"}).memory_gib == 48.0
    assert allocation(variables).memory_gib is None  # of no number of GPUs
    assert allocation(variables | {"SLURM_GPUS_ON_NODE": "2", "SLURM_MEM_PER_GPU": "0"}).memory_gib is None


def test_gpus_of_a_slurm_that_does_not_tell_their_number() -> None:
    assert allocation({"SLURM_JOB_ID": "1", "CUDA_VISIBLE_DEVICES": "0,3"}).num_gpus == 2


def test_all_memory_of_a_node_is_no_limit() -> None:
    assert allocation({"SLURM_JOB_ID": "1", "SLURM_MEM_PER_NODE": "0"}).memory_gib is None


def test_outside_of_a_job_there_is_no_limit() -> None:
    assert allocation({"SLURM_CPUS_ON_NODE": "8"}) == Allocation()


def test_this_machine_has_no_more_than_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "1")
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "512")
    assert host.num_cpus() == 1
    assert host.available_memory_gib() == 0.5
