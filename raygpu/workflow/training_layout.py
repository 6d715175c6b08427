"""The layout of a production training: its workers on the devices, and its batches over the workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from raygpu.config import TrainConfig
from raygpu.planning.gpu_shares import Node
from raygpu.planning.worker_devices import WorkerDevices, place_workers
from raygpu.training.distributed.batch_split import BatchPlan, checked, require_batch, spread
from raygpu.training.distributed.ranks import ParallelSettings
from raygpu.training.distributed.sharding_plan import require_sharding, with_sharding
from raygpu.workflow.user_code import Problem


@dataclass(frozen=True, slots=True)
class Layout:
    """The workers of a training on their devices, and the split of its batches."""

    placing: WorkerDevices
    batches: BatchPlan | None
    """None for a function, which makes its own batches."""

    @property
    def parallel(self) -> ParallelSettings | None:
        """Division of a batch over the devices; None for a function."""
        return self.batches.parallel if self.batches is not None else None

    @property
    def global_batch(self) -> int | None:
        """Samples of an optimizer step; None for a function."""
        return self.batches.parallel.global_batch if self.batches is not None else None

    def lines(self, devices: Sequence[str]) -> list[str]:
        """Return the layout as lines for a person. devices: the name of each device."""
        if self.batches is not None:
            return [self.placing.line(devices), *self.batches.lines, self.batches.lr_line]
        spare = len(devices) - 1
        note = f"a function trains on one device; {spare} of {len(devices)} stay free"
        return [self.placing.line(devices), *([note] if spare else [])]


def require_layout(config: TrainConfig, framework: str, nodes: Sequence[Node], *, simulated: bool) -> None:
    """Raise BadInput for what can be seen to be wrong before the data is loaded. See `layout`."""
    placing = place_workers(nodes, config, framework, simulated=simulated)
    require_sharding(config, framework)
    if framework != "function":
        require_batch(config, placing.ranks)


def layout(
    config: TrainConfig, found: Problem, nodes: Sequence[Node], *, simulated: bool, global_batch: int | None = None
) -> Layout:
    """Place the workers, split the batch over their devices, and check that the loss can be split.

    simulated: whether the nodes' GPUs are simulated. global_batch: samples per step of an earlier start of the same
    run. Raises BadInput with a line for each fault.
    """
    placing = place_workers(nodes, config, found.source.kind, simulated=simulated)
    require_sharding(config, found.source.kind)
    if found.splits is None:
        return Layout(placing, None)
    batches = spread(config, placing.ranks, found.splits.samples_per_epoch, global_batch=global_batch)
    batches = checked(config, batches, placing.ranks, found.source, found.code, found.splits)
    sizes = [node.device_gib for node in nodes if node.num_gpus and node.device_gib is not None]
    batches = with_sharding(
        config,
        batches,
        placing.ranks,
        found.source,
        found.code,
        found.splits,
        device_gib=min(sizes) if sizes and not simulated else None,
        shared=placing.per_gpu > 1,
    )
    return Layout(placing, batches)
