"""Keras models with parts on several logical devices: the numbers of one device, and where each part runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

TURNS = """
import gzip, json
from pathlib import Path
from experiments.reviews import SHAPE, KerasTwoTowers
from raygpu.planning.placements import alternating
from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from raygpu.training.keras.placement import KerasPlaced, part_names, placed_devices
from raygpu.training.keras.quiet_import import tf

experiment = KerasTwoTowers()
splits = experiment.synthetic().part(0.1, 0)
hp = {"optimizer": "adam", "lr": 0.01, "embedding": 4, "filters": 8, "latent": 4, "batch_size": 16}
trial = Trial("t0000", 3, hp)
devices = placed_devices(2, None)
part_names(experiment, splits, trial)  # names are those of the first model, however many there were before
known, units = part_names(experiment, splits, trial)
found = {"devices": [device.name for device in tf.config.list_logical_devices("CPU")], "known": known, "units": units}
towers = {"user_tower": 0, "item_tower": 1}
inner = {"item_tower": 1, "item_tower/dense_1": 0}
for name, parts in {"one": {}, "towers": towers, "inner": inner, "alternating": alternating(units, 2)}.items():
    training = KerasPlaced(experiment, splits, trial, Settings(2, 1, "float32", Path()), parts, devices)
    turn = training.turn(profiled=True)
    events = json.loads(gzip.decompress(turn.trace))["traceEvents"]
    found[name] = {
        "loss": turn.loss,
        "memory": turn.memory_gib,
        "copies": turn.profile.num_copies,
        "bytes": turn.profile.copied_bytes,
        "share": turn.profile.copy_share,
        "operations": [operation.name for operation in turn.profile.operations],
        "sent": [event["name"] for event in events if event["name"].endswith(":_Send")],
        "variables": {variable.path: variable.value.device[-5:] for variable in training.model.variables},
        "slots": {variable.path: variable.value.device[-5:] for variable in training.optimizer.variables},
    }
    training.close()
print(json.dumps(found))
"""
WORDS, BATCH, LATENT = 128, 16, 4


@pytest.fixture(scope="module")
def turns() -> dict[str, Any]:
    """A turn of each placement. TensorFlow's devices stay as a process has first made them, so it is one of its own."""
    pytest.importorskip("tensorflow")
    done = subprocess.run(
        [sys.executable, "-c", TURNS], env=os.environ | {"PYTHONPATH": os.getcwd()}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_layers_are_named_by_their_paths(turns: dict[str, Any]) -> None:
    assert len(turns["devices"]) == 2
    assert turns["known"][:2] == ["user_tower", "user_tower/embedding"]
    assert "item_tower" not in turns["units"]
    assert {"item_tower/dense_1", "join"} <= set(turns["units"])


def test_all_placements_train_to_the_same_loss(turns: dict[str, Any]) -> None:
    for name in ("towers", "inner", "alternating"):
        assert turns[name]["loss"] == pytest.approx(turns["one"]["loss"], rel=1e-6)


def test_variables_and_the_optimizers_are_on_the_device_of_their_layer(turns: dict[str, Any]) -> None:
    for path, device in turns["towers"]["variables"].items():
        assert device == ("CPU:1" if path.startswith("item_tower") else "CPU:0"), path
    for path, device in turns["towers"]["slots"].items():
        assert device == ("CPU:1" if "item_tower" in path else "CPU:0"), path
    assert turns["inner"]["variables"]["item_tower/dense_1/kernel"] == "CPU:0"
    assert turns["inner"]["variables"]["item_tower/conv1d_1/kernel"] == "CPU:1"


def test_only_words_outputs_and_gradients_are_copied_not_variables(turns: dict[str, Any]) -> None:
    """TensorFlow by itself would copy the tower's variables to device 0, for the gradient and for the optimizer."""
    own = BATCH * (WORDS * 4 + 2 * LATENT * 4)
    assert own <= turns["towers"]["bytes"] < own + 200, "beside them, scalars of the optimizer"
    assert not [name for name in turns["towers"]["sent"] if "item_tower" in name and "ReadVariableOp" in name]
    assert turns["alternating"]["bytes"] > 10 * own


def test_one_device_copies_nothing(turns: dict[str, Any]) -> None:
    assert (turns["one"]["copies"], turns["one"]["bytes"], turns["one"]["share"]) == (0, 0, 0)
    assert 0 < turns["towers"]["share"] < 1
    assert any("Conv2D" in name for name in turns["one"]["operations"])


def test_memory_moves_with_the_layers(turns: dict[str, Any]) -> None:
    one, towers = turns["one"]["memory"], turns["towers"]["memory"]
    assert one[1] == 0 < towers[1]
    assert sum(one) == pytest.approx(sum(towers))
