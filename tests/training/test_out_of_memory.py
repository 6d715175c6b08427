"""What is a failure of memory, and what only looks like one."""

from __future__ import annotations

import traceback

import numpy as np
import pytest
import torch

from raygpu.training.out_of_memory import is_out_of_memory

CUDA = "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 15.77 GiB of which 0 is free."
CPU = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate "
    "1073741824 bytes. Error code 12 (Cannot allocate memory)"
)


class ResourceExhaustedError(Exception):
    """TensorFlow's name: importing the real one takes seconds."""


class InternalError(Exception):
    """As TensorFlow has it."""


class Boom(Exception):
    """The user's own."""


EXHAUSTED = [
    torch.OutOfMemoryError(CUDA),
    RuntimeError(CPU),
    RuntimeError(
        "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other API call"
    ),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("std::bad_alloc"),
    MemoryError(),
    np._core._exceptions._ArrayMemoryError((2**40,), np.dtype("f8")),
    ResourceExhaustedError("{{function_node __wrapped__MatMul}} OOM when allocating tensor with shape[65536,65536]"),
    InternalError("Failed to call cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY: out of memory"),
    OSError(12, "Cannot allocate memory"),
]
OTHER = [
    ValueError("the replay memory is out of memory cells"),
    ValueError(CUDA),
    KeyError("MemoryError"),
    RuntimeError("out of memory budget: raise replay.memory"),
    RuntimeError("CUDA error: an illegal memory access was encountered"),
    RuntimeError("mat1 and mat2 shapes cannot be multiplied (32x64 and 128x10)"),
    OSError(28, "No space left on device"),
    Boom(),
    SystemExit(1),
]


def text_of(error: BaseException) -> str:
    try:
        raise error
    except BaseException:  # noqa: BLE001
        return traceback.format_exc()


@pytest.mark.parametrize("error", EXHAUSTED, ids=lambda error: repr(error)[:40])
def test_memory(error: BaseException) -> None:
    assert is_out_of_memory(error)
    assert is_out_of_memory(text_of(error))


@pytest.mark.parametrize("error", OTHER, ids=lambda error: repr(error)[:40])
def test_look_alikes(error: BaseException) -> None:
    assert not is_out_of_memory(error)
    assert not is_out_of_memory(text_of(error))


def chained(first: Exception, then: Exception, explicit: bool) -> Exception:
    try:
        try:
            raise first
        except Exception as cause:
            if explicit:
                raise then from cause
            raise then  # noqa: B904
    except Exception as error:  # noqa: BLE001
        return error


@pytest.mark.parametrize("explicit", [True, False])
def test_what_came_of_a_failure_of_memory(explicit: bool) -> None:
    error = chained(torch.OutOfMemoryError(CUDA), Boom("the trial failed"), explicit)
    assert is_out_of_memory(error)
    assert is_out_of_memory("".join(traceback.format_exception(error)))
    error = chained(Boom("bad"), KeyError("x"), explicit)
    assert not is_out_of_memory(error)
    assert not is_out_of_memory("".join(traceback.format_exception(error)))


def script(lines: str) -> str:
    """As a trial's failure shows a script's last lines."""
    return text_of(RuntimeError(f"the script ended with exit status 1: python train.py\n{lines}"))


CAUGHT = f"""Traceback (most recent call last):
  File "train.py", line 8, in <module>
    x = x @ w
        ~~^~~
torch.OutOfMemoryError: {CUDA}"""
LATER = """Traceback (most recent call last):
  File "train.py", line 30, in <module>
    raise Boom("no memory left in me")
Boom: no memory left in me"""


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (CAUGHT, True),
        (CAUGHT.partition("\n")[2], True),  # its first lines are cut off
        (f"{CAUGHT}\nwandb: run finished\nloss: 3.2", True),
        ("terminate called after throwing an instance of 'c10::OutOfMemoryError'\n  what():  " + CUDA, True),
        ("terminate called after throwing an instance of 'c10::Error'\n  what():  CUDA error: unspecified", False),
        (CUDA, True),  # print(error); sys.exit(1)
        (f"{CAUGHT}\nsmaller batch\n{LATER}", False),  # it was mended, and something else failed
        ("epoch 3: memory 3.1 GiB\nout of memory? no", False),
        ("except torch.OutOfMemoryError:", False),
        ("", False),
    ],
)
def test_a_scripts_last_lines(lines: str, expected: bool) -> None:
    assert is_out_of_memory(script(lines)) is expected
    assert is_out_of_memory(RuntimeError(f"the script ended with exit status 1: python train.py\n{lines}")) is expected


def test_a_line_of_code_is_no_failure() -> None:
    text = """Traceback (most recent call last):
  File "train.py", line 8, in <module>
    except MemoryError: raise ValueError("CUDA error: out of memory")
ValueError: CUDA error: out of memory
"""
    assert not is_out_of_memory(text)
