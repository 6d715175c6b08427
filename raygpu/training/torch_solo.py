"""One torch model trained alone: the loop of process mode, and what a fused member has to equal."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn

from raygpu.batching import batch_bounds, epoch_order, num_batches
from raygpu.experiment import Arrays, Experiment, Hyperparameters, Splits, named, num_samples
from raygpu.training.base import Settings
from raygpu.training.hyperparameters import OptimizerSettings, batch_size
from raygpu.training.optimizers import Optimizer
from raygpu.trials import EpochResult, Trial

Tensors: TypeAlias = "torch.Tensor | dict[str, torch.Tensor]"
CHECKPOINT = "checkpoint.pt"
# Large enough to keep a device busy, small enough that activations of a whole split are never held at once.
EVALUATION_BATCH = 1024


class TorchSolo:
    """A `Training` of one trial of a `TorchExperiment`.

    device: where to train; by default the GPU that this process sees, else the CPU.
    """

    def __init__(
        self,
        experiment: Experiment,
        splits: Splits,
        trial: Trial,
        settings: Settings,
        device: torch.device | None = None,
    ) -> None:
        if settings.epochs is None:
            raise ValueError("epochs: not given; a TorchExperiment trains for a fixed number of epochs")
        self.experiment = experiment
        self.hp = Hyperparameters(trial.hyperparameters)
        self.seed = trial.seed
        self.epochs = settings.epochs
        self.device = device or torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._autocast = _precision(settings.precision, self.device)
        torch.set_num_threads(settings.threads)
        self.home = _home(splits, self.device)
        self.inputs, self.targets, self.validation = _on_device(splits, self.home)
        self.num_train = splits.num_train
        self.batch_size = min(batch_size(self.hp), self.num_train)
        self.steps_per_epoch = num_batches(self.num_train, self.batch_size)
        self.settings = OptimizerSettings.of(self.hp)
        self.model = initial_model(experiment, self.hp, trial.seed).to(self.device)
        self.optimizer = Optimizer(self.settings, self.model.parameters())
        self.epoch = 0

    def run_epoch(self) -> EpochResult | None:
        """Train and evaluate the next epoch; None after the last one."""
        if self.epoch >= self.epochs:
            return None
        self.epoch += 1
        # Dropout and augmentation: their own stream for each epoch, so that going on needs no saved random state.
        torch.manual_seed(self.seed * 1_000_003 + self.epoch)
        started = time.perf_counter()
        train_loss = self._train()
        train_s = time.perf_counter() - started
        metrics = {"train/loss": train_loss}
        metrics |= {f"validation/{name}": value for name, value in self._evaluate().items()}
        return EpochResult(self.epoch, metrics, num_samples=self.num_train, train_s=train_s)

    def _train(self) -> float:
        """One pass over the training data; its mean loss."""
        self.model.train()
        order = torch.from_numpy(epoch_order(self.seed, self.epoch, self.num_train)).to(self.home)
        loss_sum = torch.zeros((), device=self.device)
        first_step = (self.epoch - 1) * self.steps_per_epoch
        for number, (start, end) in enumerate(batch_bounds(self.num_train, self.batch_size)):
            rows = order[start:end]
            with self._autocast():
                inputs = self.experiment.augment(self._batch(self.inputs, rows), self.hp)
                loss = self.experiment.loss(forward(self.model, inputs), self._batch(self.targets, rows))
            loss.backward()
            if self.settings.clip_norm is not None:
                nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip_norm)
            self.optimizer.step(self.settings.lr_at(first_step + number, self.steps_per_epoch, self.epochs))
            loss_sum += loss.detach().float() * (end - start)
        return loss_sum.item() / self.num_train  # the epoch's only wait for the device

    @torch.no_grad()
    def _evaluate(self) -> dict[str, float]:
        """Means over the validation data, weighted by the size of each batch."""
        self.model.eval()
        sums: dict[str, torch.Tensor] = {}
        inputs, targets, count = self.validation
        for start in range(0, count, EVALUATION_BATCH):
            rows = slice(start, min(start + EVALUATION_BATCH, count))
            part = self._batch(targets, rows)
            with self._autocast():
                outputs = forward(self.model, self._batch(inputs, rows))
                values = {"loss": self.experiment.loss(outputs, part), **self.experiment.metrics(outputs, part)}
            for name, value in values.items():
                weighted = torch.as_tensor(value, device=self.device).detach().double() * (rows.stop - start)
                sums[name] = sums[name] + weighted if name in sums else weighted
        return {name: value.item() / count for name, value in sums.items()}

    def _batch(self, tensors: Tensors, rows: torch.Tensor | slice) -> Tensors:
        """The chosen samples, on the device."""
        return _moved(_rows(tensors, rows), self.device)

    def save(self, folder: Path) -> None:
        """`checkpoint.pt`: `model` and `optimizer` state dicts and the epoch, readable with `weights_only=True`."""
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "epoch": self.epoch}
        torch.save(state, folder / CHECKPOINT)

    def load(self, folder: Path) -> None:
        state = torch.load(folder / CHECKPOINT, map_location=self.device, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.epoch = state["epoch"]

    def close(self) -> None:
        """Give the device memory back to the next trial of this process."""
        del self.model, self.optimizer, self.inputs, self.targets, self.validation
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


def initial_model(experiment: Experiment, hp: Mapping[str, Any], seed: int) -> nn.Module:
    """The model with the parameters that the trial's seed gives, on the CPU: the same on every device."""
    torch.manual_seed(seed)
    model = experiment.model(hp)
    if not isinstance(model, nn.Module):
        raise TypeError(f"model(hp) returned {type(model).__name__}; a torch.nn.Module is wanted")
    return model


