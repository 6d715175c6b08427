"""Models of an array's members, each made by its own seed, and compared with the one whose code runs for all of them.

A dry run trains a few members only. A layer or a number that `model(hp)` draws rarely may be another one in a member
that it did not see.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import Any

import torch
from torch import nn

from raygpu.experiment import Experiment
from raygpu.search.hyperparameters import Hyperparameters
from raygpu.search.trials import Trial
from raygpu.training.base import NotAsAlone
from raygpu.training.own_copy import holds_parameters, own_copy
from raygpu.training.torch.models import cast_model, initial_model
from raygpu.training.torch.parameter_traits import hooked, sharing
from raygpu.training.torch.python_state import differing_attributes

DIFFERS = "{} differs between trials, as {} and {}: Python code of an array runs once for all its members"


class MemberModels:
    """Makes the models of an array.

    experiment: as the user gave it. code: the array's copy of it. hp: hyper-parameters of the first trial, whose reads
    are watched. dtype: of parameters and buffers. Raises any exception of `model(hp)`, and NotAsAlone, as `make` does.
    """

    def __init__(
        self,
        experiment: Experiment,
        code: Experiment,
        hp: Hyperparameters,
        trials: Sequence[Trial],
        dtype: torch.dtype | None,
    ) -> None:
        self._experiment, self._code, self._hp = experiment, code, hp
        self._trials, self._dtype = trials, dtype
        self.base = self._made(code, hp, trials[0].seed)
        """The model whose code runs for all members: made with the first member's seed."""
        self._keeps = holds_parameters(code)
        self._not_drawn: frozenset[str] = frozenset()
        """Paths of attributes in which two models of one seed differ, as a count of the models made so far."""

    def _made(self, code: Experiment, hp: Hyperparameters, seed: int) -> nn.Module:
        model = initial_model(code, hp, seed)
        _require_stackable(model)  # before a cast, which gives each tensor memory of its own
        return cast_model(model, self._dtype)

    def make(self, place: int) -> nn.Module:
        """Make the model of the member at this index, of the parameters that the experiment keeps with its own.

        The first member comes first. Raises NotAsAlone if the model has other modules, other parameters or buffers or
        other plain attributes than `base`.
        """
        trial = self._trials[place]
        code = own_copy(self._experiment) if self._keeps else self._code
        hp = self._hp if place == 0 else Hyperparameters(trial.hyperparameters)
        model = self._made(code, hp, trial.seed)
        path = _differing_part(self.base, model)
        if path is None:
            paths = differing_attributes(self.base, model)
            if place == 0:
                self._not_drawn = frozenset(paths)
            path = next((path for path in paths if path not in self._not_drawn), None)
        if path is not None:
            raise NotAsAlone(DIFFERS.format(path, self._trials[0].trial_id, trial.trial_id))
        return model


def _differing_part(base: nn.Module, model: nn.Module) -> str | None:
    """Return the first module, parameter or buffer that is not the same kind of one in another model; None without
    one."""
    for own, other in zip_longest(_forms(base), _forms(model)):
        if own != other:
            return str((own or other)[0])
    return None


def _forms(model: nn.Module) -> Iterator[tuple[Any, ...]]:
    """Yield name and form of each module, parameter and buffer. A class is known by its name: `model(hp)` may define
    one."""
    for name, module in model.named_modules():
        kind = type(module)
        yield f"the module {name}".rstrip(), kind.__module__, kind.__qualname__
    for name, parameter in model.named_parameters():
        yield f"the parameter {name}", parameter.shape, parameter.dtype, parameter.requires_grad
    for name, buffer in model.named_buffers():
        yield f"the buffer {name}", buffer.shape, buffer.dtype


def _require_stackable(model: nn.Module) -> None:
    """Raise NotAsAlone for a model that is not the same in an array: hooks do not run there, and tensors that share
    memory would come apart."""
    if (hook := hooked(model)) is not None:
        raise NotAsAlone(f"{hook}, which does not run in an array")
    if (shared := sharing(model)) is not None:
        raise NotAsAlone(shared)
