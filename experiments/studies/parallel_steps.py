"""Optimizer steps of one rank of a data-parallel training, by torch's and TensorFlow's own means.

All train the same network, the handwritten digits' Mlp, with the same global batch: a rank has an equal share of it.
One process for each device is torch's way; TensorFlow's MirroredStrategy drives all devices from one process.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments.digits import KerasMlp, Mlp, digits

LR = 0.05


@dataclass(frozen=True, slots=True)
class Problem:
    """What is trained, whatever the way."""

    hidden: int
    global_batch: int
    iterations: int
    """Optimizer steps of one measurement."""

    def batch(self) -> tuple[np.ndarray, np.ndarray]:
        """Samples of one step, with repetitions where the data has fewer: float32 (batch, 64) and int64 (batch,)."""
        splits = digits()
        rows = np.arange(self.global_batch) % splits.num_train
        return np.asarray(splits.train_inputs)[rows], np.asarray(splits.train_targets)[rows]


@dataclass(frozen=True, slots=True)
class Measured:
    """One measurement of one rank."""

    seconds: float
    memory_gib: float | None
    """Largest memory in use on the rank's GPU; None on a CPU."""


def torch_steps(ranks: Any, method: str, problem: Problem, parts: int) -> Measured:
    """Warm up and take the steps, in each rank of a torch.distributed group. parts: of a batch, one after the other."""
    import torch

    step = _TorchStep(method, problem, parts)
    for _ in range(5):
        step()
    step.wait()
    started = time.perf_counter()
    for _ in range(problem.iterations):
        step()
    step.wait()
    seconds = time.perf_counter() - started
    on_gpu = step.device.type == "cuda"
    return Measured(seconds, torch.cuda.max_memory_allocated(step.device) / 2**30 if on_gpu else None)


def torch_gradient(ranks: Any, method: str, problem: Problem, parts: int) -> np.ndarray:
    """The gradient of the first step over all parameters, float64 (parameters,)."""
    step = _TorchStep(method, problem, parts)
    step.backward()
    found = []
    for parameter in step.model.parameters():
        gradient = parameter.grad
        assert gradient is not None
        whole = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
        found.append(whole.detach().cpu().double().numpy().ravel())
    return np.concatenate(found)


class _TorchStep:
    """An optimizer step of this rank."""

    def __init__(self, method: str, problem: Problem, parts: int) -> None:
        import torch
        import torch.distributed as dist

        rank, world = dist.get_rank(), dist.get_world_size()
        on_gpu = torch.cuda.device_count() >= max(2, world)
        self.device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
        if on_gpu:
            torch.cuda.set_device(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
        torch.manual_seed(0)
        model = Mlp().model({"hidden": problem.hidden}).to(self.device)
        share = problem.global_batch // world
        inputs, targets = (torch.from_numpy(part).to(self.device) for part in problem.batch())
        own = slice(rank * share, (rank + 1) * share)
        self._parts = list(zip(inputs[own].chunk(parts), targets[own].chunk(parts), strict=True))
        self.model: Any = self._wrapped(model, method)
        self._optimizer = torch.optim.SGD(self.model.parameters(), lr=LR)

    def _wrapped(self, model: Any, method: str) -> Any:
        import torch

        if method == "data_parallel":
            return torch.nn.DataParallel(model)
        if method == "ddp":
            return torch.nn.parallel.DistributedDataParallel(model)
        if method == "fsdp":
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import fully_shard

            mesh = init_device_mesh(self.device.type, (torch.distributed.get_world_size(),))
            for layer in model:
                if any(True for _ in layer.parameters()):
                    fully_shard(layer, mesh=mesh)
            return fully_shard(model, mesh=mesh)
        return model

    def backward(self) -> None:
        """Compute the gradient of the whole batch."""
        from torch.nn.functional import cross_entropy

        for inputs, targets in self._parts:
            (cross_entropy(self.model(inputs), targets) / len(self._parts)).backward()

    def __call__(self) -> None:
        self.backward()
        self._optimizer.step()
        self._optimizer.zero_grad()

    def wait(self) -> None:
        """Wait until the device has finished."""
        import torch

        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def mirrored_steps(ranks: Any, problem: Problem) -> Measured:
    """Warm up and take the steps over all devices of MirroredStrategy, in one process."""
    step = _MirroredStep(ranks.strategy, problem)
    step.steps(5)
    started = time.perf_counter()
    step.steps(problem.iterations)
    return Measured(time.perf_counter() - started, None)


def mirrored_gradient(ranks: Any, problem: Problem) -> np.ndarray:
    """The gradient of the first step over all parameters, float64 (parameters,)."""
    return _MirroredStep(ranks.strategy, problem).gradient()


class _MirroredStep:
    """Optimizer steps over all devices of a MirroredStrategy."""

    def __init__(self, strategy: Any, problem: Problem) -> None:
        from raygpu.training.keras.quiet_import import keras, tf

        self._strategy, world = strategy, strategy.num_replicas_in_sync
        with strategy.scope():
            keras.utils.set_random_seed(0)
            self._model = KerasMlp().model({"hidden": problem.hidden})
            self._optimizer = keras.optimizers.SGD(LR)
            self._optimizer.build(self._model.trainable_variables)
        inputs, targets = problem.batch()
        share = problem.global_batch // world

        def shared(part: np.ndarray) -> Any:
            """Give each device its share."""
            return strategy.experimental_distribute_values_from_function(
                lambda context: tf.constant(part[context.replica_id_in_sync_group * share :][:share])
            )

        self._batch = shared(inputs), shared(targets)
        entropy = tf.nn.sparse_softmax_cross_entropy_with_logits  # Keras' own divides by the number of devices already

        def gradients(x: Any, y: Any) -> list[Any]:
            """Return this device's part of the mean gradient."""
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(entropy(y, self._model(x, training=True))) / world
            found: list[Any] = tape.gradient(loss, self._model.trainable_variables)
            return found

        def step(x: Any, y: Any) -> None:
            """Sum the parts over the devices, and apply them."""
            self._optimizer.apply(gradients(x, y), self._model.trainable_variables)

        @tf.function
        def steps(count: Any) -> None:
            """Take steps, in one call."""
            for _ in tf.range(count):
                strategy.run(step, args=self._batch)

        @tf.function
        def whole() -> list[Any]:
            """Return the gradient summed over the devices."""
            parts = strategy.run(gradients, args=self._batch)
            return [strategy.reduce("SUM", part, axis=None) for part in parts]

        self._steps, self._whole, self._tf = steps, whole, tf

    def steps(self, count: int) -> None:
        """Take steps, and wait for them."""
        self._steps(self._tf.constant(count))
        self._model.trainable_variables[0].numpy()

    def gradient(self) -> np.ndarray:
        """The gradient of the whole batch, float64 (parameters,)."""
        return np.concatenate([part.numpy().astype(np.float64).ravel() for part in self._whole()])
