"""Keras trials on logical devices of one process give what they give alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

SCRIPT = """
import sys
from pathlib import Path
from experiments.digits import KerasMlp, digits
from raygpu.training.base import Settings
from raygpu.training.keras.solo import KerasSolo
from raygpu.training.keras.split import KerasSplit
from raygpu.training.keras.quiet_import import tf
from raygpu.search.trials import Trial

settings = Settings(2, 1, "float32", Path())
splits = digits().part(0.2, 0)
trials = [Trial(f"t{i}", i, {"hidden": 8 + i, "lr": 0.1, "batch_size": 32}) for i in range(3)]
array = KerasSplit(KerasMlp(), splits, trials, settings, width=2)
assert len(tf.config.list_logical_devices("CPU")) == 2
places = {array._members[t.trial_id][0].model.weights[0].value.device[-5:] for t in trials}
assert places == {"CPU:0", "CPU:1"}, places
first = array.run_epoch()
folder = Path(sys.argv[1])
array.save(folder)
array.drop(["t1"])
second = array.run_epoch()
assert all(result.train_s > 0 < result.validate_s for result in first.values())
assert set(first) == {"t0", "t1", "t2"} and set(second) == {"t0", "t2"} and array.epoch == 2
assert array.run_epoch() is None
array.close()
for trial in trials:
    solo = KerasSolo(KerasMlp(), splits, trial, settings)
    alone = solo.run_epoch()
    for name, value in alone.metrics.items():
        assert abs(first[trial.trial_id].metrics[name] - value) < 1e-5, (trial.trial_id, name)
again = KerasSplit(KerasMlp(), splits, trials, settings, width=2)
again.load(folder)
assert again.epoch == 1
resumed = again.run_epoch()
for name in ("t0", "t2"):
    assert abs(resumed[name].metrics["validation/loss"] - second[name].metrics["validation/loss"]) < 1e-5
again.close()
print("equal")
"""


@pytest.mark.timeout(300)
def test_members_equal_trials_alone(tmp_path: Path) -> None:
    """In a process of its own: TensorFlow splits its device once."""
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "equal", done.stderr[-2000:]
