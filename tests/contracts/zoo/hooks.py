"""Hooks, and other ways to change a gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.contracts.zoo.entry import (
    WIDTH,
    Inside,
    Numbers,
    Vectors,
    mlp,
)


class HookOnParameter(Vectors):
    """Its last layer is not trained: a hook takes the gradient."""

    fused = r"hook"
    production = r"hook"

    def model(self, hp: Any) -> nn.Module:
        model = mlp(nn.ReLU())
        model[-1].weight.register_hook(torch.zeros_like)
        return model


class HookAfterAccumulation(Vectors):
    fused = r"hook"
    production = r"hook"

    def model(self, hp: Any) -> nn.Module:
        def clip(parameter: torch.Tensor) -> None:
            assert parameter.grad is not None
            parameter.grad.clamp_(-0.01, 0.01)

        model = mlp(nn.ReLU())
        model[-1].weight.register_post_accumulate_grad_hook(clip)
        return model


class HookOnModule(Vectors):
    """Hooks of modules, as libraries for profiling and pruning set them."""

    def model(self, hp: Any) -> nn.Module:
        model = mlp(nn.ReLU())
        model[0].register_forward_hook(lambda module, inputs, outputs: 0.5 * outputs)
        model[-1].register_forward_pre_hook(lambda module, inputs: (inputs[0] + 0.1,))
        return model


class HookOnModuleBackward(Vectors):
    """Scales the gradient with regard to a layer's input."""

    fused = r"hook|setup_context|autograd\.Function"

    def model(self, hp: Any) -> nn.Module:
        model = mlp(nn.ReLU())
        model[-1].register_full_backward_hook(lambda module, inputs, outputs: tuple(0.5 * g for g in inputs))
        return model


class HookOnActivation(Vectors):
    """A hook on a tensor of the forward pass: it scales the gradient."""

    fused = r"hook"

    def model(self, hp: Any) -> nn.Module:
        class Model(Inside):
            def inside(self, x: torch.Tensor) -> torch.Tensor:
                if x.requires_grad:
                    x.register_hook(lambda gradient: 0.5 * gradient)
                return x

        return Model()


class GradientPenalty(Numbers):
    """Takes a gradient within the forward pass, as forces of a potential are."""

    fused = r"grad|autograd|vmap"

    def model(self, hp: Any) -> nn.Module:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.potential = nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, 1))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                with torch.enable_grad():
                    x = x.detach().requires_grad_()
                    (force,) = torch.autograd.grad(self.potential(x).sum(), x, create_graph=True)
                return force[:, :2]

        return Model()


class Checkpointed(Vectors):
    """Computes its activations anew in the backward pass."""

    fused = r"(?i:checkpoint)|sets torch's random state|escaped"

    def model(self, hp: Any) -> nn.Module:
        class Model(Inside):
            def inside(self, x: torch.Tensor) -> torch.Tensor:
                return torch.utils.checkpoint.checkpoint(lambda x: torch.tanh(x).square(), x, use_reentrant=False)

        return Model()


class OwnBackward(Vectors):
    """A function with a backward pass of its own: the gradient goes straight through a rounding."""

    fused = r"autograd\.Function|setup_context|generate_vmap_rule"

    def model(self, hp: Any) -> nn.Module:
        class Straight(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
                return x.round()

            @staticmethod
            def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
                return gradient

        class Model(Inside):
            def inside(self, x: torch.Tensor) -> torch.Tensor:
                return Straight.apply(4 * x)

        return Model()
