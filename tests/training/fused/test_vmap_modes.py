"""Modes of torch functions in the forward passes of an array: norms in mixed precision, and elements of equal value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from raygpu import Splits, TorchExperiment
from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from raygpu.training.fused.model_array import TorchArray
from raygpu.training.fused.vmap_modes import MemberNorms, TiedExtremes
from raygpu.training.torch.solo import TorchSolo
from tests.models import few

NORMS: dict[str, Any] = {
    "batch": nn.BatchNorm2d,
    "batch without a scale": lambda channels: nn.BatchNorm2d(channels, affine=False),
    "batch without statistics": lambda channels: nn.BatchNorm2d(channels, track_running_stats=False),
    "instance": lambda channels: nn.InstanceNorm2d(channels, affine=True, track_running_stats=True),
    "instance without statistics": lambda channels: nn.InstanceNorm2d(channels, affine=True),
    "group": lambda channels: nn.GroupNorm(2, channels),
    "layer": lambda channels: nn.LayerNorm([channels, 8, 8]),
    "root mean square": lambda channels: nn.RMSNorm([channels, 8, 8]),
}


class Normed(TorchExperiment):
    def data(self) -> Splits:
        return few()

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        layers = [nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 4, 3, padding=1), NORMS[hp["norm"]](4), nn.ReLU()]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(256, 10))


@pytest.mark.parametrize("function", [functional.batch_norm, functional.instance_norm])
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_norms_of_two_dtypes_compute_in_float32(function: Any, half: torch.dtype) -> None:
    inputs = torch.randn(8, 3, 5).to(half)
    seen: list[torch.dtype] = []

    class Noted(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.extend(args[0].dtype for norm in MemberNorms.NORMS if func is norm)
            return func(*args, **(kwargs or {}))

    def normed(inputs: torch.Tensor, statistics: torch.Tensor) -> torch.Tensor:
        return function(inputs, statistics.clone(), statistics.clone() + 1, statistics + 2, statistics)

    with Noted(), MemberNorms():
        found = normed(inputs, torch.zeros(3))
        same = normed(inputs, torch.zeros(3, dtype=half))
    assert set(seen[: len(seen) // 2]) == {torch.float32}
    assert set(seen[len(seen) // 2 :]) == {half}, "one dtype alone is left as it is"
    assert found.dtype == same.dtype == half
    assert torch.equal(found, normed(inputs.float(), torch.zeros(3)).to(half))


Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
"""Inputs, running mean and variance, scale and shift of a batch norm."""
WIDTH, CHANNELS = 3, 4


def members_of(*shape: int) -> Batch:
    """Return the stacks of all members' batch norms, in float64. shape: of a member's inputs."""
    draw = partial(torch.randn, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    mean, scale, shift = (draw(WIDTH, CHANNELS) for _ in range(3))
    variance = draw(WIDTH, CHANNELS) ** 2 + 0.5
    return draw(WIDTH, *shape), mean, variance, scale.requires_grad_(), shift.requires_grad_()


def normed(of: Sequence[torch.Tensor], training: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the outputs, and the running statistics after them."""
    inputs, mean, variance, scale, shift = of
    mean, variance = mean.clone(), variance.clone()
    return functional.batch_norm(inputs, mean, variance, scale, shift, training, 0.3), mean, variance


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("shape", [(6, CHANNELS), (6, CHANNELS, 5), (6, CHANNELS, 2, 3)], ids=str)
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_the_norm_of_all_members_is_each_member_s(shape: tuple[int, ...], dim: int, training: bool) -> None:
    inputs, *of_channels = members_of(*shape)
    moved = inputs.movedim(0, dim).requires_grad_()
    with MemberNorms(), Operators() as operators:
        found = torch.vmap(lambda *of: normed(of, training), in_dims=(dim, 0, 0, 0, 0))(moved, *of_channels)
    assert not {"mul", "add"} & set(operators.names), "scale and shift are the norm's own"
    found[0].square().sum().backward()
    alone = [[tensor.detach()[i] for tensor in (inputs, *of_channels)] for i in range(WIDTH)]
    for one in alone:
        for place in (0, 3, 4):
            one[place].requires_grad_()
    wanted = [normed(of, training) for of in alone]
    for place, results in enumerate(zip(*wanted, strict=True)):
        torch.testing.assert_close(found[place], torch.stack(results), rtol=1e-12, atol=1e-12)
    torch.stack([outputs.square().sum() for outputs, *_ in wanted]).sum().backward()
    for place, stack in ((0, moved.grad), (3, of_channels[2].grad), (4, of_channels[3].grad)):
        assert stack is not None
        rows = stack.movedim(dim, 0) if place == 0 else stack
        torch.testing.assert_close(rows, torch.stack([of[place].grad for of in alone]), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("shared", range(5), ids=["inputs", "mean", "variance", "scale", "shift"])
def test_a_norm_with_a_tensor_that_is_no_member_s_own_is_left_to_vmap(shared: int) -> None:
    of = members_of(6, CHANNELS, 5)
    in_dims = tuple(None if place == shared else 0 for place in range(5))
    arguments = [stack[0] if place == shared else stack for place, stack in enumerate(of)]

    def evaluated(*one: torch.Tensor) -> torch.Tensor:
        return functional.batch_norm(*one)

    with MemberNorms():
        found = torch.vmap(evaluated, in_dims=in_dims)(*arguments)
    wanted = [
        evaluated(*(each if place == shared else each[i] for place, each in enumerate(arguments))) for i in range(3)
    ]
    torch.testing.assert_close(found, torch.stack(wanted), rtol=1e-12, atol=1e-12)


def test_a_norm_in_a_gradient_of_the_user_s_own_equals_each_member_s() -> None:
    """Its inputs are not what `torch.func.grad` differentiates."""
    inputs, _, _, scale, _ = (stack.detach() for stack in members_of(6, CHANNELS))

    def loss(scale: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        return (functional.batch_norm(inputs, None, None, training=True) * scale).exp().sum()

    gradient = torch.func.grad(loss)
    with MemberNorms():
        found = torch.vmap(gradient)(scale, inputs)
    wanted = torch.stack([gradient(*one) for one in zip(scale, inputs, strict=True)])
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


def test_a_batch_without_a_variance_is_told_with_the_member_s_shape() -> None:
    inputs, *of_channels = members_of(1, CHANNELS)
    with MemberNorms(), pytest.raises(ValueError, match=r"more than 1 value per channel .* torch.Size\(\[1, 4\]\)"):
        torch.vmap(lambda *of: normed(of, True))(inputs, *of_channels)


def test_steps_and_evaluations_of_an_array_compute_one_norm_for_all() -> None:
    trials = [Trial(f"t{i}", i, {"norm": "batch", "lr": 0.02, "batch_size": 16}) for i in range(3)]
    array = TorchArray(Normed(), few(), trials, Settings(2, 1, "float32", Path()), width=3)
    array.run_epoch()
    with Operators() as operators:
        array.run_epoch()
    calls = zip(operators.names, operators.tensors, strict=True)
    norms = [tensors for name, tensors in calls if "batch_norm" in name and "backward" not in name]
    scales = [scale for inputs, scale, *_ in norms if inputs.shape[1] == 3 * 4]
    assert len(scales) > array.steps_per_epoch, "one for each step, and for the evaluation; others audit a member alone"
    assert all((scale != 1).all() for scale in scales), "vmap's own rule has a scale of 1 and multiplies later"


class Operators(TorchDispatchMode):
    """Notes the names of operators, and the tensors that they get."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.tensors: list[list[torch.Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.overloadpacket.__name__)
        self.tensors.append([value for value in args if isinstance(value, torch.Tensor)])
        return func(*args, **(kwargs or {}))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU that torch can use")
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("norm", NORMS)
def test_members_with_norms_equal_trainings_alone_on_a_gpu(norm: str, compiled: bool, precision: Any) -> None:
    experiment, settings = Normed(), Settings(2, 1, precision, Path())
    trials = [Trial(f"t{i}", i, {"norm": norm, "lr": 0.02 * (i + 1), "batch_size": 16}) for i in range(3)]
    array = TorchArray(experiment, few(), trials, settings)
    if compiled:
        array.program.compile(3, array.batch_size)
    array.run_epoch()
    found = array.run_epoch()
    assert found is not None
    for trial in trials:
        solo = TorchSolo(experiment, few(), trial, settings)
        solo.run_epoch()
        alone = solo.run_epoch()
        assert alone is not None
        for name in ("train/loss", "validation/loss"):
            assert found[trial.trial_id].metrics[name] == pytest.approx(alone.metrics[name], rel=0.02)


WHOLE = [torch.max, torch.min, torch.median, torch.nanmedian, torch.Tensor.max, torch.Tensor.nanmedian]
TIED = [
    torch.tensor([[3.0, 1, 3, 1, 2, 2], [5, 5, 5, 5, 5, 5], [0, 1, 2, 3, 4, 5]]),
    torch.tensor([[torch.inf, torch.inf, -torch.inf, -torch.inf, 0, 0], [torch.nan, 1, torch.nan, 1, 2, 3]]),
    torch.ones(2),
]


@pytest.mark.parametrize("function", WHOLE)
@pytest.mark.parametrize("rows", TIED, ids=["finite", "not finite", "numbers"])
def test_tied_elements_share_a_gradient(function: Any, rows: torch.Tensor) -> None:
    alone = [row.clone().requires_grad_() for row in rows]
    wanted = torch.stack([function(row) for row in alone])
    wanted.sum().backward()
    mapped = rows.clone().requires_grad_()
    with TiedExtremes():
        found = torch.vmap(function)(mapped)
    found.sum().backward()
    torch.testing.assert_close(found, wanted, equal_nan=True, rtol=0, atol=0)
    shares = torch.stack([row.grad for row in alone if row.grad is not None])
    assert mapped.grad is not None
    torch.testing.assert_close(mapped.grad[~rows.isnan()], shares[~rows.isnan()])


@pytest.mark.parametrize("function", [torch.max, torch.min, torch.median])
def test_a_value_that_is_no_number_spoils_no_gradient(function: Any) -> None:
    def loss(row: torch.Tensor) -> torch.Tensor:
        return function(row).nan_to_num() + 2 * row[0]

    rows = torch.tensor([[1.0, torch.nan, 2, 2], [3, 3, 0, 0]])
    alone = [row.clone().requires_grad_() for row in rows]
    for row in alone:
        loss(row).backward()
    mapped = rows.clone().requires_grad_()
    with TiedExtremes():
        torch.vmap(loss)(mapped).sum().backward()
    torch.testing.assert_close(mapped.grad, torch.stack([row.grad for row in alone if row.grad is not None]))


def test_other_calls_and_a_map_of_the_models_own_stay_as_they_are() -> None:
    whole_numbers, tied = torch.tensor([[1, 3, 3]]), torch.ones(2, 4, 3)
    gradient = torch.func.grad(lambda x: torch.vmap(torch.max)(x).sum())
    with TiedExtremes() as mode:
        assert tied.max(1).indices.shape == (2, 3)
        assert torch.equal(torch.max(tied, tied), tied)
        assert not mode.has_met_one
        assert torch.vmap(torch.max)(whole_numbers).tolist() == [3]
        assert mode.has_met_one
        found = torch.vmap(gradient)(tied)
    assert torch.equal(found, torch.stack([gradient(each) for each in tied]))


class WorstError(TorchExperiment):
    """Adds the largest error of a batch, cut off at 3; in few batches several errors are larger."""

    def data(self) -> Splits:
        generator = np.random.default_rng(1)
        inputs = generator.normal(size=(320, 6)).astype(np.float32)
        targets = 0.5 * inputs[:, 0]
        targets[-24:] = 9.0 * np.sign(inputs[-24:, 1])
        return Splits(inputs, targets, inputs[:50], targets[:50])

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return nn.Linear(6, 1)

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        error = (outputs[:, 0] - targets).abs()
        return error.mean() + torch.where(error > 3, 3 + (error - error.detach()), error).max()

    def metrics(self, outputs: torch.Tensor, targets: torch.Tensor) -> dict[str, torch.Tensor]:
        return {}


def test_members_with_tied_elements_equal_trainings_alone() -> None:
    trials = [Trial(f"t{i}", i, {"lr": 0.02 * (i + 1), "batch_size": 16}) for i in range(3)]
    settings, splits = Settings(2, 1, "float32", Path()), WorstError().data()
    array = TorchArray(WorstError(), splits, trials, settings)
    array.audits = False
    found = [array.run_epoch() for _ in range(2)][1]
    assert found is not None
    for trial in trials:
        solo = TorchSolo(WorstError(), splits, trial, settings)
        alone = [solo.run_epoch() for _ in range(2)][1]
        assert alone is not None
        assert found[trial.trial_id].metrics == pytest.approx(alone.metrics, rel=1e-4)
