"""One step of all members of an array.

The stateless form of one model (`torch.func.functional_call`) is mapped over stacked parameters by `torch.vmap`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.func import functional_call, vmap

from raygpu.experiment import Experiment
from raygpu.search.hyperparameters import Hyperparameters
from raygpu.training.fused.compiled_step import StepCompiledAtFirst
from raygpu.training.fused.evaluation import Evaluation
from raygpu.training.fused.loss_scales import scaled
from raygpu.training.fused.member_step import StepFacts
from raygpu.training.fused.optimizers import ArrayOptimizer
from raygpu.training.fused.random_inputs import RandomInputs
from raygpu.training.fused.tile import Stacked, Tile
from raygpu.training.fused.vmap_modes import MemberNorms, OwnTensors, PaddedEmbedding, TiedExtremes, plain_attention
from raygpu.training.torch.data import Tensors, by_name, copied
from raygpu.training.torch.experiment import training_loss
from raygpu.training.torch.reduction import objective, packed
from raygpu.training.torch.training_mode import set_training

Drawn = list[torch.Tensor]
"""Random numbers of a step, as `RandomInputs` draws them."""
Step = Callable[..., torch.Tensor]
"""Function of the stacks of a tile, inputs, targets, numbers and, if the model draws any, random numbers."""
Shapes = tuple[tuple[str, torch.dtype, torch.Size], ...]
"""Name, number type and shape, without the width, of each input and each target of a batch."""

MODEL = "model"
"""Name of the model in `_TrainingStep`."""


class Program:
    """The step of all arrays of one signature, and their `evaluation`.

    model: any member's, used for its code alone. context: of the forward pass (mixed precision). facts: of that model.
    """

    def __init__(
        self,
        experiment: Experiment,
        hp: Hyperparameters,
        model: nn.Module,
        optimizer: ArrayOptimizer,
        device: torch.device,
        context: Callable[[], AbstractContextManager[None]],
        facts: StepFacts,
    ) -> None:
        self.experiment = experiment
        self.hp = hp
        self.optimizer = optimizer
        self.context = context
        self.optimized = [name for name, p in model.named_parameters() if p.requires_grad]
        """Names of the parameters for which the optimizer of a training alone holds state, in its order."""
        self.trained = facts.trained
        self._step_draws = facts.step_draws
        self.step_modes = (
            *((PaddedEmbedding,) if facts.padded else ()),
            *((TiedExtremes,) if facts.has_extremes else ()),
            *((MemberNorms,) if facts.has_norms or device.type == "cuda" else ()),
        )
        """Modes of torch functions that the forward passes of a step need. On CUDA, that of norms always: a norm that
        only a later step computes may be in half precision."""
        self.state_names = list(model.state_dict())
        self.owners = _owners(model)
        """Name under which each name's tensor is stacked: tied parameters have several names."""
        if unknown := [name for name in self.state_names if name not in self.owners]:
            is_extra = unknown[0].endswith("_extra_state")
            kind = "extra state of a module" if is_extra else "a name in state_dict() of no parameter or buffer"
            raise ValueError(f"{unknown[0]}: {kind} cannot be stacked")
        floating = [p.dtype for p in model.parameters() if p.is_floating_point()]
        self.number_type = torch.float64 if torch.float64 in floating else torch.float32
        self.device = device
        self.model = model.to(device)
        self._step = _TrainingStep(experiment, self.model, hp)
        self.evaluation = Evaluation(experiment, self.model, optimizer, device, context, facts)
        self._compiled: dict[tuple[int, int], Step] = {}
        """Compiled steps by a tile's width and its batch size."""
        self._compiled_shapes: dict[tuple[int, int], Shapes] = {}
        """Shapes of the only batches that a compiled step takes: it reads others as if they had these."""
        self._random_inputs: dict[tuple[int, Shapes], RandomInputs] = {}

    @property
    def draws(self) -> bool:
        """Whether the members draw random numbers, each from its own generators."""
        return bool(self._step_draws or self.evaluation.draws)

    @contextmanager
    def training(self) -> Iterator[None]:
        """Set training mode for the steps of an epoch."""
        set_training(self.model)
        with plain_attention():
            yield

    def use(self, width: int, batch_size: int, step: Step, shapes: Shapes | None = None) -> None:
        """Let tiles of this width step through a compiled program. See `LoadedStep`.

        shapes: of the batches that it was compiled for; by default those of the first batch that it gets. Batches of
        other shapes, as a `collate_fn` may make, step eagerly.
        """
        self.forget(width, batch_size)
        self._compiled[width, batch_size] = step
        if shapes is not None:
            self._compiled_shapes[width, batch_size] = shapes

    def compile(self, width: int, batch_size: int) -> None:
        """Let tiles of this width step through a compiled program, which is made at the first such step, for batches of
        its shapes."""
        self.use(width, batch_size, StepCompiledAtFirst(self.eager_step))

    def forget(self, width: int, batch_size: int) -> None:
        """Let tiles of this width step eagerly again."""
        self._compiled.pop((width, batch_size), None)
        self._compiled_shapes.pop((width, batch_size), None)

    def _compiled_step(self, tile: Tile, inputs: Tensors, targets: Tensors) -> Step | None:
        """Return the compiled step for such a batch; None without one."""
        key = tile.width, num_samples(inputs)
        if key not in self._compiled:
            return None
        shapes = shapes_of(inputs, targets)
        return self._compiled[key] if self._compiled_shapes.setdefault(key, shapes) == shapes else None

    def step(self, tile: Tile, inputs: Tensors, targets: Tensors, numbers: torch.Tensor) -> torch.Tensor:
        """Take one optimizer step of every member; return the losses, packed, (width, ...), on the device.

        inputs, targets: (width, batch, ...). numbers: see `ArrayOptimizer.step`.
        """
        compiled = self._compiled_step(tile, inputs, targets)
        drawn = [] if compiled is None else self.drawn(tile, inputs, targets)
        return self.supplied_step(tile, inputs, targets, numbers, drawn)

    def drawn(self, tile: Tile, inputs: Tensors, targets: Tensors) -> Drawn:
        """Draw the random numbers of the tile's next step, for `supplied_step`.

        Raises ValueError for a model whose random numbers depend on its values.
        """
        if not self._step_draws:
            return []
        assert tile.streams is not None
        key = tile.width, shapes_of(inputs, targets)
        if key not in self._random_inputs:
            run = partial(self._losses, tile.parameters, tile.fixed, tile.buffers, copied(inputs), copied(targets))
            self._random_inputs[key] = RandomInputs.of(run, tile.streams.expect(self._step_draws))
        return self._random_inputs[key].draw(tile.streams.expect(self._step_draws))

    def supplied_step(
        self, tile: Tile, inputs: Tensors, targets: Tensors, numbers: torch.Tensor, drawn: Drawn
    ) -> torch.Tensor:
        """Take a step with random numbers that are drawn already; without any, the members' generators draw them. See
        `step`."""
        compiled = self._compiled_step(tile, inputs, targets)
        if compiled is None:
            return self.eager_step(tile, inputs, targets, numbers, drawn)
        stacks = tile.parameters, tile.fixed, tile.buffers, tile.optimizer_state
        return compiled(*stacks, inputs, targets, numbers, *([drawn] if self._step_draws else []))

    def eager_step(
        self, tile: Tile, inputs: Tensors, targets: Tensors, numbers: torch.Tensor, drawn: Drawn | None = None
    ) -> torch.Tensor:
        """Take a step that is never compiled. See `supplied_step`."""
        leaves = {name: tensor.detach().requires_grad_() for name, tensor in tile.parameters.items()}
        with torch.enable_grad():
            with self._random_numbers(tile, drawn):
                losses, (packed_losses, changed) = self._losses(leaves, tile.fixed, tile.buffers, inputs, targets)
                losses = scaled(losses, self.optimizer.loss_scales(tile.optimizer_state))
            # Members do not meet in a forward pass, so the gradient of the sum has each one's own.
            tensors = torch.autograd.grad(losses.sum(), [*leaves.values()], allow_unused=True, materialize_grads=True)
        gradients = dict(zip(leaves, tensors, strict=True))
        self._update(tile.parameters, gradients, tile.buffers, changed, tile.optimizer_state, numbers)
        return packed_losses

    def _random_numbers(self, tile: Tile, drawn: Drawn | None) -> AbstractContextManager[Any]:
        """Return the context in which a step gets its random numbers: the given ones, or the members' generators."""
        if drawn:
            return RandomInputs.supplied(drawn)
        return tile.streams.expect(self._step_draws) if tile.streams else nullcontext()

    def _losses(
        self, parameters: Stacked, fixed: Stacked, buffers: Stacked, inputs: Tensors, targets: Tensors
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, Stacked]]:
        """Map `_loss` over all members."""
        with ExitStack() as stack:
            for mode in self.step_modes:
                stack.enter_context(mode())
            return vmap(self._loss, randomness="different")(parameters, fixed, buffers, inputs, targets)

    @torch.no_grad()
    def _update(
        self,
        parameters: Stacked,
        gradients: Stacked,
        buffers: Stacked,
        changed: Stacked,
        optimizer_state: list[Stacked],
        numbers: torch.Tensor,
    ) -> None:
        self.optimizer.step(parameters, gradients, optimizer_state, numbers)
        for name, tensor in changed.items():
            buffers[name].copy_(tensor)
        self.optimizer.update_average(optimizer_state, parameters | buffers, numbers)

    def _loss(
        self, parameters: Stacked, fixed: Stacked, buffers: Stacked, inputs: Tensors, targets: Tensors
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, Stacked]]:
        """Return one member's objective on its batch; also its loss, packed, and its buffers after it."""
        own_buffers = {name: tensor.clone() for name, tensor in buffers.items()}
        state = {f"{MODEL}.{name}": tensor for name, tensor in {**parameters, **fixed, **own_buffers}.items()}
        mode = OwnTensors(next(iter(parameters.values()))) if self._step_draws.in_place else nullcontext()
        with self.context(), mode:
            loss = functional_call(self._step, state, (inputs, targets))
        return objective(loss).reshape(()), (packed(loss), {name: state[f"{MODEL}.{name}"] for name in buffers})


