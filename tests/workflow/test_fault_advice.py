"""Faults of a first training step come with advice: each message is raised by torch itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from raygpu.workflow.fault_advice import advice, failure_advice

torch = pytest.importorskip("torch")
nn = torch.nn
functional = torch.nn.functional


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (
            lambda: functional.cross_entropy(torch.zeros(2, 3), torch.tensor([0, 3])),
            "labels run from 0 to one less than the number of outputs",
        ),
        (
            lambda: nn.Embedding(4, 2)(torch.tensor([4])),
            "an embedding needs one row more than the largest index in the inputs",
        ),
        (lambda: nn.Linear(9, 3)(torch.zeros(2, 8)), "a linear layer for 9 features is given 8"),
        (
            lambda: nn.Conv2d(3, 4, 2)(torch.zeros(2, 8, 8, 3)),
            "a convolution takes (samples, channels, height, width), here with 3 channels",
        ),
        (
            lambda: functional.binary_cross_entropy_with_logits(torch.zeros(2, 1), torch.zeros(2)),
            "reshape one of both in loss(), as targets.reshape(outputs.shape)",
        ),
        (
            lambda: functional.cross_entropy(torch.zeros(2, 3), torch.zeros(2)),
            "labels of classes are whole numbers: convert them to int64 in data()",
        ),
        (
            lambda: nn.Embedding(4, 2)(torch.zeros(2)),
            "an embedding takes whole numbers: convert the inputs to int64 in data()",
        ),
        (lambda: torch.as_tensor(np.array(["a", "b"])), "convert text to numbers in data()"),
        (
            lambda: functional.cross_entropy(torch.zeros(2, 3), torch.zeros(2, 4, dtype=torch.int64)),
            "cross_entropy takes one label for each sample, or probabilities of as many classes as there are outputs",
        ),
        (
            lambda: torch.empty_like(nn.LazyLinear(3).weight),
            "call a model with lazy layers once in model(), on a sample",
        ),
        (
            lambda: torch.autograd.grad(torch.ones(2), torch.ones(2, requires_grad=True)),
            "an evaluation records no gradient: a model or a metric that takes one computes it under torch.enable_grad",
        ),
        (
            lambda: functional.cross_entropy((torch.zeros(2, 3), 0), torch.tensor([0, 1])),
            "the model returns a tuple: unpack it in loss()",
        ),
    ],
)
def test_a_common_fault_comes_with_advice(fault: Callable[[], Any], told: str) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - torch's own, of several types
        fault()
    assert (advice(f"{caught.type.__name__}: {caught.value}") or "").startswith(told)  # the words depend on the release


def test_of_other_faults_nothing_is_told() -> None:
    assert advice("ValueError: no such layer") is None


def test_what_no_memory_holds_may_be_taken_in_parts() -> None:
    memory = ["ValueError: no", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."]
    assert "micro_batch_size" in (failure_advice(memory, "torch") or "")
    assert failure_advice(memory, "keras") is None, "which takes whole batches"
    assert failure_advice(memory[:1], "torch") is None


def test_failed_trials_come_with_the_advice_on_most_of_them() -> None:
    device = "RuntimeError: Expected all tensors to be on the same device, but got mat1 is on cuda:0"
    failures = ["ValueError: no", "IndexError: Target 3 is out of bounds.", device, device]
    assert (failure_advice(failures, "torch") or "").startswith("2 of 4 failed trials: a tensor is made on the CPU")
    assert failure_advice(failures, "function") is None, "which has no data() and no model"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "RuntimeError: Expected all tensors to be on the same device, but got mat1 is on cuda:0, different from"
            " other tensors on cpu (when checking argument in method wrapper_CUDA_addmm)",
            "give it device=inputs.device",
        ),
        (
            "RuntimeError: indices should be either on cpu or on the same device as the indexed tensor (cpu)",
            "inputs.device",
        ),
        ("TypeError: can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor", ".cpu()"),
        ("RuntimeError: expected scalar type Long but found Float", "int64"),
        ("RuntimeError: \"nll_loss_forward_reduce_cuda_kernel_2d_index\" not implemented for 'Float'", "int64"),
    ],
)
def test_faults_of_a_gpu_or_of_an_older_torch_come_with_advice(text: str, told: str) -> None:
    assert told in (advice(text) or "")
