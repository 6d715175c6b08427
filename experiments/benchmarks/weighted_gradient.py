"""Gradients of unequal shares, summed by weight, against one process on the whole batch; the plain mean beside it.

    python -m experiments.benchmarks.weighted_gradient

Each error is the L2 norm of the difference over that of the gradient. Goals: 1e-6 in float32, 1e-12 in float64.
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
CASES: dict[str, tuple[float, ...]] = {"60/40": (60, 40), "5/3/2": (5, 3, 2), "1/99": (1, 99)}
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
                rows.append(row)
                print(row, flush=True)
    worst = {dtype: max(row["weighted"] for row in rows if row["dtype"] == dtype) for dtype in DTYPES}
    plain = {dtype: min(row["plain mean"] for row in rows if row["dtype"] == dtype) for dtype in DTYPES}
    ratios = {f"largest error, weighted, {dtype}": value for dtype, value in worst.items()}
    ratios.update({f"smallest error, plain mean, {dtype}": value for dtype, value in plain.items()})
    record.write("weighted_gradient", {"rows": rows, "ratios": ratios}, {"batch": BATCH})


if __name__ == "__main__":
    main()
