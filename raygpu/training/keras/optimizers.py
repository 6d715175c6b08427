"""SGD, Adam and AdamW in Keras with the meaning that torch.optim gives to their numbers.

Keras differs in three places that a comparison of frameworks, or a sweep moved from one to the other, would see: its
momentum sums steps where torch's sums gradients (unequal as soon as a schedule changes the learning rate); its epsilon
is added before the correction of Adam's bias; and every weight decay is decoupled, also that of SGD and Adam.
"""

from __future__ import annotations

import math
from typing import Any, assert_never

from raygpu.training.hyperparameters import OptimizerSettings
from raygpu.training.keras.quiet_import import keras
from raygpu.training.loss_scaling import GROWTH_STEPS, INITIAL_SCALE, LOWEST_SCALE


def make_optimizer(settings: OptimizerSettings, *, scales_loss: bool = False) -> keras.optimizers.Optimizer:
    """Make the optimizer of a trial. Assign its learning rate before each step.

    scales_loss: whether its gradients are those of `scale_loss(loss)`, and steps that overflow are left out. Raises
    ValueError for `ema_decay` and `micro_batch_size`.
    """
    inner = _made(settings)
    inner.settings = settings
    if not scales_loss:
        return inner
    return keras.optimizers.LossScaleOptimizer(inner, initial_scale=INITIAL_SCALE, dynamic_growth_steps=GROWTH_STEPS)


def takes_no_step(optimizer: keras.optimizers.Optimizer) -> bool:
    """Return whether gradients are never finite: see `LOWEST_SCALE`."""
    is_scaled = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    return is_scaled and not LOWEST_SCALE <= float(optimizer.dynamic_scale.numpy()) < math.inf


def _made(settings: OptimizerSettings) -> Sgd | Adam:
    if settings.ema_decay is not None:
        raise ValueError("hyper-parameter ema_decay: only a TorchExperiment has an average of its parameters")
    if settings.micro_batch_size is not None:
        raise ValueError(
            "hyper-parameter micro_batch_size: a Keras training takes whole batches; a TorchExperiment is wanted"
        )
    match settings.optimizer:
        case "sgd":
            return Sgd(settings.lr, momentum=settings.momentum, nesterov=settings.nesterov)
        case "adam" | "adamw" as kind:
            decay = settings.weight_decay if kind == "adamw" else None
            beta_1, beta_2 = settings.betas
            return Adam(settings.lr, beta_1=beta_1, beta_2=beta_2, epsilon=settings.eps, weight_decay=decay)
        case _:
            assert_never(settings.optimizer)


class _TrialsOwn:
    """Optimizer base for whole gradients, which are clipped and get the decay of SGD and Adam first.

    They are already summed over all devices; Keras' own optimizers would sum them once more.
    """

    settings: OptimizerSettings

    def apply(self, grads: list[Any], trainable_variables: list[Any]) -> None:
        """Take a step with these gradients of these variables."""
        if self.settings.clip_norm is not None:
            grads = clip(grads, self.settings.clip_norm)
        grads = with_l2(self.settings, grads, trainable_variables)
        super().apply(grads, trainable_variables)  # type: ignore[misc]

    def _all_reduce_sum_gradients(self, grads_and_vars: Any) -> Any:
        return grads_and_vars


class Sgd(_TrialsOwn, keras.optimizers.SGD):
    """SGD as in torch.optim: velocity = momentum * velocity + gradient; weight -= lr * velocity."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Update one variable."""
        lr = keras.ops.cast(learning_rate, variable.dtype)
        update = keras.ops.cast(gradient, variable.dtype)
        if self.momentum:
            velocity = self.momentums[self._get_variable_index(variable)]
            self.assign(velocity, velocity * self.momentum + update)
            update = update + self.momentum * velocity if self.nesterov else velocity
        self.assign_sub(variable, update * lr)


class Adam(_TrialsOwn, keras.optimizers.Adam):
    """Adam as in torch.optim, and AdamW with `weight_decay`: epsilon is added after both moments' bias is corrected."""

    epsilon: Any

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Update one variable."""
        # Keras adds epsilon to sqrt(v), torch to sqrt(v / (1 - beta_2^t)).
        dtype = variable.dtype
        step = keras.ops.cast(self.iterations + 1, dtype)
        unbiased = keras.ops.sqrt(1 - keras.ops.power(keras.ops.cast(self.beta_2, dtype), step))
        epsilon = self.epsilon
        self.epsilon = epsilon * unbiased
        try:
            super().update_step(gradient, variable, learning_rate)
        finally:
            self.epsilon = epsilon


def with_l2(settings: OptimizerSettings, gradients: list[Any], variables: list[Any]) -> list[Any]:
    """Add weight_decay * weight to the gradients, as torch's SGD and Adam do; AdamW's are returned unchanged."""
    if settings.optimizer == "adamw" or not settings.weight_decay:
        return gradients
    return [
        gradient + settings.weight_decay * keras.ops.convert_to_tensor(variable)
        for gradient, variable in zip(gradients, variables, strict=True)
    ]


def clip(gradients: list[Any], norm: float) -> list[Any]:
    """Scale the gradients down so that their norm, of all together, is at most `norm`.

    Formula of torch.nn.utils.clip_grad_norm_: scale = min(1, norm / (total + 1e-6)).
    """
    total = keras.ops.sqrt(
        sum(keras.ops.sum(keras.ops.square(keras.ops.cast(gradient, "float32"))) for gradient in gradients)
    )
    scale = keras.ops.minimum(1.0, norm / (total + 1e-6))
    return [gradient * keras.ops.cast(scale, gradient.dtype) for gradient in gradients]