def forward(model: nn.Module, inputs: Tensors) -> Any:
    """One input as `model(x)`, named ones as `model(user=..., item=...)`."""
    return model(**inputs) if isinstance(inputs, dict) else model(inputs)


def predict(
    experiment: Experiment, hp: Mapping[str, Any], checkpoint: Path, inputs: Arrays
) -> tuple[str, list[np.ndarray]]:
    """A checkpoint's architecture as text, and its outputs on `inputs`, one array a sample, on the CPU."""
    model = experiment.model(Hyperparameters(hp))
    state = torch.load(checkpoint / CHECKPOINT, map_location="cpu", weights_only=True)
    model.load_state_dict(state["model"])
    model.eval()
    with torch.no_grad():
        outputs = forward(model, _tensors(inputs))
    if not isinstance(outputs, torch.Tensor):
        return str(model), []
    return str(model), list(outputs.float().numpy())


def metric_names(experiment: Experiment, hp: Mapping[str, Any], splits: Splits) -> list[str]:
    """What the experiment will report, found by evaluating a few samples on the CPU before anything is started."""
    model = initial_model(experiment, Hyperparameters(hp), seed=0)
    model.eval()
    few = slice(0, 4)
    with torch.no_grad():
        outputs = forward(model, _rows(_tensors(splits.validation_inputs), few))
        targets = _rows(_tensors(splits.validation_targets), few)
        experiment.loss(outputs, targets)
        names = ["loss", *experiment.metrics(outputs, targets)]
    return ["train/loss", *(f"validation/{name}" for name in names)]


def _precision(precision: str, device: torch.device) -> Any:
    """Set the precision of matrix products and convolutions here; a factory of the context of the forward pass."""
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision == "tf32"  # convolutions, where it is on by default
    if precision != "bf16":
        return nullcontext

    def autocast() -> AbstractContextManager[None]:
        return torch.autocast(device.type, dtype=torch.bfloat16)

    return autocast


def _home(splits: Splits, device: torch.device) -> torch.device:
    """Where the data lies: on the GPU if it fits in half of what is free there, otherwise in host memory."""
    if device.type != "cuda":
        return device
    parts = (splits.train_inputs, splits.train_targets, splits.validation_inputs, splits.validation_targets)
    num_bytes = sum(array.nbytes for part in parts for array in named(part).values())
    free, _ = torch.cuda.mem_get_info(device)
    return device if num_bytes <= free / 2 else torch.device("cpu")


def _on_device(splits: Splits, device: torch.device) -> tuple[Tensors, Tensors, tuple[Tensors, Tensors, int]]:
    """Training inputs, training targets, and (inputs, targets, count) of validation, on the device."""
    parts = [
        _moved(_tensors(part), device)
        for part in (splits.train_inputs, splits.train_targets, splits.validation_inputs, splits.validation_targets)
    ]
    return parts[0], parts[1], (parts[2], parts[3], num_samples(splits.validation_targets))


def _tensors(arrays: Arrays) -> Tensors:
    if isinstance(arrays, Mapping):
        return {name: _tensor(array) for name, array in arrays.items()}
    return _tensor(arrays)


def _tensor(array: np.ndarray) -> torch.Tensor:
    with warnings.catch_warnings():
        # Arrays from the object store are read-only and shared by all trials of a node; nothing here writes to them.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


def _moved(tensors: Tensors, device: torch.device) -> Tensors:
    if isinstance(tensors, dict):
        return {name: tensor.to(device) for name, tensor in tensors.items()}
    return tensors.to(device)


def _rows(tensors: Tensors, rows: torch.Tensor | slice) -> Tensors:
    if isinstance(tensors, dict):
        return {name: tensor[rows] for name, tensor in tensors.items()}
    return tensors[rows]
