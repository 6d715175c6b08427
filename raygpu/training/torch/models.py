"""Torch models: made with a trial's seed, loaded from a checkpoint, and asked for predictions."""

from __future__ import annotations

import codecs
import copy
import errno
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from raygpu.config.generators import random_state_kept
from raygpu.errors import BadInput, one_line
from raygpu.experiment import Arrays, Experiment
from raygpu.search.hyperparameters import Hyperparameters
from raygpu.search.trials import Trial
from raygpu.training.base import build_model
from raygpu.training.own_copy import own_copy
from raygpu.training.torch.data import in_precision, rows, tensors
from raygpu.training.torch.experiment import forward
from raygpu.training.torch.seeding import seed_all
from raygpu.training.torch.training_mode import note_modes, set_training

CHECKPOINT = "checkpoint.pt"
PLAIN_TYPES: list[Any] = [
    *(np.dtype, np.ndarray, codecs.encode, *{type(np.dtype(kind)) for kind in "?bBhHiIlLqQefdgFD"}),
    *(np.float64(0).__reduce__()[0], np.zeros(0).__reduce__()[0]),
]
"""Types of values beside torch's own that a checkpoint may have: those of NumPy's numbers and arrays."""
READ_BYTES = 2**22
GIVEN = "_raygpu_given"
"""Attribute of parameters that `model(hp)` has returned once, a sum over the bits of their values, and of modules, with
such sums of their buffers by name."""


def epoch_seed(seed: int, epoch: int) -> int:
    """Return the seed of the random numbers (dropout, augmentation) of one epoch of a trial with this seed."""
    return seed * 1_000_003 + epoch


def initial_model(experiment: Experiment, hp: Mapping[str, Any], seed: int) -> nn.Module:
    """Make the model with initial parameters by the trial's seed, on the CPU: the same on every device.

    Raises TypeError if `model(hp)` is no torch.nn.Module, ValueError if it returns a parameter of an earlier model
    again that is trained, or a parameter or buffer that has changed since.
    """
    seed_all(seed)
    model = build_model(experiment, hp)
    if not isinstance(model, nn.Module):
        raise TypeError(f"model(hp) returned {type(model).__name__}; a torch.nn.Module is wanted")
    for name, parameter in model.named_parameters():
        earlier_bits, bits = getattr(parameter, GIVEN, None), _sum_of_bits(parameter)
        if earlier_bits is not None and (parameter.requires_grad or earlier_bits != bits):
            raise _given_again(f"parameter {name}", changed=earlier_bits != bits)
        setattr(parameter, GIVEN, bits)
    for prefix, module in model.named_modules():
        earlier_sums = getattr(module, GIVEN, {})
        sums = {name: _sum_of_bits(buffer) for name, buffer in module.named_buffers(recurse=False)}
        for name in sums.keys() & earlier_sums.keys():
            if sums[name] != earlier_sums[name]:
                raise _given_again("buffer " + f"{prefix}.{name}".removeprefix("."), changed=True)
        if sums:
            setattr(module, GIVEN, sums)
    note_modes(model)
    return model


def _given_again(what: str, *, changed: bool) -> ValueError:
    return ValueError(
        f"model(hp) returned the {what} again, which an earlier model has{' and has changed' * changed}: make new ones,"
        " or keep it in an attribute of the experiment, of which each trial has a copy"
    )


def _sum_of_bits(tensor: torch.Tensor) -> int:
    """Return a sum over a tensor's memory, the same on every device; 0 of a tensor without memory of its own."""
    try:
        octets = tensor.detach().reshape(-1).view(torch.uint8)
        if len(octets) % 8 or octets.storage_offset() % 8:
            return int(octets.sum())
        return int(octets.view(torch.int64).sum())
    except (RuntimeError, TypeError, ValueError):  # lazy, on the meta device, sparse
        return 0


