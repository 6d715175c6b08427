"""Two sweeps that share the GPU of a cluster: each as a process, as two people type them."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

FUNCTION = """
import json, time
from pathlib import Path

import raygpu

def train(config):
    begun = time.time()
    time.sleep(2)
    raygpu.report(score=config["x"])
    name = Path(config["marks"], f"{config['sweep']}-{config['x']}")
    name.write_text(json.dumps([begun, time.time()]))
"""
CONFIGURATION = """
experiment = "sharing:train"
metric = "score"

[search]
algorithm = "grid"

[gpu]
fraction = 0.5

[space]
x = {{ grid_search = [1, 2, 3] }}
sweep = "{name}"
marks = "{marks}"

[tracking]
enabled = false
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_sweeps_share_a_gpu_and_both_finish(ray_address: str, tmp_path: Path) -> None:
    (marks := tmp_path / "marks").mkdir()
    (tmp_path / "sharing.py").write_text(FUNCTION)
    words = [sys.executable, "-m", "raygpu.sweep", "--cluster.address", ray_address, "--cluster.max-gpus", "0.5"]
    sweeps = {}
    for name in ("ours", "theirs"):
        (tmp_path / f"{name}.toml").write_text(CONFIGURATION.format(name=name, marks=marks))
        sweeps[name] = subprocess.Popen(
            [*words, f"{name}.toml", "--name", name],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    for name, process in sweeps.items():
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0, output
        spans = sorted(json.loads(path.read_text()) for path in marks.glob(f"{name}-*"))
        assert len(spans) == 3
        assert all(end <= begin for (_, end), (begin, _) in pairwise(spans)), "half a GPU holds one trial of a half"
