"""Two ranks, one slowed to 60 %: the throughput of `--ratios auto`, and of equal shares, over what both can do.

    python -m experiments.benchmarks.unequal [--devices simulated,processors] [--rounds 5] [--window-s 6] [--batch 4096]

simulated: each rank waits as long as a device of its speed would take for its share, and a small network is trained
beside it. processors: a network that takes this machine's CPUs a third of a second a step, a thread each; the slow rank
sleeps in each step for two thirds of the processor time that its last one took. On a machine that others use its steps
differ by a tenth, and a step of both takes as long as the longer.

What both can do is the sum of what each trains by itself with the share that it has, both at the same time, without
sending anything. All three by turns, over gloo; medians. In the end the other rank is slowed, to see the split follow.
Goals: 0.97 with `--ratios auto`, settled within 30 steps.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from experiments.benchmarks import record
from experiments.benchmarks.networks import Convolutions, repeated
from experiments.benchmarks.ranks import on_ranks
from raygpu.experiment import Splits
from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from raygpu.training.distributed.ranks import OneRank, ParallelSettings, Ranks
from raygpu.training.distributed.torch_ranks import TorchParallel
from raygpu.training.torch.solo import TorchSolo

SLOW = 0.6
SAMPLES_PER_S = 16_000.0
"""Of the faster simulated device."""
BATCH = 4096
"""Large: a step takes 0.2 s or more, much longer than sending its gradient."""
HP = {
    "simulated": {"channels": 1, "layers": 1, "lr": 0.01},
    "processors": {"channels": 16, "layers": 8, "lr": 0.01},
}
SETTLE_STEPS = 40
TOLERANCE = 0.05
"""Of the share that a split settles at: within it, it has settled."""


class Device(Convolutions):
    """This rank's: on one rank it is slower than on the others."""

    def __init__(self, kind: str, rank: int, folder: Path) -> None:
        self._kind, self._rank, self._folder = kind, rank, folder
        self._used_s = time.thread_time()
        self.hp = HP[kind]

    @property
    def _speed(self) -> float:
        slow = 0 if (self._folder / "switched").exists() else 1
        return SLOW if self._rank == slow else 1.0

    def augment(self, inputs: Any, hp: Mapping[str, Any]) -> Any:
        """Called once a step."""
        used_s, self._used_s = time.thread_time() - self._used_s, time.thread_time()
        if self._kind == "simulated":
            time.sleep(len(inputs) / SAMPLES_PER_S / self._speed)
        else:
            time.sleep(used_s * (1 / self._speed - 1))
        return inputs


def training(device: Device, splits: Splits, parallel: ParallelSettings, ranks: Ranks) -> TorchParallel:
    settings = Settings(epochs=10_000, threads=1, precision="float32", folder=Path())
    return TorchParallel(TorchSolo(device, splits, Trial("t0000", 0, device.hp), settings), parallel, ranks)


def throughput(own: TorchParallel, seconds: float) -> float:
    """Samples/s of all ranks of this training, evaluations apart, for so long at least."""
    samples = wall_s = 0.0
    while wall_s < seconds:
        progress = own.advance()
        assert progress is not None
        samples, wall_s = samples + sum(progress.samples), wall_s + progress.wall_s
    return samples / wall_s


def settle(own: TorchParallel, steps: int) -> list[tuple[int, tuple[int, ...]]]:
    """The shares after each exchange, by the number of steps done."""
    trace, begun = [], own.coordinator.taken
    while own.coordinator.taken - begun < steps:
        progress = own.advance()
        assert progress is not None
        trace.append((own.coordinator.taken - begun, progress.shares))
    return trace


def measured(ranks: Ranks, kind: str, folder: str, rounds: int, window_s: float, batch: int) -> dict[str, Any]:
    device, splits = Device(kind, ranks.rank, Path(folder)), repeated(64)
    auto = training(device, splits, ParallelSettings(batch, auto_shares=True), ranks)
    equal = training(device, splits, ParallelSettings(batch), ranks)
    found: dict[str, Any] = {"trace": settle(auto, SETTLE_STEPS), "rounds": []}
    settle(equal, 3)
    for _ in range(rounds):
        row: dict[str, Any] = {"auto": throughput(auto, window_s), "equal": throughput(equal, window_s)}
        share = auto.coordinator.shares[ranks.rank]
        alone = training(device, splits, ParallelSettings(share), OneRank())
        settle(alone, 3)
        ranks.gather([None])
        rate = throughput(alone, window_s)
        by_rank = ranks.gather([rate])
        row |= {"alone": sum(by_rank), "alone by rank": by_rank, "shares": ranks.gather([share])}
        found["rounds"].append(row)
    ranks.gather([None])
    if ranks.rank == 0:
        (Path(folder) / "switched").touch()
    ranks.gather([None])
    found["trace after the other rank was slowed"] = settle(auto, 2 * SETTLE_STEPS)
    return found


def settled_after(trace: list[tuple[int, tuple[int, ...]]]) -> int:
    """The step from which rank 0's share stays close to where it is in the end."""
    end = median(shares[0] for _, shares in trace[-5:])
    late = [step for step, shares in trace if abs(shares[0] - end) > TOLERANCE * end]
    return next(step for step, _ in trace if not late or step > late[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--devices", default="simulated,processors")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--window-s", type=float, default=6.0)
    parser.add_argument("--batch", type=int, default=BATCH)
    arguments = parser.parse_args()
    results: dict[str, Any] = {"ratios": {}}
    for kind in arguments.devices.split(","):
        with tempfile.TemporaryDirectory() as folder:
            found = on_ranks(2, measured, kind, folder, arguments.rounds, arguments.window_s, arguments.batch)[0]
        results[kind] = found
        for name in ("auto", "equal"):
            ratio = median(row[name] / row["alone"] for row in found["rounds"])
            results["ratios"][f"{kind}: {name} / what both ranks do alone"] = round(ratio, 3)
        after = found["trace after the other rank was slowed"]
        results["ratios"] |= {
            f"{kind}: steps until the split had settled": settled_after(found["trace"]),
            f"{kind}: steps until it had followed the other rank": settled_after(after),
            f"{kind}: shares, then and in the end": [found["rounds"][-1]["shares"], list(after[-1][1])],
        }
    part = None if arguments.batch == BATCH else f"batch-{arguments.batch}"
    record.write("unequal", results, vars(arguments) | {"slowed to": SLOW}, part)


if __name__ == "__main__":
    main()
