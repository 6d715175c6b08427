"""Each optimizer takes torch.optim's own steps."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from raygpu.training.fused.optimizers import ArrayOptimizer
from raygpu.training.hyperparameters import OptimizerSettings
from raygpu.training.torch.optimizers import BuiltinOptimizer

CASES = [
    ({"optimizer": "sgd", "lr": 0.1}, torch.optim.SGD, {}),
    ({"optimizer": "sgd", "lr": 0.1, "momentum": 0.9}, torch.optim.SGD, {"momentum": 0.9}),
    (
        {"optimizer": "sgd", "lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
        torch.optim.SGD,
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    ),
    ({"optimizer": "adam", "lr": 0.01}, torch.optim.Adam, {}),
    (
        {"optimizer": "adam", "lr": 0.01, "betas": (0.8, 0.9), "eps": 1e-4, "weight_decay": 0.1},
        torch.optim.Adam,
        {"betas": (0.8, 0.9), "eps": 1e-4, "weight_decay": 0.1},
    ),
    ({"optimizer": "adamw", "lr": 0.01}, torch.optim.AdamW, {}),
    ({"optimizer": "adamw", "lr": 0.01, "weight_decay": 0.2}, torch.optim.AdamW, {"weight_decay": 0.2}),
]


@pytest.mark.parametrize(("hp", "reference", "options"), CASES)
def test_steps_equal_torch_optim(hp: dict, reference: type, options: dict) -> None:
    torch.manual_seed(0)
    ours = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1)).double()
    theirs = copy.deepcopy(ours)
    own = BuiltinOptimizer(OptimizerSettings.of(hp), ours.parameters())
    other = reference(theirs.parameters(), lr=hp["lr"], **options)
    for step in range(12):
        x = torch.randn(16, 5, dtype=torch.float64)
        other.zero_grad()
        for model in (ours, theirs):
            (model(x) ** 2).mean().backward()
        other.step()
        own.step(hp["lr"])
        if step == 5:  # go on from a saved state
            state = copy.deepcopy(own.state_dict())
            own = BuiltinOptimizer(OptimizerSettings.of(hp), ours.parameters())
            own.load_state_dict(state)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("hp", "reference", "options"), CASES)
def test_a_parameter_without_a_gradient_in_some_steps_has_those_of_its_own(
    hp: dict, reference: type, options: dict
) -> None:
    """Adam corrects the bias of a parameter's averages by the number of its own steps."""
    torch.manual_seed(0)
    ours = nn.ModuleList(nn.Linear(5, 1) for _ in range(3)).double()
    theirs = copy.deepcopy(ours)
    own = BuiltinOptimizer(OptimizerSettings.of(hp), ours.parameters())
    other = reference(theirs.parameters(), lr=hp["lr"], **options)
    for step in range(9):
        x = torch.randn(16, 5, dtype=torch.float64)
        other.zero_grad()
        for model in (ours, theirs):
            ((model[0](x) + model[1 + step % 2 * (step < 6)](x)) ** 2).mean().backward()
        other.step()
        own.step(hp["lr"])
        if step == 4:  # go on from a saved state
            state = copy.deepcopy(own.state_dict())
            own = BuiltinOptimizer(OptimizerSettings.of(hp), ours.parameters())
            own.load_state_dict(state)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("hp", "reference", "options"), CASES)
def test_parameters_in_half_precision(hp: dict, reference: type, options: dict, half: torch.dtype) -> None:
    """SGD takes torch.optim's steps to the bit; Adam, which computes in float32, is nearer to those in float64."""
    torch.manual_seed(0)
    start, small = torch.randn(3, 100).to(half), torch.randn(5).to(half)
    dtypes = {"ours": half, "theirs": half, "float64": torch.float64}
    p = {name: [start.to(dtype, copy=True), small.to(dtype, copy=True)] for name, dtype in dtypes.items()}
    own = BuiltinOptimizer(OptimizerSettings.of(hp), [tensor.requires_grad_() for tensor in p["ours"]])
    others = [reference([tensor.requires_grad_() for tensor in p[n]], lr=hp["lr"], **options) for n in [*p][1:]]
    for _ in range(6):
        for same in zip(*p.values(), strict=True):
            gradient = torch.randn(same[0].shape).to(half)
            for tensor in same:
                tensor.grad = gradient.to(tensor.dtype)
        own.step(hp["lr"])
        for other in others:
            other.step()
    for ours, theirs, wanted in zip(*p.values(), strict=True):
        if hp["optimizer"] == "sgd":
            assert torch.equal(ours, theirs)
        error, their_error = ((each.double() - wanted).norm() for each in (ours, theirs))
        assert error < 0.05 * wanted.norm()
        assert error <= 1.1 * their_error or not their_error.isfinite()


def test_parameters_without_a_gradient_stay() -> None:
    frozen, unused = nn.Linear(2, 2), nn.Linear(2, 2)
    frozen.requires_grad_(False)
    optimizer = BuiltinOptimizer(OptimizerSettings.of({"momentum": 0.9}), [*frozen.parameters(), *unused.parameters()])
    before = [p.clone() for p in unused.parameters()]
    optimizer.step(0.1)
    assert all(torch.equal(a, b) for a, b in zip(before, unused.parameters(), strict=True))


