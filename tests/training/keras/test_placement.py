"""Keras models with parts on several logical devices: the numbers of one device, and where each part runs."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from raygpu.planning.model_placements import alternating
from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from tests.ranks import on_keras_ranks

WORDS, BATCH, LATENT = 128, 16, 4


def each_placement(ranks: Any) -> dict[str, Any]:
    """Return the losses, memory, copies and devices of a turn of each placement."""
    from experiments.reviews import KerasTwoTowers
    from raygpu.training.keras.placement import KerasPlaced, part_names, placed_devices
    from raygpu.training.keras.quiet_import import tf

    experiment = KerasTwoTowers()
    splits = experiment.synthetic().part(0.1, 0)
    hp = {"optimizer": "adam", "lr": 0.01, "embedding": 4, "filters": 8, "latent": LATENT, "batch_size": BATCH}
    trial = Trial("t0000", 3, hp)
    devices = placed_devices(2, None)
    part_names(experiment, splits, trial)  # names are those of the first model, however many there were before
    known, units = part_names(experiment, splits, trial)
    names = [device.name for device in tf.config.list_logical_devices("CPU")]
    found: dict[str, Any] = {"devices": names, "known": known, "units": units}
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
    return found


@pytest.fixture(scope="module")
def turns() -> dict[str, Any]:
    """A turn of each placement, in a process of two devices: they stay as it has first made them."""
    pytest.importorskip("tensorflow")
    found: dict[str, Any] = on_keras_ranks(1, each_placement, local=2)[0]
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