def cast_model(model: nn.Module, dtype: torch.dtype | None) -> nn.Module:
    """Return the model with its parameters and buffers in another dtype; None leaves them unchanged.

    What trains is converted in place. The rest is copied, as an experiment may give it to all of its models.
    """
    if dtype is None or all(in_precision(each, dtype) is each for each in (*model.parameters(), *model.buffers())):
        return model
    model = _with_own_constants(model, {})
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = in_precision(tensor.data, dtype)
    return model


def _with_own_constants(module: nn.Module, memo: dict[int, Any]) -> nn.Module:
    """Return a module with copies of its submodules in which nothing trains, of frozen parameters and of buffers."""
    parameters, members = list(module.parameters()), [*module.parameters(recurse=False), *module.buffers(recurse=False)]
    if not any(parameter.requires_grad for parameter in parameters) and (parameters or members):
        return copy.deepcopy(module, memo)
    for registered in (module._parameters, module._buffers):
        for name, tensor in registered.items():
            if tensor is not None and not tensor.requires_grad:
                registered[name] = copy.deepcopy(tensor, memo)
    for name, child in module._modules.items():
        module._modules[name] = None if child is None else _with_own_constants(child, memo)
    return module


def has_batch_norm(model: nn.Module) -> bool:
    """Return whether a layer normalises by the batch in training; one kept in evaluation mode does not."""
    set_training(model)
    return any(isinstance(module, _BatchNorm) and module.training for module in model.modules())


def trained_model(experiment: Experiment, trial: Trial, checkpoint: Path) -> nn.Module:
    """Load the model of a trial's checkpoint, in evaluation mode, on the CPU.

    What `model(hp)` draws and no checkpoint holds, as a fixed permutation, is that of the trial's seed.
    """
    with random_state_kept():
        seed_all(trial.seed)
        model: nn.Module = build_model(own_copy(experiment), Hyperparameters(trial.hyperparameters))
    model.load_state_dict(load_checkpoint(checkpoint)["model"])
    model.eval()
    return model


def load_checkpoint(folder: Path, device: torch.device | str = "cpu", *, file: str = CHECKPOINT, **options: Any) -> Any:
    """Load a checkpoint's file, which runs no code of it. options: of `torch.load`.

    NumPy's numbers and arrays are allowed, as a scheduler's state may have them. Raises UnpicklingError for others, and
    BadInput for a file that is not as it was written.
    """
    _require_whole(folder / file)
    with torch.serialization.safe_globals(PLAIN_TYPES):
        return torch.load(folder / file, map_location=device, weights_only=True, **options)


def _require_whole(path: Path) -> None:
    """Raise BadInput if a checkpoint is damaged: `torch.load` does not compare the checksums of its parts. A file that
    was written without checksums, as `set_crc32_options` allows, passes."""
    try:
        with zipfile.ZipFile(path) as file:
            has_checksums = any(part.CRC for part in file.infolist())
            for part in file.infolist() if has_checksums else ():
                with file.open(part) as opened:
                    while opened.read(READ_BYTES):
                        pass
    except OSError as error:
        if error.errno != errno.EINVAL:  # of a place in the file that cannot be
            raise
        raise BadInput(f"{path}: is damaged") from error
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
        raise BadInput(f"{path}: is damaged ({one_line(error)})") from error


def predict(experiment: Experiment, trial: Trial, checkpoint: Path, inputs: Arrays) -> tuple[str, list[np.ndarray]]:
    """Return a checkpoint's architecture as text, and its outputs on `inputs`, one array for each sample; on the
    CPU."""
    model = trained_model(experiment, trial, checkpoint)
    with torch.no_grad():
        outputs = forward(model, rows(tensors(inputs), slice(None)))
    if not isinstance(outputs, torch.Tensor):
        return str(model), []
    return str(model), list(outputs.float().numpy())


def default_device() -> torch.device:
    """Return the GPU that this process sees, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
