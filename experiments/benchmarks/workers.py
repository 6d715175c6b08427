"""Time of an epoch by the number of workers, on one node and on two: what a study of mirrored strategies prints.

    python -m experiments.benchmarks.workers [--frameworks torch,keras] [--workers 1,2,4] [--seconds 8]

Nodes are Ray nodes of a local cluster, each with one simulated GPU. Devices are simulated by waiting, 4000 samples/s
each, beside a small network; so a speed-up is what sending gradients and Ray leave of a perfect one. Once at a fixed
global batch, whose shares shrink with the number of workers, and once at a fixed batch of each device.
"""

from __future__ import annotations

import argparse
import itertools
import os
import tempfile
from typing import Any

from experiments.benchmarks import record
from experiments.benchmarks.production import BATCH, HP, NETWORKS, Listener
from raygpu import train
from raygpu.config import TrainConfig
from raygpu.engines.cluster import ray_environment

SAMPLES = 45_984
"""Of an epoch."""


def measured(address: str, folder: str, framework: str, workers: int, fixed: str, seconds: float) -> dict[str, Any]:
    whole = 4 * BATCH if fixed == "global batch" else workers * BATCH
    config = TrainConfig.model_validate(
        {
            "experiment": f"experiments.benchmarks.networks:{NETWORKS[framework]}",
            "epochs": 1000,
            "metric": "accuracy",
            "workers": workers,
            "global_batch": whole,
            "runs_dir": f"{folder}/runs",
            "tracking": {"enabled": False},
            "cluster": {"address": address},
            "hyperparameters": HP["simulated"],
        }
    )
    listener = Listener(seconds)
    train.run(config, console=listener)
    rate = listener.rate()
    return {"global batch": whole, "samples/s": round(rate), "seconds an epoch": round(SAMPLES / rate, 2)}


def table(rows: list[dict[str, Any]]) -> list[str]:
    lines = ["framework  fixed         nodes  workers  batch  s an epoch  samples/s  speed-up  efficiency"]
    for row in rows:
        cells = [f"{row['framework']:<9}", f"{row['fixed']:<12}", f"{row['nodes']:>5}", f"{row['workers']:>7}"]
        cells += [f"{row['global batch']:>5}", f"{row['seconds an epoch']:>10.1f}", f"{row['samples/s']:>9,}"]
        cells += [f"{row['speed-up']:>7.2f}x", f"{row['speed-up'] / row['workers']:>10.0%}"]
        lines.append("  ".join([*cells, *(["a slow-down"] if row["speed-up"] < 1 else [])]))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--frameworks", default="torch,keras")
    parser.add_argument("--workers", default="1,2,4")
    parser.add_argument("--seconds", type=float, default=8.0)
    arguments = parser.parse_args()
    ray_environment.prepare()
    os.environ["RAY_AUTH_MODE"] = "disabled"  # of this cluster, which ends with this process
    from ray.cluster_utils import Cluster

    rows: list[dict[str, Any]] = []
    counts = [int(word) for word in arguments.workers.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        for nodes in (1, 2):
            node = {"num_cpus": 1, "num_gpus": 1}  # by which every worker takes one thread, however many there are
            cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
            for _ in range(nodes - 1):
                cluster.add_node(**node)
            frameworks = arguments.frameworks.split(",")
            for framework, fixed in itertools.product(frameworks, ("global batch", "device batch")):
                for workers in counts:
                    if workers < nodes:
                        continue
                    found = measured(cluster.address, folder, framework, workers, fixed, arguments.seconds)
                    rows.append({"framework": framework, "fixed": fixed, "nodes": nodes, "workers": workers, **found})
                    one = next(r for r in rows if (r["framework"], r["fixed"], r["workers"]) == (framework, fixed, 1))
                    rows[-1]["speed-up"] = round(rows[-1]["samples/s"] / one["samples/s"], 3)
                    print(rows[-1], flush=True)
            cluster.shutdown()
    print("\n".join(table(rows)))
    ratios = {
        f"{row['framework']}, fixed {row['fixed']}, {row['workers']} workers, nodes: {row['nodes']}": row["speed-up"]
        for row in rows
        if row["workers"] > 1
    }
    record.write("workers", {"rows": rows, "ratios": ratios}, vars(arguments))


if __name__ == "__main__":
    main()
