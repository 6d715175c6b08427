"""One torch model with its parts on several devices: values move to a part's device as it is called, and back after.

A part is a submodule. What a placement does not name is on device 0, and a submodule of a named one goes with it. All
that a model does outside of a placed submodule runs on its caller's device, so a part's outputs return there. Where
there are fewer devices than asked for, logical devices share one, and a copy between them stays in its memory.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

from raygpu.errors import BadInput
from raygpu.experiment import Experiment, Splits, take
from raygpu.planning.model_placements import PlacementTurn
from raygpu.search.hyperparameters import Hyperparameters
from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from raygpu.training.torch.data import rows, tensors
from raygpu.training.torch.experiment import forward
from raygpu.training.torch.models import epoch_seed, initial_model
from raygpu.training.torch.module_calls import ModuleCalls, record_calls
from raygpu.training.torch.placement_memory import PlacedMemory
from raygpu.training.torch.placement_profile import copy_name, profiled_steps
from raygpu.training.torch.reduction import EpochLosses
from raygpu.training.torch.seeding import seed_all
from raygpu.training.torch.solo import TorchSolo

WARM_UP_STEPS = 10
NUM_PROFILED = 5
"""Number of steps under the profiler."""


def calls(experiment: Experiment, splits: Splits, trial: Trial) -> ModuleCalls:
    """Return the calls of the model's submodules, from a forward pass of two samples on the CPU."""
    model = initial_model(experiment, Hyperparameters(trial.hyperparameters), trial.seed)
    few = rows(tensors(take(splits.train_inputs, slice(0, 2))), slice(None))
    model.eval()
    return record_calls(model, partial(forward, model, few))


def placed_devices(count: int) -> list[torch.device]:
    """Return the devices of a placement: the GPUs that this process sees or, if they are too few, logical ones."""
    if torch.cuda.device_count() >= count:
        return [torch.device("cuda", index) for index in range(count)]
    return [torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")] * count


def device_of(part: str, parts: Mapping[str, int]) -> int:
    """Return the device of a submodule: that of the nearest named one around it, or 0."""
    while part not in parts:
        if not part:
            return 0
        part = part.rpartition(".")[0]
    return parts[part]


def require_together(name: str, parts: Mapping[str, int], found: ModuleCalls) -> None:
    """Raise BadInput if a submodule's parameters are used by another one that is placed on another device."""
    if apart := _apart(parts, found):
        owner, user = apart[0]
        where = f"by {user}" if user else "outside of it"
        raise BadInput(
            f"placements.{name}: parameters of {owner} (device {device_of(owner, parts)}) are used {where}"
            f" (device {device_of(user, parts)}): put both on one device"
        )


def without_shared(parts: Mapping[str, int], found: ModuleCalls) -> dict[str, int]:
    """Return a placement without the submodules whose parameters others use, or that use those of others."""
    placement = dict(parts)
    while apart := _apart(placement, found):
        for owner, user in apart:
            placement.pop(owner, None)
            placement.pop(user, None)
    return placement


def _apart(parts: Mapping[str, int], found: ModuleCalls) -> list[tuple[str, str]]:
    return sorted(pair for pair in found.uses if device_of(pair[0], parts) != device_of(pair[1], parts))


class TorchPlaced(TorchSolo):
    """A model with its parts on several devices, trained a turn at a time.

    parts: device of each named submodule. devices: the first holds the data, the loss and all that is not named; equal
    ones are logical devices.
    """

    def __init__(
        self,
        experiment: Experiment,
        splits: Splits,
        trial: Trial,
        settings: Settings,
        parts: Mapping[str, int],
        devices: Sequence[torch.device],
    ) -> None:
        self._parts, self.devices = parts, devices
        self.memory = PlacedMemory(devices)
        self._under_way = [0]
        super().__init__(experiment, splits, trial, settings, devices[0])
        self.memory.held(self.data.on_device())

    def _on_device(self, model: nn.Module) -> nn.Module:
        """Move each submodule's own parameters to its device, and have values follow."""
        for name, module in model.named_modules():
            index = device_of(name, self._parts)
            for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
                tensor.data = tensor.data.to(self.devices[index])
                self.memory.placed(tensor, index)
            if isinstance(module, nn.RNNBase):
                module.flatten_parameters()  # cuDNN wants them in one piece
            if name in self._parts:
                module.register_forward_pre_hook(partial(self._begin, index), with_kwargs=True)
                module.register_forward_hook(self._end)
        return model

    def _begin(self, index: int, module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        source = self._under_way[-1]
        self._under_way.append(index)
        moved: tuple[Any, Any] = self._moved((args, kwargs), source, index)
        return moved

    def _end(self, module: nn.Module, arguments: Any, outputs: Any) -> Any:
        source = self._under_way.pop()
        return self._moved(outputs, source, self._under_way[-1])

    def _moved(self, values: Any, source: int, target: int) -> Any:
        if source == target:
            return values
        ends = self.devices[source], self.devices[target]
        return tree_map(lambda value: _Copy.apply(value, *ends) if isinstance(value, torch.Tensor) else value, values)

    def turn(self, *, profiled: bool) -> PlacementTurn:
        """Warm up, train an epoch, and return what it took; with a profile of some more steps, if asked for."""
        others = self.trial_steps()
        for _ in range(min(WARM_UP_STEPS, self.steps_per_epoch)):
            next(others)
        self.wait()
        seed_all(epoch_seed(self.seed, 1))
        losses = EpochLosses(self.device, finite_only=self.loss_scale.enabled)
        started = time.perf_counter()
        for loss, count in chain.from_iterable(self._steps(1)):
            losses.add(loss, count)
        self.wait()
        epoch_s = time.perf_counter() - started
        with self.memory.recorded(lambda: self._under_way[-1]):
            next(others)
        turn = PlacementTurn(epoch_s, losses.value(), self.memory.gib(self.optimizer, self.average))
        if not profiled:
            return turn
        on_gpu = self.devices[0].type == "cuda"
        profile, trace = profiled_steps(others, NUM_PROFILED, self.wait, on_gpu=on_gpu)
        return replace(turn, profile=profile, trace=trace)

    def wait(self) -> None:
        """Wait until all devices have finished their work."""
        for device in dict.fromkeys(self.devices):
            if device.type == "cuda":
                torch.cuda.synchronize(device)

    def close(self) -> None:
        """Free the memory of all devices for the next placement."""
        super().close()
        del self.memory


class _Copy(torch.autograd.Function):
    """A copy from one device to another, and of the gradient on the way back; a clone where both are one device."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, source: torch.device, target: torch.device) -> torch.Tensor:
        """Copy a tensor from `source` to `target`."""
        ctx.ends = source, target
        return _copied(value, target)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        """Copy its gradient from `target` to `source`."""
        return _copied(gradient, ctx.ends[0]), None, None


def _copied(value: torch.Tensor, target: torch.device) -> torch.Tensor:
    with torch.profiler.record_function(copy_name(value.nbytes)):
        return value.to(target, copy=True)
