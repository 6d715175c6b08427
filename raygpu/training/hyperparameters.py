"""The hyper-parameters that raygpu itself reads, checked: one value carries batch size, optimizer and schedule.

Each training reads them once, when it is made; a production training scales the learning rate once, on the driver.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from raygpu.planning.batch_shares import parts
from raygpu.search.trials import BATCH_SIZE

OptimizerName = Literal["sgd", "adam", "adamw"]
ScheduleName = Literal["constant", "cosine", "step"]
OPTIMIZERS: tuple[OptimizerName, ...] = get_args(OptimizerName)
DEFAULT_LR: dict[OptimizerName, float] = {"sgd": 1e-2, "adam": 1e-3, "adamw": 1e-3}
"""Learning rate where the hyper-parameters have no `lr`."""
SCHEDULES: tuple[ScheduleName, ...] = ("constant", "cosine", "step")
ROUNDING = 1e-9
"""Share of `step_epochs` by which a step may miss a drop: 3 epochs of 0.1 are a little less than 0.3."""
READ_BY_RAYGPU = frozenset({"batch_size", "micro_batch_size", "optimizer"})
"""Hyper-parameters that shape every program, beside those that its model reads."""
IN_EVERY_STEP = frozenset({"batch_size", "micro_batch_size", "clip_norm", "ema_decay"})
"""Hyper-parameters that raygpu applies whatever the optimizer is, an experiment's own one among them."""
OF_OPTIMIZER = {"sgd": ("momentum", "nesterov"), "adam": ("betas", "eps"), "adamw": ("betas", "eps")}
OF_SCHEDULE = {"step": ("step_epochs", "gamma")}


def names_with_effect(optimizers: Iterable[str], schedules: Iterable[str]) -> frozenset[str]:
    """Return the hyper-parameters that raygpu's own optimizer uses, by the optimizers and schedules that trials may
    name."""
    effective_names = {"optimizer", "lr", "weight_decay", "schedule", "warmup_epochs", *IN_EVERY_STEP}
    for names, by_value in ((optimizers, OF_OPTIMIZER), (schedules, OF_SCHEDULE)):
        effective_names.update(*(by_value.get(name, ()) for name in names))
    return frozenset(effective_names)


