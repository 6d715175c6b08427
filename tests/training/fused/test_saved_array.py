"""Members of a saved array go on as trials alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from raygpu.training.fused.saved_array import save_saved_members
from raygpu.training.torch.models import CHECKPOINT
from tests.models import MODELS
from tests.training.fused.alike import ADAM, EXACT, SGD, difference, members, new_array, run, solo


@pytest.mark.parametrize(
    ("name", "optimizer", "own"),
    [("cnn", "sgd", SGD), ("mlp", "sgd", SGD), ("mlp", "adam", ADAM), ("text", "adamw", ADAM)],
    ids=["cnn-sgd", "mlp-sgd", "mlp-adam", "text-adamw"],
)
def test_a_member_goes_on_alone(name: str, optimizer: str, own: list[dict[str, Any]], tmp_path: Path) -> None:
    """Its optimizer has the buffers of its own settings: none for SGD without momentum, whatever its neighbours use."""
    kind, shape = MODELS[name]
    experiment = kind()
    trials = members(shape, own, optimizer=optimizer)
    array = new_array(experiment, trials, width=3)
    run(array, 2)
    array.save(tmp_path)
    for trial in trials:
        save_saved_members(tmp_path, {trial.trial_id: tmp_path})
        taken_out = torch.load(tmp_path / CHECKPOINT, weights_only=True)
        array.save_member(trial.trial_id, tmp_path)
        saved = torch.load(tmp_path / CHECKPOINT, weights_only=True)
        assert str(taken_out) == str(saved)
        reference = solo(experiment, trial, torch.float64)
        results = run(reference)
        assert list(saved["model"]) == list(reference.model.state_dict())
        experiment.model(trial.hyperparameters).load_state_dict(saved["model"], strict=True)
        training = solo(experiment, trial, torch.float64)
        training.load(tmp_path)
        assert training.epoch == 2
        assert [result.metrics for result in run(training, 3)] == [
            pytest.approx(result.metrics, rel=1e-6) for result in results[2:]
        ]
        assert difference(training.model.state_dict(), reference.model.state_dict()) <= EXACT
        assert training.run_epoch() is None