ON_GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU that torch can use"),
]
DEVICES = ["cpu", pytest.param("cuda", marks=ON_GPU)]


def strange_parameters(device: str) -> list[torch.Tensor]:
    """Parameters of several dtypes, and of strides that torch's operators for lists do not expect."""
    made = [
        torch.randn(4, 3, 5, 5, dtype=torch.float64).contiguous(memory_format=torch.channels_last),
        torch.randn(3, 4, dtype=torch.float64).t(),
        torch.randn(8, 6, dtype=torch.float64)[::2, ::3],
        torch.randn(8, 6, dtype=torch.complex128)[1::2],
        torch.randn(7, 1, 1, 1, dtype=torch.float64).as_strided((7, 1, 1, 1), (1, 5, 3, 1)),
        torch.randn(5),
        torch.randn(0, 3),
        torch.randn(()),
    ]
    there = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=device).copy_(t) for t in made]
    return [tensor.requires_grad_() for tensor in there]


def strange_gradient(parameter: torch.Tensor) -> torch.Tensor:
    """A gradient that shares neither strides nor, for a real one, the sign bit with its parameter."""
    reversed_shape, order = parameter.shape[::-1], tuple(reversed(range(parameter.dim())))
    gradient = torch.randn(reversed_shape, dtype=parameter.dtype, device=parameter.device).permute(order)
    if parameter.is_complex():
        return gradient.conj()
    return torch.complex(torch.zeros_like(gradient), gradient).conj().imag


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("hp", "reference", "options"), CASES)
def test_parameters_and_gradients_of_any_layout(hp: dict, reference: type, options: dict, device: str) -> None:
    torch.manual_seed(0)
    ours = strange_parameters(device)
    theirs = [p.detach().clone().requires_grad_() for p in ours]
    own = BuiltinOptimizer(OptimizerSettings.of(hp), ours)
    other = reference(theirs, lr=hp["lr"], foreach=False, **options)
    for step in range(3):
        for a, b in zip(ours, theirs, strict=True):
            gradient = strange_gradient(a) if step else a.new_ones(()).expand(a.shape)
            a.grad, b.grad = gradient, gradient.clone().resolve_conj().resolve_neg()
        versions = [p._version for p in ours]
        own.step(hp["lr"])
        other.step()
        assert all(p.grad is None and p._version > before for p, before in zip(ours, versions, strict=True))
        for a, b in zip(ours, theirs, strict=True):
            tolerance = 1e-6 if a.dtype == torch.float32 else 1e-12
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
        state = copy.deepcopy(own.state_dict())
        own = BuiltinOptimizer(OptimizerSettings.of(hp), ours)
        own.load_state_dict(state)


@pytest.mark.parametrize(("hp", "reference", "options"), CASES)
def test_a_sparse_gradient_counts_as_the_same_dense_one(hp: dict, reference: type, options: dict) -> None:
    torch.manual_seed(0)
    ours, theirs = (nn.Embedding(9, 3, sparse=sparse).double() for sparse in (True, False))
    theirs.load_state_dict(ours.state_dict())
    own = BuiltinOptimizer(OptimizerSettings.of(hp), ours.parameters())
    other = reference(theirs.parameters(), lr=hp["lr"], **options)
    for words in ([1, 4, 4], [4, 8, 0]):
        other.zero_grad()
        for model in (ours, theirs):
            (model(torch.tensor(words)) ** 2).sum().backward()
        assert ours.weight.grad is not None
        assert ours.weight.grad.is_sparse
        other.step()
        own.step(hp["lr"])
        torch.testing.assert_close(ours.weight, theirs.weight, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("hp", "reference", "options"), CASES)
def test_complex_parameters(hp: dict, reference: type, options: dict) -> None:
    torch.manual_seed(0)
    ours = torch.randn(3, dtype=torch.complex128, requires_grad=True)
    theirs = ours.detach().clone().requires_grad_()
    stacked = {"p": torch.stack([ours.detach(), ours.detach()])}
    settings = OptimizerSettings.of(hp)
    own, array = BuiltinOptimizer(settings, [ours]), ArrayOptimizer([settings, settings])
    other = reference([theirs], lr=hp["lr"], **options)
    buffers, numbers = array.new_state(stacked, {}), array.numbers([settings, settings], 1, 4, 1)
    for step in range(4):
        gradient = torch.randn(3, dtype=torch.complex128)
        ours.grad, theirs.grad = gradient.conj().resolve_conj().conj(), gradient.clone()
        own.step(hp["lr"])
        other.step()
        array.step(stacked, {"p": torch.stack([gradient, gradient])}, buffers, numbers[step])
        assert torch.allclose(ours, theirs, rtol=1e-12)
        assert torch.allclose(stacked["p"][1], theirs, rtol=1e-12)
