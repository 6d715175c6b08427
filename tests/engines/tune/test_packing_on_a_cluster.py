"""Two simulated nodes with two GPUs each: 20 trials of 0.18 run at once, at most five on a GPU.

pytest -m slow tests/engines/tune/test_packing_on_a_cluster.py
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from raygpu import sweep
from raygpu.config import SweepConfig


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_twenty_trials_meet(tmp_path: Path) -> None:
    from ray.cluster_utils import Cluster

    meeting = tmp_path / "meeting"
    meeting.mkdir()
    node: dict[str, Any] = {"num_cpus": 4, "num_gpus": 2, "object_store_memory": 100 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    try:
        cluster.add_node(**node)
        cluster.wait_for_nodes()
        config = SweepConfig.model_validate(
            {
                "name": "meet",
                "experiment": "tests.cases:meet",
                "metric": "score",
                "search": {"algorithm": "grid"},
                "space": {"x": {"grid_search": list(range(20))}, "folder": str(meeting), "num": 20},
                "gpu": {"fraction": 0.18},
                "runs_dir": str(tmp_path / "runs"),
                "tracking": {"enabled": False},
                "cluster": {"address": cluster.address},
            }
        )
        result = sweep.run(config)
    finally:
        cluster.shutdown()
    assert result.summary["completed"] == 20
    assert result.summary["plan"]["trials_per_gpu"] == 5
    assert len(result.summary["gpus"]) == 4
    per_gpu = Counter(path.name.partition("-")[2] for path in meeting.iterdir())
    assert len(per_gpu) == 4
    assert set(per_gpu.values()) == {5}
