"""Every architecture of the example is a network, and trials of one architecture share an array."""

from __future__ import annotations

from pathlib import Path

import pytest

from raygpu.config import SweepConfig, load
from raygpu.search.architectures import architectures
from raygpu.search.space import parse, random_trials

torch = pytest.importorskip("torch")

FILE = Path(__file__).parents[2] / "conf" / "sweep" / "digits_architectures.toml"


def test_fused_but_for_those_that_are_the_only_ones_of_their_kind() -> None:
    from experiments.digits_architectures import Network
    from raygpu.search.signature import ITS_OWN
    from raygpu.training.fused.groups import TorchGrouper

    config = load(FILE, {}, SweepConfig)
    space = parse(config.space, config.search.algorithm)
    experiment = Network()
    trials = random_trials(space, 24, 0)
    for trial in trials:
        outputs = experiment.model(trial.hyperparameters)(torch.zeros(4, 64))
        assert outputs.shape == (4, 10)
    groups = TorchGrouper(experiment, experiment.data()).groups(trials)
    assert {group.reason for group in groups} == {None, ITS_OWN}
    found = architectures(space, groups)
    assert found is not None
    assert found.names == ("layers", "width1", "width2", "width3")
    assert found.possible == 14
    assert found.num_signatures == len(groups) > 8
