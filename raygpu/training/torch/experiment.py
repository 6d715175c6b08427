"""The part of a user's contract that is PyTorch's own: the defaults of a torch experiment, its training step and its
optimizer."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from raygpu.experiment import Experiment
from raygpu.training.loss_kinds import ONE_OUTPUT

if TYPE_CHECKING:
    import torch
    from torch import nn


OWN = ("training_step", "optimizer", "scheduler")
"""Optional methods that change a step of training."""
IGNORED = -100
"""Class index of a target that the default loss leaves out, as `cross_entropy` does."""


class TorchExperiment(Experiment):
    """A training problem in PyTorch: raygpu supplies the optimizer, the loop, the device and the checkpoints.

    In fused mode one run of this code trains all members of an array: `forward`, `augment`, `training_step`, `loss` and
    `metrics` run under `torch.vmap`, and every tensor in them stands for one member's. Forbidden there:

    - a Tensor that decides a Python `if`, `.item()`, `float(tensor)`, boolean-mask indexing, NumPy in a forward pass;
    - operators that vmap has no rule for, or runs as a slow loop (LSTM, GRU, weight norm, EmbeddingBag);
    - state that a step changes outside parameters and buffers: attributes, lists, counters, globals, own generators;
    - random numbers of NumPy and of Python; torch's are drawn from generators of each member's own.

    A dry run before the sweep and audits during it compare members with trials alone; trials that break a rule are
    trained alone, and a line names the cause. docs/exactness.md has all rules.
    """

    framework = "torch"

    def training_step(self, model: nn.Module, inputs: Any, targets: Any, hp: Mapping[str, Any]) -> Any:
        """Return the loss of a training batch, whose gradient an optimizer step takes: a scalar, `Mean` or `Sum`.

        The default is `loss(model(augment(inputs, hp)), targets)`. Override it for a loss that needs more than the
        outputs: hyper-parameters (label smoothing), two views of a sample (contrastive), mixed samples, a second model
        (distillation), an auxiliary loss. A step of its own calls `augment` itself if it wants to; `loss` then scores
        validation data alone.

        Called on the training's device, in training mode and with `bf16` or `fp16` in mixed precision, for each
        batch or part of one; `backward` and the optimizer's step follow. model: as `model(hp)` made it, with the
        parameters that train, to be called as `model(x)`, or by its methods and its modules. inputs, targets: (batch,
        ...) with the dtype of `data()`, or dicts of such tensors; copies, which may be changed in place.

        hp: as in `model`; the names read are recorded. In fused mode it runs under `torch.vmap`.
        """
        return self.loss(forward(model, self.augment(inputs, hp)), targets)

    def optimizer(
        self, model: nn.Module, hp: Mapping[str, Any]
    ) -> torch.optim.Optimizer | Mapping[str, torch.optim.Optimizer] | None:
        """Return a new optimizer of the model's parameters; None, the default, for the one that hyper-parameters name.

            def optimizer(self, model, hp):
                return torch.optim.RMSprop(model.parameters(), lr=hp["lr"], alpha=hp["alpha"])

        Called once for each training of a trial, with the model on its device. Any `torch.optim.Optimizer` whose
        `step()` takes no closure is possible, with groups of parameters, and without some of them. `batch_size`,
        `micro_batch_size`, `clip_norm` and `ema_decay` keep their meaning; raygpu's other names mean what this method
        makes of them. One with methods `train()` and `eval()`, as schedule-free ones, is evaluated and saved in the
        mode of an evaluation, and needs no call of them.

        Several optimizers, each of parameters of its own, come as a dict; `training_step` then yields a pair (name,
        loss) for each step. The step is taken before the code after the `yield` goes on:

            def training_step(self, model, inputs, targets, hp):
                fake = model.generator(torch.randn(len(inputs), 16, device=inputs.device))
                real = model.discriminator(inputs)
                yield "discriminator", softplus(-real).mean() + softplus(model.discriminator(fake.detach())).mean()
                yield "generator", softplus(-model.discriminator(fake)).mean()

        Each optimizer's loss is the metric `train/<name>_loss`, their sum `train/loss`. Such a training takes whole
        batches, without `micro_batch_size`; over several devices all take the same turns, and the model is not sharded.

        A trial with an optimizer of its own is not fused, and takes no part in a population. A production training
        uses it too, without changing its learning rate to a larger batch.
        """
        return None

    def scheduler(
        self, optimizer: torch.optim.Optimizer, hp: Mapping[str, Any], num_steps: int
    ) -> torch.optim.lr_scheduler.LRScheduler | None:
        """Return a scheduler for the optimizer that `optimizer` has made; None, the default, for none.

        It is stepped after each optimizer step, not after one that fp16 leaves out. num_steps: optimizer steps of the
        whole training; with several optimizers, for each of which this is called, the batches.
        """
        return None

    def loss(self, outputs: Any, targets: Any) -> Any:
        """Return the mean cross entropy.

        outputs: logits (batch, classes) or (batch, classes, ...). targets: class indices (batch, ...) or (batch, 1,
        ...), int64, of which -100 does not count, or class probabilities of the shape of the outputs. Raises ValueError
        for outputs of one class.
        """
        from torch.nn.functional import cross_entropy

        if outputs.dim() < 2 or outputs.shape[1] == 1:
            raise ValueError(ONE_OUTPUT)
        return cross_entropy(outputs, _labels(outputs, targets))

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        """Return `accuracy`, 0 to 1.

        outputs: logits (batch, classes), or (batch, classes, ...) as `cross_entropy` takes them; with a `loss` of the
        experiment's own also (batch, ..., classes), which counts where both are possible. targets: class indices
        (batch, ...) or (batch, 1, ...); with the default loss also class probabilities of the shape of the outputs.
        Class indices that no class has do not count: -100, or the `ignore_index` of a loss of the experiment's own.
        Such a loss may have one output, or targets of another shape than class indices have, or of a floating-point
        type: there is no accuracy then.
        """
        pair = (_own_classes if overrides(self, "loss") else _classes)(outputs, targets)
        if pair is None:
            return {}
        predicted, labels, classes = pair
        whole = labels.long()
        ignored = ((whole < 0) | (whole >= classes)).sum()
        counted = labels.numel() - ignored
        factor = 1 + ignored / counted.clamp(min=1)  # exactly 1 where none is ignored
        return {"accuracy": (predicted == labels).float().mean() * factor}


def _own_classes(outputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int] | None:
    """Return predicted classes and class indices, of one shape, and the number of classes, for a loss of the
    experiment's own: the classes are in the last axis or in axis 1. None if the shapes are those of neither, or of
    both, or the targets are no indices."""
    if targets.is_floating_point():
        return None
    labels = _labels(outputs, targets)
    axes = {1, outputs.dim() - 1} if outputs.dim() > 1 else set()
    fitting = [axis for axis in axes if outputs.shape[axis] > 1 and outputs.select(axis, 0).shape == labels.shape]
    return (outputs.argmax(dim=fitting[0]), labels, outputs.shape[fitting[0]]) if len(fitting) == 1 else None


def _classes(outputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Return predicted classes and class indices, of one shape, and the number of classes, for the default loss. Raises
    ValueError for shapes that do not tell which axis has the classes."""
    labels = _labels(outputs, targets)
    if outputs.dim() < 2:
        return outputs.argmax(dim=-1), labels, outputs.shape[-1]
    if labels.is_floating_point() and labels.shape == outputs.shape:
        return outputs.argmax(dim=1), labels.argmax(dim=1), outputs.shape[1]
    if outputs.select(1, 0).shape != labels.shape:
        raise ValueError(
            f"the default metrics cannot tell the classes in outputs {tuple(outputs.shape)} beside targets"
            f" {tuple(targets.shape)}; override metrics()"
        )
    return outputs.argmax(dim=1), labels, outputs.shape[1]


