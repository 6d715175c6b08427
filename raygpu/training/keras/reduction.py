"""Losses and metrics of a Keras batch as numerator and denominator, which add up exactly over batches and parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from raygpu.experiment import Mean, Sum
from raygpu.training.keras.quiet_import import tf
from raygpu.training.loss_kinds import LossKind, loss_kind


@dataclass(frozen=True, slots=True)
class Loss:
    """The loss of a batch: `total`, or `total / weight` for a `Mean`; and the model's penalties."""

    kind: LossKind
    total: Any
    weight: Any
    """Denominator of a `Mean`; else None."""
    penalty: Any
    """Sum of the losses of regularizers and `add_loss()`, a mean over samples; None without any."""

    @classmethod
    def of(cls, value: Any, penalties: Sequence[Any], cast: Callable[[Any], Any]) -> Loss:
        """Convert a result of `loss`; traced. cast: function that converts out of half precision."""
        is_mean = isinstance(value, Mean)
        total = cast(tf.convert_to_tensor(value.total if isinstance(value, Mean | Sum) else value))
        if is_mean and (not total.dtype.is_floating or total.dtype.size < 4):
            total = tf.cast(total, tf.float64)  # whose weight may have a fraction, or be large
        if total.shape.rank and total.shape.num_elements() != 1:
            raise ValueError(f"a loss or metric has shape {tuple(total.shape)}; a scalar is wanted: its mean")
        weight = tf.cast(value.weight, total.dtype) if is_mean else None
        penalty = tf.add_n([tf.cast(each, total.dtype) for each in penalties]) if penalties else None
        return cls(loss_kind(value), total, weight, penalty)

    def objective(self) -> Any:
        """Return the scalar whose gradient an optimizer step takes; traced."""
        total = self.total if self.weight is None else self.total / divisor(self.weight)
        return total if self.penalty is None else total + self.penalty

    def divided(self) -> Loss:
        """Return the loss of a whole batch, a `Mean` as the plain number that it is; traced."""
        if self.weight is None:
            return self
        return replace(self, kind="scalar", total=self.total / divisor(self.weight), weight=None)

    def scaled(self, scale: Callable[[Any], Any]) -> Loss:
        """Return this loss times a factor, by a function that multiplies by it; traced."""
        penalty = None if self.penalty is None else scale(self.penalty)
        return replace(self, total=scale(self.total), penalty=penalty)

    def parts(self, count: Any, share: Any = 1.0) -> Any:
        """Return numerator and denominator of the reported loss, float64 (2,); traced.

        count: samples, float64. share: their share of the batch, the weight of the penalties of a `Sum`.
        """
        weight = {"scalar": count, "mean": self.weight, "sum": 0.0}[self.kind]
        total, weight = tf.cast(self.total, tf.float64), tf.cast(weight, tf.float64)
        if self.kind == "scalar":
            total *= weight
        if self.penalty is not None:
            total += tf.cast(self.penalty, tf.float64) * (share if self.kind == "sum" else weight)
        return tf.stack([tf.reshape(total, []), tf.reshape(weight, [])])


@dataclass(slots=True)
class PartGradient:
    """The layout of the gradient of a part of a batch: tensors that add up over parts and devices, and combine to
    one."""

    variables: list[Any]
    """Variables that have a gradient."""
    kind: LossKind
    weight_has_gradient: bool = False
    penalty_has_gradient: bool = False

    @classmethod
    def of(cls, tape: Any, loss: Loss, variables: Sequence[Any], share: Any) -> tuple[PartGradient, list[Any]]:
        """Compute the gradient of a part; return its layout and its tensors. Traced.

        tape: a persistent one, on which `loss` was computed. share: the part's share of the batch's samples.
        """
        scale = tf.cast(share, loss.total.dtype)
        if loss.weight is None:
            with tape:
                value = loss.total if loss.kind == "sum" else loss.total * scale
                if loss.penalty is not None:
                    value += loss.penalty * scale
            raw_gradients = tape.gradient(value, variables)
            used = [variable for variable, each in zip(variables, raw_gradients, strict=True) if each is not None]
            return cls(used, loss.kind), _dense(raw_gradients, variables, used)
        above = tape.gradient(loss.total, variables)
        below = tape.gradient(loss.weight, variables)
        beside = [None] * len(variables) if loss.penalty is None else tape.gradient(loss.penalty, variables)
        rows = list(zip(variables, above, below, beside, strict=True))
        used = [variable for variable, *each in rows if any(gradient is not None for gradient in each)]
        has = [any(gradient is not None for gradient in each) for each in (below, beside)]
        gradients = _dense(above, variables, used)
        gradients += _dense(below, variables, used) if has[0] else []
        gradients += [each * tf.cast(share, each.dtype) for each in _dense(beside, variables, used)] if has[1] else []
        ends = [tf.reshape(tf.cast(each, tf.float64), []) for each in (loss.total, loss.weight)]
        return cls(used, loss.kind, *has), [*gradients, *ends]

    def gradients(self, part: Sequence[Any]) -> Sequence[Any]:
        """Return the tensors of a part that are gradients of variables."""
        return part[:-2] if self.kind == "mean" else part

    def whole(self, summed: Sequence[Any]) -> list[Any]:
        """Return the gradient of the batch, from the sum of the tensors of its parts; traced."""
        count = len(self.variables)
        gradients = list(summed[:count])
        if self.kind != "mean":
            return gradients
        total, weight = summed[-2], divisor(summed[-1])
        others = [list(summed[start : start + count]) for start in range(count, len(summed) - 2, count)]
        gradients = [each / tf.cast(weight, each.dtype) for each in gradients]
        if self.weight_has_gradient:
            factor = total / weight**2
            below = others.pop(0)
            gradients = [each - part * tf.cast(factor, part.dtype) for each, part in zip(gradients, below, strict=True)]
        if self.penalty_has_gradient:
            gradients = [each + part for each, part in zip(gradients, others.pop(0), strict=True)]
        return gradients


def value_parts(value: Any, count: Any) -> Any:
    """Return numerator and denominator of a metric or a loss, float64 (2,); traced. count: samples, float64."""
    return Loss.of(value, [], lambda tensor: tensor).parts(count)


def divisor(weight: Any) -> Any:
    """Replace a denominator of 0, as of a sum or a mean over nothing, by 1; traced."""
    return tf.where(tf.equal(weight, 0), tf.ones_like(weight), weight)


def _dense(found: Sequence[Any], variables: Sequence[Any], used: Sequence[Any]) -> list[Any]:
    """Return a dense gradient for each variable in `used`: zeros without a gradient. Embeddings give sparse ones."""
    used_ids = {id(variable) for variable in used}
    return [
        tf.zeros_like(variable) if gradient is None else tf.convert_to_tensor(gradient)
        for variable, gradient in zip(variables, found, strict=True)
        if id(variable) in used_ids
    ]
