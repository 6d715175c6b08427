"""The stages: a question, commands, and the minutes that they may take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

BENCHMARKS = "experiments.benchmarks"
SMALL_SWEEP = ("--trials", "4", "--epochs", "2")
SMALL_PACK = ("--rounds", "1", "--numbers", "1,2", "--window-s", "0.3")
ALL_NUMBERS = "1,2,3,5,8,13,21,34"


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of the measurements.

    commands: words after `python -m`, on a GPU. small: the same as they are tried on a CPU; empty where that tells
    nothing. minutes: limit of the whole stage.
    """

    name: str
    question: str
    commands: Sequence[Sequence[str]]
    small: Sequence[Sequence[str]]
    minutes: float = 9.0


def _sweep(*flags: str) -> tuple[str, ...]:
    """Return a tracked sweep of the digits."""
    return ("raygpu.sweep", "conf/sweep/digits.toml", "--runs-dir", "{out}/runs", "--tracking.uri", "{store}", *flags)


MODES = {"process": ("--gpu.mode", "process", "--gpu.fraction", "0.2"), "fused": ("--gpu.mode", "fused"), "auto": ()}
SWEEPS = [_sweep("--name", f"gpu-{name}", *flags) for name, flags in MODES.items()]


def _auto(name: str) -> Stage:
    """Return the stage that compares what auto chooses with every other way, for one sweep."""
    command = (f"{BENCHMARKS}.auto_choice", "--rounds", "1", "--sweeps", name)
    small = [command] if name == "short" else []
    return Stage(f"auto_{name}", f"does auto choose the fastest way of the sweep {name}?", [command], small)


def _pack(network: str, configuration: str, small: str) -> Stage:
    """Return the stage of a network's throughput by the number of trainings at once, in every way."""
    command = (f"{BENCHMARKS}.pack", "--synthetic", "--rounds", "3", "--numbers", ALL_NUMBERS, "--configurations")
    tried = (f"{BENCHMARKS}.pack", "--synthetic", *SMALL_PACK, "--configurations", small)
    question = f"how many trainings of the {network} does the GPU carry, under MPS, time-sliced, fused?"
    return Stage(f"pack_{network}", question, [(*command, configuration)], [tried])


STAGES = {
    stage.name: stage
    for stage in (
        Stage(
            "tests",
            "do the checks pass that need a GPU?",
            [("pytest", "-q", "-m", "gpu", "tests", "-p", "no:cacheprovider", "--durations", "10")],
            [("pytest", "-q", "-m", "gpu", "tests/engines/tune/test_on_gpu.py", "-p", "no:cacheprovider")],
        ),
        Stage(
            "sweeps",
            "does the README's sweep run in each mode?",
            [*SWEEPS, ("raygpu.gpus", "--once"), ("raygpu.doctor",)],
            [[*words, *SMALL_SWEEP] for words in SWEEPS],
        ),
        Stage(
            "arrays",
            "how much faster are arrays than one training, and than packed processes?",
            [(f"{BENCHMARKS}.fused_gpu", "--seconds-in-all", "500")],
            [(f"{BENCHMARKS}.fused_gpu", "--device", "cpu", "--seconds-in-all", "60", "--networks", "mlp")],
        ),
        Stage(
            "arrays_tf32",
            "and in TF32?",
            [(f"{BENCHMARKS}.fused_gpu", "--seconds-in-all", "300", "--precision", "tf32")],
            [],
        ),
        Stage(
            "compiled",
            "do compiled steps do what eager ones do?",
            [(f"{BENCHMARKS}.compiled_steps", "--device", "cuda")],
            [(f"{BENCHMARKS}.compiled_steps",)],
        ),
        _pack("digits", "conf/pack/digits.toml", "conf/pack/digits.toml"),
        _pack("resnet50", "conf/pack/cifar_resnet50.toml", "conf/pack/digits.toml"),
        *map(_auto, ("mlp", "short", "cnn", "resnet", "resnet18")),
        Stage(
            "production",
            "what does a production training reach beside torch by hand?",
            [(f"{BENCHMARKS}.gpu.production",)],
            [(f"{BENCHMARKS}.gpu.production", "--device", "cpu", "--rounds", "1", "--seconds", "2")],
        ),
        Stage(
            "profile",
            "where does the time of a step go: kernels, copies, gaps between launches?",
            [(f"{BENCHMARKS}.gpu.profile",)],
            [(f"{BENCHMARKS}.gpu.profile", "--device", "cpu", "--steps", "3")],
        ),
        Stage(
            "optimizers",
            "is raygpu's optimizer as fast as torch's?",
            [(f"{BENCHMARKS}.optimizers", "--rounds", "5")],
            [],
        ),
        Stage(
            "loading",
            "what do packed trainings gain by decoding each image once?",
            [(f"{BENCHMARKS}.image_loading", "--images", "2000", "--rounds", "2")],
            [(f"{BENCHMARKS}.image_loading", "--images", "40", "--rounds", "1")],
        ),
    )
}
"""By name, in the order of their worth."""
