"""One torch model trained by several processes that each hold a part of it: fully sharded data parallelism.

Each rank has its share of every batch, as in `TorchParallel`, and a part of each parameter, of its gradient and of the
optimizer's state. FSDP2 gathers the parameters of a block while it computes, and sums its gradients into the parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from raygpu.experiment import Mean, Sum
from raygpu.records.training_progress import ControlRequest
from raygpu.training.distributed.buffer_broadcast import BufferBroadcast
from raygpu.training.distributed.gradients import broadcast_initial_state
from raygpu.training.distributed.ranks import ParallelSettings
from raygpu.training.distributed.ranks_gradient import RanksGradient
from raygpu.training.distributed.sharded.gradient import ShardedGradient
from raygpu.training.distributed.sharded.lockstep import WITHOUT
from raygpu.training.distributed.sharded.optimizer import ShardedOptimizer, ShardedOwnOptimizer
from raygpu.training.distributed.sharded.shards import Shards, require_shardable
from raygpu.training.distributed.torch_ranks import TorchParallel, TorchRanks
from raygpu.training.torch.experiment import own_methods
from raygpu.training.torch.experiment_optimizer import make_optimizer
from raygpu.training.torch.models import load_checkpoint
from raygpu.training.torch.own_optimizer import OwnOptimizer, changed_numbers
from raygpu.training.torch.parameter_average import unaveraged
from raygpu.training.torch.seeding import OF_OPTIMIZER, own_draws
from raygpu.training.torch.several_optimizers import SeveralOptimizers
from raygpu.training.torch.solo import TorchSolo

OUTSIDE = (
    "training_step() or the loss reads parameters of the model outside its forward pass, where a sharded model has no"
    f" whole ones: {WITHOUT}"
)


class UnplacedSolo(TorchSolo):
    """A training whose model is still on the CPU: the device may not have room for all of it."""

    evaluates_alone = False

    def _on_device(self, model: nn.Module) -> nn.Module:
        return model


class TorchSharded(TorchParallel):
    """Training of one trial of a `TorchExperiment`, sharded over several ranks.

    solo: an `UnplacedSolo` on this rank's device.
    """

    evaluates_together = True
    states_are_copies = True

    def __init__(
        self,
        solo: UnplacedSolo,
        parallel: ParallelSettings,
        ranks: TorchRanks,
        *,
        request: Callable[[], ControlRequest] = lambda: "",
    ) -> None:
        if parallel.compile:
            raise ValueError(f"compile: a sharded model is not compiled: {WITHOUT}")
        if parallel.auto_shares:
            raise ValueError(
                f"ratios: a device's own speed cannot be measured while it waits for parts of the others: {WITHOUT}"
            )
        if solo.optimizer_settings.ema_decay is not None:
            raise ValueError(f"ema_decay: a sharded model has no average of its parameters: {WITHOUT}")
        super().__init__(solo, parallel, ranks, request=request)
        if parallel.num_parts > 1:
            self.notes.append("sharded: the gradient noise scale is not measured, as each part of a batch is summed")

    def _spread(self, model: nn.Module) -> None:
        require_shardable(model)
        broadcast_initial_state(model, self.ranks, self.ranks.group)  # type: ignore[attr-defined]
        self._join_batch_norm()
        self._shards = Shards(self.solo.model, self.ranks, self.solo.device)
        self._moving = BufferBroadcast(self.solo.model, self.ranks, self.ranks.group)  # type: ignore[attr-defined]
        vars(self.solo)["optimizer"] = self._optimizer()  # in the place of the one that it would make

    def _optimizer(self) -> Any:
        solo = self.solo
        settings = solo.optimizer_settings
        if {"optimizer", "scheduler"} & {*own_methods(solo.experiment)}:
            num_steps = len(self._bounds) * self.epochs
            with own_draws(solo.seed, OF_OPTIMIZER):
                optimizer = make_optimizer(solo.experiment, solo.model, solo.hp, settings, num_steps)
            if isinstance(optimizer, SeveralOptimizers):
                raise ValueError(f"optimizer() returned several, which take turns with a whole model: {WITHOUT}")
            if isinstance(optimizer, OwnOptimizer):
                return ShardedOwnOptimizer.of(optimizer, self._shards)
        return ShardedOptimizer(settings.in_epoch(1), self._shards)

    def _step_gradient(self) -> RanksGradient:
        return ShardedGradient(self._shards, self.ranks, self.solo.device)

    def _loss(self) -> Any:
        lockstep = self._shards.lockstep
        lockstep.in_loss = True
        try:
            loss = super()._loss()
        except (RuntimeError, AssertionError) as error:
            if "DTensor" in str(error):
                raise RuntimeError(OUTSIDE) from error
            if "does not support deepcopy" in str(error):
                raise RuntimeError(
                    f"training_step() copies the model, and a sharded one has no copy: {WITHOUT}"
                ) from error
            raise
        finally:
            lockstep.in_loss = False
        values = (loss.total, getattr(loss, "weight", None)) if isinstance(loss, Mean | Sum) else (loss,)
        if any(isinstance(value, DTensor) for value in values):
            raise RuntimeError(OUTSIDE)
        return loss

    def _take_unfrozen(self) -> None:
        self._shards.require_kept_freezing()

    def _unscale(self) -> None:
        loss_scale = self.solo.loss_scale
        if loss_scale.enabled:
            overflowed = not bool(self._shards.norm(None).isfinite())
            loss_scale.unscale(self.solo.optimizer.parameters, overflowed=overflowed)

    def _clip(self) -> torch.Tensor:
        return self._shards.norm(self.solo.optimizer.settings.clip_norm)

    def _rate(self, rank: int, seconds: Any) -> float | None:
        """Return None: a step has the waiting for the other ranks in it."""
        return None

    def _evaluate(self) -> dict[str, float]:
        metrics = super()._evaluate()
        self._shards.reshard()
        self._shards.lockstep.check("the end of an evaluation")
        return metrics if self.ranks.rank == 0 else {}

    def load_parameters(self, folder: Path) -> None:
        """Begin with a trial's parameters: a warm start. The optimizer is made again, by the parameters' new values."""
        super().load_parameters(folder)
        vars(self.solo)["optimizer"] = self._optimizer()

    def states(self) -> dict[str, Any]:
        """Return the state dicts with whole tensors on rank 0, and without tensors on the others."""
        solo = self.solo
        return {
            "model": self._shards.model_state(),
            "optimizer": solo.optimizer.state_dict(),
            "loss_scale": solo.loss_scale.state_dict(),
        }

    def _load_states(self, state: dict[str, Any]) -> None:
        self._load_model(unaveraged(state))
        self.solo.optimizer.use(self.optimizer_settings.in_epoch(self.epoch + 1))
        self.solo.optimizer.load_state_dict(state["optimizer"])
        self.notes += changed_numbers(self.solo.optimizer)
        self.solo.loss_scale.load_state_dict(state["loss_scale"])

    def _load_model(self, state: Mapping[str, Any]) -> None:
        self._shards.load_model_state(state)

    def _read(self, folder: Path) -> dict[str, Any]:
        """Open a checkpoint without reading its tensors: each rank reads its parts."""
        state: dict[str, Any] = load_checkpoint(folder, mmap=True)
        return state

    def close(self) -> None:
        """Free memory."""
        super().close()
        del self._shards
