"""Probe of one member's step before an array is made: its trained parameters and its random operators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from raygpu.config.generators import random_state_kept
from raygpu.experiment import Experiment
from raygpu.search.hyperparameters import Hyperparameters
from raygpu.training.base import NotAsAlone
from raygpu.training.deep_copy import deep_copy
from raygpu.training.fused.member_generators import DrawRecorder, Draws
from raygpu.training.fused.vmap_modes import MemberNorms, TiedExtremes
from raygpu.training.torch.data import TrainingData, copied, moved
from raygpu.training.torch.experiment import forward, training_loss
from raygpu.training.torch.reduction import objective
from raygpu.training.torch.training_mode import set_training

NUM_SAMPLES = 4
NO_PADDING = 2**64 - 1
"""Padding index -1 as a node of the graph holds it, in an unsigned number."""


@dataclass(frozen=True, slots=True)
class StepFacts:
    """Facts about the step of one model, which hold for all members of its array."""

    trained: frozenset[str]
    """Parameters that the loss depends on; an optimizer leaves the others unchanged, without weight decay too."""
    step_draws: Draws
    """Random operators of a step."""
    evaluation_draws: Draws
    """Random operators of an evaluation."""
    padded: bool
    """Whether a step looks up embeddings with a padding index."""
    has_extremes: bool
    """Whether a step takes the largest or smallest element or the median of a whole tensor."""
    has_norms: bool
    """Whether the step of the probe computes batch or instance norms."""


def step_facts(
    experiment: Experiment, hp: Hyperparameters, model: nn.Module, data: TrainingData, batch_size: int
) -> StepFacts:
    """Take the gradient of a few training samples and evaluate them, with a copy of the model on the CPU.

    Raises any exception of these, and NotAsAlone if the copy gets no gradient, as that of a scripted model.
    """
    probe = deep_copy(model)
    few = data.train_batch(1, torch.arange(min(NUM_SAMPLES, batch_size)))
    inputs, targets = (moved(part, torch.device("cpu")) for part in few)

    def step() -> torch.Tensor:
        """Take the gradient of the batch; return its loss."""
        set_training(probe)
        loss = objective(training_loss(experiment, probe, copied(inputs), copied(targets), hp))
        loss.backward()
        return loss

    @torch.no_grad()
    def evaluation() -> None:
        """Evaluate loss and metrics of the batch."""
        probe.eval()
        outputs, expected = forward(probe, copied(inputs)), copied(targets)
        experiment.loss(outputs, expected)
        experiment.metrics(outputs, expected)

    with random_state_kept():
        with TiedExtremes() as extremes, MemberNorms() as norms:
            loss = step()
        trained = frozenset(name for name, p in probe.named_parameters() if p.grad is not None)
        if not trained:
            raise NotAsAlone("no parameter of a copy of the model gets a gradient")
        draws = _draws(step), _draws(evaluation)
        return StepFacts(trained, *draws, _pads_embeddings(loss), extremes.has_met_one, norms.has_met_one)


def _draws(run: Callable[[], Any]) -> Draws:
    """Return the random operators of a run. Recording imports torch's compiler, which takes seconds: only if there are
    any."""
    before = torch.default_generator.get_state()
    run()
    if torch.equal(torch.default_generator.get_state(), before):
        return Draws()
    with DrawRecorder() as recorder:
        run()
    return recorder.draws


def _pads_embeddings(loss: torch.Tensor) -> bool:
    """Return whether a loss comes from embeddings with a padding index, by the nodes of its graph."""
    nodes, seen = [loss.grad_fn], set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if getattr(node, "_saved_padding_idx", NO_PADDING) not in (-1, NO_PADDING):
            return True
        nodes += [parent for parent, _ in node.next_functions]
    return False
