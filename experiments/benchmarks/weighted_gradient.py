"""Gradients of unequal shares, summed by weight, against one process on the whole batch; the plain mean beside it.

    python -m experiments.benchmarks.weighted_gradient

Each error is the L2 norm of the difference over that of the gradient. Goals: 1e-6 in float32, 1e-12 in float64. What
float32 itself costs is the error of one process on the whole batch against the same in float64.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from experiments.benchmarks import record
from experiments.benchmarks.networks import Convolutions
from experiments.benchmarks.ranks import on_ranks
from experiments.digits import Mlp
from raygpu.training.base import Settings
from raygpu.training.parallel import OneRank, Parallel, Ranks
from raygpu.training.torch_parallel import TorchParallel
from raygpu.trials import Trial

BATCH = 100
CASES: dict[str, tuple[float, ...]] = {"60/40": (60, 40), "5/3/2": (5, 3, 2)}
MODELS: dict[str, tuple[Any, dict[str, Any]]] = {
    "MLP": (Mlp, {"hidden": 128}),
    "CNN": (Convolutions, {"channels": 16, "layers": 3}),
}
DTYPES = {"float32": torch.float32, "float64": torch.float64}


class PlainMean(TorchParallel):
    """As DistributedDataParallel takes it: each rank's mean gradient counts alike."""

    def _weigh_and_sum(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        self._weight = 1 / dist.get_world_size()
        return super()._weigh_and_sum(bucket)


def gradient(ranks: Ranks, kind: type[TorchParallel], model: str, ratios: tuple[float, ...], dtype: str) -> Any:
    """Of the first batch, as one vector."""
    experiment, hp = MODELS[model]
    settings = Settings(epochs=1, threads=1, precision="float32", folder=Path())
    parallel = Parallel(BATCH, ratios=ratios)
    own = experiment()
    training = kind(own, own.data(), Trial("t0000", 0, hp), settings, parallel, ranks, dtype=DTYPES[dtype])
    taken: list[torch.Tensor] = []

    def take(lr: float) -> None:
        taken.extend(p.grad.double().flatten() for p in training.solo.optimizer.parameters if p.grad is not None)

    training.solo.optimizer.step = take
    training.take_steps(1)
    return torch.cat(taken)


def main() -> None:
    rows = []
    for model in MODELS:
        for name, shares in CASES.items():
            for dtype in DTYPES:
                alone = gradient(OneRank(), TorchParallel, model, (), dtype)
                row: dict[str, Any] = {"model": model, "shares": name, "dtype": dtype}
                for label, kind in (("weighted", TorchParallel), ("plain mean", PlainMean)):
                    found = on_ranks(len(shares), gradient, kind, model, shares, dtype)
                    row[label] = max(float((own - alone).norm() / alone.norm()) for own in found)
                exact = gradient(OneRank(), TorchParallel, model, (), "float64")
                row["one process, against float64"] = float((alone - exact).norm() / exact.norm())
                rows.append(row)
                print(row, flush=True)
    ratios = {}
    for model in MODELS:
        for dtype in DTYPES:
            chosen = [row for row in rows if (row["model"], row["dtype"]) == (model, dtype)]
            for label in ("weighted", "plain mean", "one process, against float64"):
                ratios[f"{model}, {dtype}: largest error, {label}"] = max(row[label] for row in chosen)
    record.write("weighted_gradient", {"rows": rows, "ratios": ratios}, {"batch": BATCH})


if __name__ == "__main__":
    main()
