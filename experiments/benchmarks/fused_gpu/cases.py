"""The points to measure, in the order of their importance, and the networks that they train."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments.benchmarks import fused_throughput
from experiments.benchmarks.fused_throughput import WIDE, WIDTHS, Case
from experiments.resnet import ResNet18
from raygpu import Splits, TorchExperiment
from raygpu.devices.host import num_cpus
from raygpu.search.trials import Trial

NETWORKS: dict[str, tuple[type[TorchExperiment], dict[str, Any]]] = {
    "mlp": (fused_throughput.NETWORKS["mlp"][0], fused_throughput.NETWORKS["mlp"][1] | {"batch_size": 32}),
    "cnn": (fused_throughput.NETWORKS["cnn"][0], fused_throughput.NETWORKS["cnn"][1] | {"batch_size": 32}),
    "resnet18": (ResNet18, {"channels": 64, "batch_size": 128}),
}
DIGITS = ("mlp", "cnn")
WIDER = (256, 512)
"""Of the MLP alone."""
IMPORTANT = (WIDE, 1, 128, 512, 256, 8)
"""Widths in this order, then the others; of a ResNet from the narrowest to where the memory ends."""
COMPILED_FIRST = {"mlp": (WIDE, 128, 512, 256), "cnn": (WIDE,), "resnet18": (8,)}
"""Compiling takes long: the others' turn comes when all networks had theirs."""
AT_ONCE = (2, 4, 8)
ALONE = "TorchSolo"
ALONE_WAYS = (ALONE, "plain loop")
ALONE_COMPILED = ("plain loop, compiled",)
WAYS = ("eager", "eager, CUDA graph")
COMPILED_WAYS = ("compiled", "compiled, CUDA graph")
COMPILE_S = {"mlp": 12.0, "cnn": 25.0, "resnet18": 60.0}
"""Guesses of the seconds that compiling takes, until one was seen."""
ROUNDS = 2
"""Windows of each point."""


@dataclass(frozen=True)
class Task:
    """What one process of a network measures in one go: some ways at one width; width 0 is one model alone."""

    network: str
    width: int
    ways: tuple[str, ...]

    @property
    def compiled(self) -> bool:
        return any("compiled" in way for way in self.ways)

    def case(self, way: str) -> Case:
        return Case(self.network, way, num_cpus(), self.width)


def tasks(networks: Sequence[str], widths: Sequence[int] | None, on_gpu: bool) -> list[list[Task | str]]:
    """In the order of their importance, in groups; a word stands for packed processes, by the way they share."""
    ways, compiled_ways = (WAYS, COMPILED_WAYS) if on_gpu else (WAYS[:1], COMPILED_WAYS[:1])

    def chosen(network: str) -> list[int]:
        own = [*(widths or (*WIDTHS, *(WIDER if network == "mlp" else ())))]
        first = [w for w in IMPORTANT if w in own] if network in DIGITS else []
        return first + sorted(set(own) - set(first))

    def arrays(network: str) -> list[Task | str]:
        again: Task = Task(network, 0, ALONE_WAYS)
        return [again, *(Task(network, width, ways) for width in chosen(network)), again]

    def compiled(network: str, those: Sequence[int]) -> list[Task | str]:
        return [Task(network, width, compiled_ways) for width in those]

    def to_compile(network: str) -> list[int]:
        return [w for w in COMPILED_FIRST[network] if w in chosen(network)] or chosen(network)[:1]

    first = {name: to_compile(name) for name in networks}
    groups: list[list[Task | str]] = []
    for place, name in enumerate(networks):
        groups.append(arrays(name))
        if place == 0:
            groups += [["time-sliced"], ["under MPS"]] if on_gpu else [["time-sliced"]]
            groups.append([Task(name, 0, ALONE_COMPILED), *compiled(name, first[name])])
    for name in networks[1:]:
        groups.append([Task(name, 0, ALONE_COMPILED), *compiled(name, first[name])])
    for name in networks:
        groups.append(compiled(name, [w for w in chosen(name) if w not in first[name]]))
    return groups


def stands_in(network: str) -> bool:
    """Whether the digits are not there, because scikit-learn is not."""
    return network in DIGITS and importlib.util.find_spec("sklearn") is None


def experiment_of(network: str) -> TorchExperiment:
    """With noise of the digits' shapes in their place where they are not there."""
    kind = NETWORKS[network][0]
    if not stands_in(network):
        return kind()
    named: TorchExperiment = type(kind.__name__, (kind,), {"data": lambda _: noise()})()
    return named


def noise() -> Splits:
    """Of the shapes of `experiments.digits.digits`."""
    rng = np.random.default_rng(0)
    inputs, targets = rng.random((1437 + 360, 64), dtype=np.float32), rng.integers(0, 10, 1437 + 360)
    return Splits(inputs[:1437], targets[:1437], inputs[1437:], targets[1437:])


def trials_of(network: str, count: int) -> list[Trial]:
    """DrawnTrials as `fused_throughput` does, without `raygpu.search.space`: pydantic may not be on a GPU's machine."""
    rng = np.random.default_rng(0)
    drawn = [{"lr": float(10 ** rng.uniform(-3, 0)), "momentum": float(rng.uniform(0, 0.95))} for _ in range(count)]
    return [Trial(Trial.name(i), i, hp | NETWORKS[network][1]) for i, hp in enumerate(drawn)]