@dataclass(frozen=True, slots=True)
class OptimizerSettings:
    """The settings of optimizer steps, from a trial's hyper-parameters; the defaults are torch.optim's."""

    batch_size: int = BATCH_SIZE
    optimizer: OptimizerName = "sgd"
    lr: float = 1e-2
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    clip_norm: float | None = None
    """Largest norm of the whole gradient; None clips nothing."""
    micro_batch_size: int | None = None
    """Samples of a batch that the model takes at once, where memory does not hold more. None: the whole batch."""
    ema_decay: float | None = None
    """Share of the moving average of the parameters that a step leaves as it is; None keeps no average."""
    schedule: ScheduleName = "constant"
    warmup_epochs: float = 0.0
    """Epochs over which the learning rate rises linearly from 0."""
    step_epochs: float = 10.0
    """schedule = "step": epochs between two drops."""
    gamma: float = 0.1
    """schedule = "step": factor on the learning rate at each drop."""
    later: tuple[tuple[int, OptimizerSettings], ...] = ()
    """Settings of later epochs, each with its first epoch, in rising order; these have no later ones themselves."""

    @classmethod
    def of(cls, hp: Mapping[str, Any], changes: Sequence[Mapping[str, Any]] = ()) -> OptimizerSettings:
        """Read the settings from hyper-parameters. Raises ValueError with the value read and the values allowed.

        changes: values that hold from an epoch on, each with its `epoch`, in rising order; earlier ones stay.
        """
        values, later = dict(hp) if changes else {}, []
        for change in changes:
            values |= {name: value for name, value in change.items() if name != "epoch"}
            later.append((change["epoch"], cls.of(values)))
        settings = cls._of(hp)
        if settings.ema_decay is None and any(each.ema_decay is not None for _, each in later):
            raise ValueError("hyper-parameter ema_decay: an average begins with the first epoch; give its decay there")
        return replace(settings, later=tuple(later))

    @classmethod
    def _of(cls, hp: Mapping[str, Any]) -> OptimizerSettings:
        batch_size = _count("batch_size", hp.get("batch_size", BATCH_SIZE))
        micro = hp.get("micro_batch_size")
        optimizer = _one_of(hp, "optimizer", OPTIMIZERS, "sgd")
        momentum = _number(hp, "momentum", 0.0, 0.0, 1.0)
        weight_decay_default = 1e-2 if optimizer == "adamw" else 0.0  # torch.optim.AdamW's own default
        betas = hp.get("betas", (0.9, 0.999))
        if not isinstance(betas, list | tuple) or len(betas) != 2 or not all(_within(beta, 0, 1) for beta in betas):
            raise ValueError(f"hyper-parameter betas: read {betas!r}; two numbers from 0 to below 1 are wanted")
        clip_norm = hp.get("clip_norm")
        if clip_norm is not None and (not _within(clip_norm, 0, math.inf) or clip_norm == 0):
            raise ValueError(f"hyper-parameter clip_norm: read {clip_norm!r}; a number above 0 is wanted")
        ema_decay = hp.get("ema_decay")
        if ema_decay is not None and not _within(ema_decay, 0, 1):
            raise ValueError(f"hyper-parameter ema_decay: read {ema_decay!r}; a number from 0 to below 1 is wanted")
        nesterov = hp.get("nesterov", False)
        if nesterov not in (True, False):
            raise ValueError(f"hyper-parameter nesterov: read {nesterov!r}; true or false is wanted")
        if nesterov and momentum == 0:
            raise ValueError("hyper-parameter nesterov: needs momentum above 0")
        return cls(
            batch_size=batch_size,
            micro_batch_size=None if micro is None else _count("micro_batch_size", micro),
            optimizer=optimizer,
            lr=_number(hp, "lr", DEFAULT_LR[optimizer], 0.0, math.inf),
            momentum=momentum,
            nesterov=bool(nesterov),
            weight_decay=_number(hp, "weight_decay", weight_decay_default, 0.0, math.inf),
            betas=(float(betas[0]), float(betas[1])),
            eps=_number(hp, "eps", 1e-8, 0.0, math.inf),
            clip_norm=clip_norm,
            ema_decay=ema_decay,
            schedule=_one_of(hp, "schedule", SCHEDULES, "constant"),
            warmup_epochs=_number(hp, "warmup_epochs", 0.0, 0.0, math.inf),
            step_epochs=_number(hp, "step_epochs", 10.0, 1e-9, math.inf),
            gamma=_number(hp, "gamma", 0.1, 0.0, math.inf),
        )

    def scaled(self, factor: float, warmup_epochs: float | None = None, growth: float = 1.0) -> OptimizerSettings:
        """Return the settings with the learning rate times `factor`, and with this warm-up if one is given.

        growth: ratio of the new batch to the old one, the power of `ema_decay`, so that the average reaches as far back
        (Busbridge et al., 2023).
        """
        warmup = self.warmup_epochs if warmup_epochs is None else warmup_epochs
        decay = None if self.ema_decay is None else self.ema_decay**growth
        later = tuple((epoch, settings.scaled(factor, warmup_epochs, growth)) for epoch, settings in self.later)
        return replace(self, lr=self.lr * factor, warmup_epochs=warmup, ema_decay=decay, later=later)

    def in_epoch(self, epoch: int) -> OptimizerSettings:
        """Return the settings of the steps of an epoch, counted from 1."""
        return next((settings for first, settings in reversed(self.later) if first <= epoch), self)

    def parts_of(self, num_samples: int) -> list[int]:
        """Return the samples of each part in which the model takes a batch of so many; larger parts first."""
        if self.micro_batch_size is None:
            return [num_samples]
        return parts(num_samples, math.ceil(num_samples / self.micro_batch_size))

    @property
    def is_plain_sgd(self) -> bool:
        """Whether a step moves a parameter by nothing but its gradient."""
        return self.optimizer == "sgd" and not self.momentum and not self.weight_decay

    @property
    def num_buffers(self) -> int:
        """Number of tensors that the optimizer keeps for each parameter."""
        match self.optimizer:
            case "sgd":
                return int(self.momentum > 0)
            case "adam" | "adamw":
                return 2

    def lr_at(self, step: int, steps_per_epoch: int, epochs: int) -> float:
        """Return the learning rate of optimizer step `step`, counted from 0 over the whole training.

        Warm-up rises linearly and reaches `lr` at its last step; cosine then falls to 0 after the last step (Loshchilov
        and Hutter, 2017, without restarts); step drops by `gamma` every `step_epochs`.
        """
        warmup = round(self.warmup_epochs * steps_per_epoch)
        if step < warmup:
            return self.lr * (step + 1) / warmup
        match self.schedule:
            case "cosine":
                progress = (step - warmup) / max(1, steps_per_epoch * epochs - warmup)
                return self.lr * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
            case "step":
                return self.lr * self.gamma ** math.floor(step / steps_per_epoch / self.step_epochs + ROUNDING)
        return self.lr

    def lr_at_each(self, steps: np.ndarray, steps_per_epoch: int, epochs: int) -> np.ndarray:
        """Return `lr_at` of several steps, float64 (steps,)."""
        if self.schedule == "constant" and not self.warmup_epochs:
            return np.full(len(steps), self.lr)
        return np.array([self.lr_at(step, steps_per_epoch, epochs) for step in steps.tolist()])


def _one_of(hp: Mapping[str, Any], name: str, allowed: tuple[Any, ...], default: Any) -> Any:
    value = hp.get(name, default)
    if value not in allowed:
        raise ValueError(f"hyper-parameter {name}: read {value!r}; allowed: {', '.join(allowed)}")
    return value


def _count(name: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"hyper-parameter {name}: read {value!r}; a whole number of at least 1 is wanted")
    return value


def _within(value: Any, low: float, high: float) -> bool:
    """Return whether a value is a number from `low` to below `high`."""
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value < high


def _number(hp: Mapping[str, Any], name: str, default: float, low: float, high: float) -> float:
    value = hp.get(name, default)
    if isinstance(value, float) and math.isinf(value):
        raise ValueError(f"hyper-parameter {name}: read {value!r}; a finite number is wanted")
    if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
        raise ValueError(f"hyper-parameter {name}: read {value!r}; a number from {low:g} to {high:g} is wanted")
    return float(value)
