"""Gradients of unequal shares, summed by weight, against one process on the whole batch; the plain mean beside it.

In torch by DistributedDataParallel over gloo, in Keras by MultiWorkerMirroredStrategy.

    python -m experiments.benchmarks.weighted_gradient

Each error is the L2 norm of the difference over that of the gradient. Goals: 1e-6 in float32, 1e-12 in float64. What
float32 itself costs is the error of one process on the whole batch against the same in float64 (torch only: in
float64 Keras draws other first parameters).
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from experiments.benchmarks import record
from experiments.benchmarks.networks import Convolutions, KerasConvolutions
from experiments.benchmarks.ranks import on_keras_ranks, on_ranks
from experiments.digits import KerasMlp, Mlp
from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from raygpu.training.distributed.ranks import OneRank, ParallelSettings, Ranks
from raygpu.training.distributed.torch_ranks import TorchParallel
from raygpu.training.torch.solo import TorchSolo

BATCH = 100
CASES: dict[str, tuple[float, ...]] = {"60/40": (60, 40), "5/3/2": (5, 3, 2)}
MODELS: dict[str, tuple[Any, dict[str, Any]]] = {
    "MLP": (Mlp, {"hidden": 128}),
    "CNN": (Convolutions, {"channels": 16, "layers": 3}),
}
KERAS_MODELS: dict[str, tuple[Any, dict[str, Any]]] = {
    "MLP": (KerasMlp, {"hidden": 128}),
    "CNN": (KerasConvolutions, {"channels": 16, "layers": 3}),
}
DTYPES = {"float32": torch.float32, "float64": torch.float64}


class PlainMean(TorchParallel):
    """As DistributedDataParallel takes it: each rank's mean gradient counts alike."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        begin = self._gradient.begin
        self._gradient.begin = lambda samples, share, square: begin(  # type: ignore[method-assign]
            samples, 1 / dist.get_world_size(), square
        )


def gradient(ranks: Ranks, kind: type[TorchParallel], model: str, ratios: tuple[float, ...], dtype: str) -> Any:
    """Of the first batch, as one vector."""
    experiment, hp = MODELS[model]
    settings = Settings(epochs=1, threads=1, precision="float32", folder=Path())
    parallel = ParallelSettings(BATCH, ratios=ratios)
    own = experiment()
    alone = TorchSolo(own, own.data(), Trial("t0000", 0, hp), settings, dtype=DTYPES[dtype])
    training = kind(alone, parallel, ranks)
    taken: list[torch.Tensor] = []

    def take(lr: float) -> None:
        taken.extend(p.grad.double().flatten() for p in training.solo.optimizer.parameters if p.grad is not None)

    training.solo.optimizer.step = take  # type: ignore[method-assign]
    training.take_steps(1)
    return torch.cat(taken)


def keras_gradient(ranks: Any, weighted: bool, model: str, ratios: tuple[float, ...], dtype: str) -> np.ndarray:
    """The same in Keras."""
    from raygpu.training.distributed.keras_ranks import KerasParallel
    from raygpu.training.keras.quiet_import import keras, tf

    class Taking(KerasParallel):
        """Keeps the summed gradient in place of applying it."""

        vector: Any

        def _compute(self, whole: Any, *given: Any) -> Any:
            loss_sum, seconds, square, gradients = super()._compute(whole, *given)
            if not weighted:
                _, span = given
                factor = whole / tf.cast(span[1], whole.dtype) / ranks.world
                gradients = [gradient * tf.cast(factor, gradient.dtype) for gradient in gradients]
            return loss_sum, seconds, square, gradients

        def _apply(self, gradients: Any) -> Any:
            whole = [tf.identity(gradient) for gradient in gradients]
            summed = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, whole)
            flat = tf.concat([tf.reshape(tf.cast(gradient, tf.float64), [-1]) for gradient in summed], 0)
            self.vector.assign(flat)
            return tf.reduce_sum(flat)

    keras.config.set_floatx(dtype)
    experiment, hp = KERAS_MODELS[model]
    settings = Settings(epochs=1, threads=1, precision="float32", folder=Path())
    own = experiment()
    trial, parallel = Trial("t0000", 0, hp), ParallelSettings(BATCH, ratios=ratios)
    training = Taking(own, own.data(), trial, settings, parallel, ranks)
    count = sum(int(np.prod(variable.shape)) for variable in training.solo.model.trainable_variables)
    training.vector = tf.Variable(np.zeros(count))
    training.take_steps(1)
    return np.asarray(training.vector)


def torch_row(model: str, shares: tuple[float, ...], dtype: str) -> dict[str, float]:
    alone = gradient(OneRank(), TorchParallel, model, (), dtype)
    exact = gradient(OneRank(), TorchParallel, model, (), "float64")
    row = {}
    for label, kind in (("weighted", TorchParallel), ("plain mean", PlainMean)):
        found = on_ranks(len(shares), gradient, kind, model, shares, dtype)
        row[label] = max(float((own - alone).norm() / alone.norm()) for own in found)
    return row | {"one process, against float64": float((alone - exact).norm() / exact.norm())}


def keras_row(model: str, shares: tuple[float, ...], dtype: str) -> dict[str, float]:
    alone = on_keras_ranks(1, keras_gradient, True, model, (), dtype)[0]
    row = {}
    for label, weighted in (("weighted", True), ("plain mean", False)):
        found = on_keras_ranks(len(shares), keras_gradient, weighted, model, shares, dtype)
        row[label] = max(float(np.linalg.norm(own - alone) / np.linalg.norm(alone)) for own in found)
    return row


def main() -> None:
    rows: list[dict[str, Any]] = []
    for framework, measured in (("torch", torch_row), ("keras", keras_row)):
        for model, (name, shares), dtype in itertools.product(MODELS, CASES.items(), DTYPES):
            found = measured(model, shares, dtype)
            rows.append({"framework": framework, "model": model, "shares": name, "dtype": dtype, **found})
            print(rows[-1], flush=True)
    ratios = {}
    for framework, model, dtype in itertools.product(("torch", "keras"), MODELS, DTYPES):
        chosen = [row for row in rows if (row["framework"], row["model"], row["dtype"]) == (framework, model, dtype)]
        for label in [name for name in chosen[0] if name not in ("framework", "model", "shares", "dtype")]:
            name = f"{framework} {model}, {dtype}: largest error, {label}"
            ratios[name] = max(row[label] for row in chosen)
    record.write("weighted_gradient", {"rows": rows, "ratios": ratios}, {"batch": BATCH})


if __name__ == "__main__":
    main()