def _labels(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return class indices without an axis of length 1 in the place of the classes, (batch, 1) as (batch,)."""
    has_axis = outputs.dim() == targets.dim() > 1 and targets.shape[1] == 1
    return targets.squeeze(1) if has_axis else targets


def forward(model: nn.Module, inputs: Any) -> Any:
    """Run the model: one input as `model(x)`, named ones as `model(user=..., item=...)`."""
    return model(**inputs) if isinstance(inputs, dict) else model(inputs)


def training_loss(experiment: Experiment, model: nn.Module, inputs: Any, targets: Any, hp: Mapping[str, Any]) -> Any:
    """Return the result of a torch experiment's `training_step` on a batch: a scalar tensor, `Mean` or `Sum`.

    Raises TypeError if it yields losses of several optimizers.
    """
    loss = cast(TorchExperiment, experiment).training_step(model, inputs, targets, hp)
    if isinstance(loss, Iterator):
        raise TypeError("training_step() yields losses, and optimizer() returned no dict with an optimizer for each")
    return loss


def training_turns(
    experiment: Experiment, model: nn.Module, inputs: Any, targets: Any, hp: Mapping[str, Any]
) -> Iterator[Any]:
    """Return what a torch experiment's `training_step` yields for several optimizers. Raises TypeError if it returns a
    loss."""
    turns: Any = cast(TorchExperiment, experiment).training_step(model, inputs, targets, hp)
    if not isinstance(turns, Iterator):
        raise TypeError(
            "optimizer() returned several, and training_step() one loss; it has to yield a pair (name, loss) for each"
            " step"
        )
    return turns


def summed_loss(experiment: Experiment, model: nn.Module, inputs: Any, targets: Any, hp: Mapping[str, Any]) -> Any:
    """Return the loss of a batch, for a look without a step; of several optimizers the sum of what is yielded."""
    loss: Any = cast(TorchExperiment, experiment).training_step(model, inputs, targets, hp)
    return sum(each for _, each in loss) if isinstance(loss, Iterator) else loss


def look(experiment: Experiment, model: nn.Module, batch: Callable[[], tuple[Any, Any]], hp: Mapping[str, Any]) -> Any:
    """Return the loss of a batch, for a look without a step and, where the code allows it, without gradients.

    A step of the experiment's own may take gradients itself, and so may a model, as of energies by positions. batch:
    gives inputs and targets, which may be changed in place.
    """
    import torch

    takes_gradients = overrides(experiment, "training_step")
    try:
        with torch.set_grad_enabled(takes_gradients):
            return summed_loss(experiment, model, *batch(), hp)
    except RuntimeError:
        if takes_gradients:
            raise
    with torch.enable_grad():
        return summed_loss(experiment, model, *batch(), hp)


def yields_losses(experiment: Experiment) -> bool:
    """Return whether a torch experiment's `training_step` yields losses of several optimizers."""
    return inspect.isgeneratorfunction(cast(TorchExperiment, experiment).training_step)


def overrides(experiment: Experiment, name: str) -> bool:
    """Return whether a torch experiment has a method of its own in the place of the default."""
    return getattr(type(experiment), name) is not getattr(TorchExperiment, name)


def own_methods(experiment: Experiment) -> list[str]:
    """Return the names of the methods in `OWN` that a torch experiment overrides."""
    return [name for name in OWN if overrides(experiment, name)]
