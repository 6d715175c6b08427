"""The private operators of torch that raygpu uses are in this release what raygpu needs."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import torch
from torch.utils.data import DataLoader

from raygpu.training.hyperparameters import OPTIMIZERS, OptimizerSettings
from raygpu.training.torch.torch_private_api import LEFT_BY_FUSED_SGD, copy_all, end_processes, fused_step, times_mapped

ADAM = (
    "(Tensor(a!)[] self, Tensor(b!)[] grads, Tensor(c!)[] exp_avgs, Tensor(d!)[] exp_avg_sqs,"
    " Tensor(e!)[] max_exp_avg_sqs, Tensor[] state_steps, *, float lr, float beta1, float beta2, float weight_decay,"
    " float eps, bool amsgrad, bool maximize, Tensor? grad_scale=None, Tensor? found_inf=None) -> ()"
)
SCHEMAS = {
    "_fused_sgd_": (
        "(Tensor(a!)[] self, Tensor(b!)[] grads, Tensor(c!)[] momentum_buffer_list, *, float weight_decay,"
        " float momentum, float lr, float dampening, bool nesterov, bool maximize, bool is_first_step,"
        " Tensor? grad_scale=None, Tensor? found_inf=None) -> ()"
    ),
    "_fused_adam_": ADAM,
    "_fused_adamw_": ADAM,
    "_foreach_copy_": "(Tensor(a!)[] self, Tensor[] src, bool non_blocking=False) -> ()",
}


def test_the_operators_take_the_same_arguments() -> None:
    for name, arguments in SCHEMAS.items():
        assert str(getattr(torch.ops.aten, name).default._schema) == f"aten::{name}{arguments}"


def test_tensors_of_several_shapes_and_each_dtype_are_updated() -> None:
    sgd = OptimizerSettings(momentum=0.5)
    adam = OptimizerSettings(optimizer="adam", betas=(0.5, 0.5), eps=0.0)
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        ones = [torch.ones(3, 2, dtype=dtype), torch.ones(5, dtype=dtype)]
        p, velocities, means, squares = ([torch.zeros_like(one) for one in ones] for _ in range(4))
        copy_all(p, ones)
        fused_step(sgd, p, ones, [velocities], lr=0.5, numbers=[1, 1])
        assert all(bool((tensor == 0.5).all()) for tensor in p)
        assert all(bool((velocity == 1).all()) for velocity in velocities)
        fused_step(adam, p, ones, [means, squares], lr=0.25, numbers=[1, 1])
        assert all(bool((tensor == 0.25).all()) for tensor in p)
        assert all(bool((moment == 0.5).all()) for moment in (*means, *squares))


def test_the_fused_sgd_still_leaves_parameters_in_half_precision_on_a_cpu() -> None:
    """The reason for SGD's own operations there: once this fails, torch's operator can take their place."""
    for half in LEFT_BY_FUSED_SGD:
        p = [torch.zeros(256, dtype=half)]
        options = {"lr": 0.5, "momentum": 0.0, "weight_decay": 0.0, "dampening": 0.0}
        torch._fused_sgd_(
            p, [torch.ones_like(p[0])], [], nesterov=False, maximize=False, is_first_step=False, **options
        )
        assert not bool(p[0].all())


def test_autograd_hears_of_a_change_in_place() -> None:
    for kind in OPTIMIZERS:
        settings = OptimizerSettings(optimizer=kind, momentum=0.5)
        p, *buffers = (torch.ones(3) for _ in range(1 + settings.num_buffers))
        before = [tensor._version for tensor in (p, *buffers)]
        fused_step(settings, [p], [torch.ones(3)], [[buffer] for buffer in buffers], lr=0.5, numbers=[1])
        assert all(t._version > version for t, version in zip((p, *buffers), before, strict=True))


def test_the_maps_over_a_tensor_are_counted() -> None:
    found = []

    def note(*tensors: torch.Tensor) -> torch.Tensor:
        found.append([times_mapped(tensor) for tensor in tensors])
        return tensors[0]

    one, other = torch.ones(2, 3, 4), torch.ones(2)
    note(one, other)
    torch.vmap(lambda one, other: torch.vmap(lambda row: note(row, other).sum())(one))(one, other)
    torch.vmap(lambda one: torch.vmap(torch.func.grad(lambda row: note(row, other).sum()))(one))(one)
    assert found == [[0, 0], [2, 1], [2, 0]]


def test_the_operators_start_as_fast_as_torch_does() -> None:
    """The reason for the private operators: if torch.optim no longer imports the compiler, it can take their place."""
    lines = [
        "import sys, torch",
        "from raygpu.training.torch.optimizers import BuiltinOptimizer, OptimizerSettings",
        "p = torch.nn.Parameter(torch.ones(3)); p.grad = torch.ones(3)",
        "BuiltinOptimizer(OptimizerSettings(), [p]).step(0.1)",
        "print('torch._dynamo' in sys.modules)",
        "torch.optim.SGD([p], 0.1)",
        "print('torch._dynamo' in sys.modules)",
    ]
    ended = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["False", "True"]


def test_a_failed_process_of_a_loader_is_no_fault_where_the_others_are_ended() -> None:
    """Torch's handler of SIGCHLD raises in the midst of torch's own end of the processes."""
    data = torch.utils.data.TensorDataset(torch.arange(8.0))
    loader = DataLoader(data, num_workers=2, persistent_workers=True)
    next(iter(loader))
    iterator: Any = loader._iterator
    failed = iterator._workers[0]
    join = failed.join

    def raise_once(timeout: float | None = None) -> None:
        """Raise as the handler does."""
        failed.join = join
        raise RuntimeError("DataLoader worker exited unexpectedly with exit code 3")

    failed.join = raise_once
    end_processes(loader)
    assert not any(process.is_alive() for process in iterator._workers)
