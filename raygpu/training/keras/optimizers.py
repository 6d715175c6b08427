"""SGD, Adam and AdamW in Keras with the meaning that torch.optim gives to their numbers.

Keras differs in three places that a comparison of frameworks, or a sweep moved from one to the other, would see: its
momentum sums steps where torch's sums gradients (unequal as soon as a schedule changes the learning rate); its epsilon
is added before the correction of Adam's bias; and every weight decay is decoupled, also that of SGD and Adam. Variables
in half precision are updated in float32 and rounded once, as torch's fused operators do.
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
            beta_1, beta_2 = settings.betas
            adam = Adam(settings.lr, beta_1=beta_1, beta_2=beta_2, epsilon=settings.eps)
            adam.shrinks_by = settings.weight_decay if kind == "adamw" else 0.0
            return adam
        case _:
            assert_never(settings.optimizer)


class _TrialsOwn:
    """Optimizer base for whole gradients, which are clipped and get the decay of SGD and Adam first.

    They are already summed over all devices; Keras' own optimizers would sum them once more.
    """

    settings: OptimizerSettings

    def apply(self, grads: list[Any], trainable_variables: list[Any]) -> None:
        """Take a step with these gradients of these variables."""
        grads = [_in_float32(gradient) for gradient in grads]
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
        update, value = _in_float32(gradient), _in_float32(variable)
        if self.momentum:
            velocity = self.momentums[self._get_variable_index(variable)]
            moved = _in_float32(velocity) * self.momentum + update
            _assign(velocity, moved)
            update = update + self.momentum * moved if self.nesterov else moved
        _assign(variable, value - update * keras.ops.cast(learning_rate, value.dtype))


class Adam(_TrialsOwn, keras.optimizers.Adam):
    """Adam as in torch.optim, and AdamW with `weight_decay`: epsilon is added after both moments' bias is corrected."""

    shrinks_by = 0.0
    """Weight decay of AdamW."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Update one variable."""
        place = self._get_variable_index(variable)
        momentum, velocity = self._momentums[place], self._velocities[place]
        update, value, mean, square = (_in_float32(each) for each in (gradient, variable, momentum, velocity))
        lr, beta_1, beta_2, step = (
            keras.ops.cast(number, value.dtype)
            for number in (learning_rate, self.beta_1, self.beta_2, self.iterations + 1)
        )
        mean = mean + (update - mean) * (1 - self.beta_1)
        square = square + (keras.ops.square(update) - square) * (1 - self.beta_2)
        unbiased = keras.ops.sqrt(1 - keras.ops.power(beta_2, step))
        step_size = lr * unbiased / (1 - keras.ops.power(beta_1, step))
        if self.shrinks_by:
            value = value - value * self.shrinks_by * lr
        # Keras adds epsilon to sqrt(v), torch to sqrt(v / (1 - beta_2^t)).
        _assign(variable, value - mean * step_size / (keras.ops.sqrt(square) + self.epsilon * unbiased))
        _assign(momentum, mean)
        _assign(velocity, square)


def with_l2(settings: OptimizerSettings, gradients: list[Any], variables: list[Any]) -> list[Any]:
    """Add weight_decay * weight to the gradients, as torch's SGD and Adam do; AdamW's are returned unchanged."""
    if settings.optimizer == "adamw" or not settings.weight_decay:
        return gradients
    return [
        gradient + settings.weight_decay * _in_float32(variable)
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


def _in_float32(values: Any) -> Any:
    """Return values in half precision in float32, in which Adam's `betas` are below 1 and its `eps` above 0; others as
    they are."""
    tensor = keras.ops.convert_to_tensor(values)
    is_half = keras.backend.standardize_dtype(tensor.dtype) in ("bfloat16", "float16")
    return keras.ops.cast(tensor, "float32") if is_half else tensor


def _assign(variable: Any, value: Any) -> None:
    """Set a variable, which may have half precision."""
    variable.assign(keras.ops.cast(value, variable.dtype))