class _TrainingStep(nn.Module):
    """An experiment's training step as a module around its model, so that it can be called without state."""

    def __init__(self, experiment: Experiment, model: nn.Module, hp: Hyperparameters) -> None:
        super().__init__()
        self.model = model
        self._experiment, self._hp = experiment, hp

    def forward(self, inputs: Tensors, targets: Tensors) -> Any:
        """Return the loss of one member's batch."""
        return training_loss(self._experiment, self.model, inputs, targets, self._hp)


def num_samples(inputs: Tensors) -> int:
    """Return the samples of each member's batch. inputs: (width, batch, ...)."""
    return (next(iter(inputs.values())) if isinstance(inputs, dict) else inputs).shape[1]


def shapes_of(inputs: Tensors, targets: Tensors) -> Shapes:
    """Return the shapes of a batch. inputs, targets: (width, batch, ...)."""
    stacks = (by_name(part) for part in (inputs, targets))
    return tuple((name, tensor.dtype, tensor.shape[1:]) for stack in stacks for name, tensor in stack.items())


def _owners(model: nn.Module) -> dict[str, str]:
    """Return, for each name in the state dict, the first name of the same tensor."""
    first: dict[int, str] = {}
    everything = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    return {name: first.setdefault(id(tensor), name) for name, tensor in everything}
