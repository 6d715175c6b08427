"""The devices of a Keras training: one, several of a process, or those of several processes."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np

from raygpu.training.base import Settings
from raygpu.training.keras.logical_devices import make_logical_devices
from raygpu.training.keras.quiet_import import tf
from raygpu.training.keras.solo import configure

WRITES = (
    "loss() or metrics() writes to a variable, as objects of keras.metrics do, and an evaluation, which the first"
    " worker runs alone, would wait for the others there: compute the value from outputs and targets alone, or take one"
    " worker with devices_per_worker"
)


def num_gpus() -> int:
    """Return the number of GPUs that TensorFlow sees."""
    return len(tf.config.list_physical_devices("GPU"))


class KerasRanks:
    """The devices of this process, and of the other processes in TF_CONFIG."""

    def __init__(self, processes: int, local: int, settings: Settings, *, shared: bool = False) -> None:
        """Start the devices; has to come before anything else of TensorFlow in this process.

        local: number of devices of this process. shared: several processes share a GPU, which NCCL refuses.
        """
        configure(settings)
        self.strategy = _strategy(processes, local, shared)
        self.world = self.strategy.num_replicas_in_sync
        self.local = self.world // processes
        resolver = self.strategy.cluster_resolver if processes > 1 else None
        self.rank = (resolver.task_id if resolver is not None else 0) * self.local
        self._processes = processes
        # Called from Python it would be traced anew each time.
        self._gather: Any = tf.function(lambda values: self.strategy.gather(values, axis=0))

    def gather(self, values: Sequence[Any]) -> list[Any]:
        """Return each rank's value, by rank. All processes call it, and each waits."""
        if self._processes == 1:
            return list(values)
        payload = np.frombuffer(pickle.dumps(list(values)), np.uint8)
        most = max(self._gathered(np.array([len(payload)], np.int32)))
        room = 1 << int(most).bit_length()  # few lengths: each new one is traced
        pickles = self._gathered(np.pad(payload, (0, room - len(payload))))
        processes = np.split(pickles.astype(np.uint8), self._processes)
        return [value for each in processes for value in pickle.loads(each.tobytes())]

    def _gathered(self, values: np.ndarray) -> np.ndarray:
        """Return the values of all processes, one after the other."""
        tensor = tf.constant(values, tf.int32)
        replica_values = self.strategy.experimental_distribute_values_from_function(lambda _: tensor)
        device_values = np.asarray(self._gather(replica_values))
        return device_values.reshape(self.world, -1)[:: self.local].ravel()  # each of its devices gives the same


def require_alone(evaluation: Any) -> None:
    """Raise ValueError if an evaluation, which the first process runs alone, sends messages to the others.

    evaluation: of type `tf.types.experimental.ConcreteFunction`.
    """
    graph = evaluation.graph.as_graph_def()
    nodes = (graph.node, *(function.node_def for function in graph.library.function))
    if any(node.op.startswith("Collective") for each in nodes for node in each):
        raise ValueError(WRITES)


def summed_over_devices(tensors: Sequence[Any]) -> list[Any]:
    """Return the sums of these tensors over all devices; traced, on each device."""
    context = tf.distribute.get_replica_context()
    summed: dict[int, Any] = {}
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):  # a call joins its tensors to one
        places = [place for place, tensor in enumerate(tensors) if tensor.dtype == dtype]
        # A sum wants to know each tensor's device, which one that has come from outside of the call does not tell.
        sums = context.all_reduce(tf.distribute.ReduceOp.SUM, [tf.identity(tensors[place]) for place in places])
        summed |= zip(places, sums, strict=True)
    return [summed[place] for place in range(len(tensors))]


def _strategy(processes: int, local: int, shared: bool) -> tf.distribute.Strategy:
    if processes > 1:
        kinds = tf.distribute.experimental.CommunicationImplementation
        options = tf.distribute.experimental.CommunicationOptions(implementation=kinds.RING if shared else kinds.AUTO)
        return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    gpus = tf.config.list_physical_devices("GPU")
    if local == 1:
        return tf.distribute.OneDeviceStrategy("GPU:0" if gpus else "CPU:0")
    if not gpus:
        make_logical_devices(local, None)
    return tf.distribute.MirroredStrategy([f"{'GPU' if gpus else 'CPU'}:{index}" for index in range(local)])
