"""Two ranks, one slowed to 60 %: the throughput of `--ratios auto`, and of equal shares, over what both can do.

    python -m experiments.benchmarks.unequal [--rounds 5] [--window-s 8]

Both ranks run on this machine's CPUs, a thread each, over gloo. One is slowed from outside: stopped (SIGSTOP) for 8 of
every 20 milliseconds. What both can do is the sum of what each trains by itself with the share that it has, both at the
same time, without sending anything. All three by turns; medians. In the end the other rank is slowed, to see the split
follow. Goals: 0.97 with `--ratios auto`, settled within 30 steps.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from pathlib import Path
from statistics import median
from typing import Any

from experiments.benchmarks import record
from experiments.benchmarks.networks import Convolutions, repeated
from experiments.benchmarks.ranks import on_ranks
from raygpu.experiment import Splits
from raygpu.training.base import Settings
from raygpu.training.parallel import OneRank, Parallel, Ranks
from raygpu.training.torch_parallel import TorchParallel
from raygpu.trials import Trial

PERIOD_S, SLOW = 0.02, 0.6
BATCH = 1024
HP = {"channels": 32, "lr": 0.01}
SETTLE_STEPS = 120
TOLERANCE = 0.05
"""Of the share that a split settles at: within it, it has settled."""


class Brake:
    """Slows one process by stopping it for a part of each period."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, pids: list[int]) -> None:
        """One period."""
        slow = 1 - int((self._folder / "switched").exists())  # rank 1, then rank 0
        try:
            os.kill(pids[slow], signal.SIGSTOP)
            time.sleep(PERIOD_S * (1 - SLOW))
        finally:
            os.kill(pids[slow], signal.SIGCONT)
        time.sleep(PERIOD_S * SLOW)


def training(splits: Splits, parallel: Parallel, ranks: Ranks) -> TorchParallel:
    settings = Settings(epochs=10_000, threads=1, precision="float32", folder=Path())
    return TorchParallel(Convolutions(), splits, Trial("t0000", 0, HP), settings, parallel, ranks)


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
    trace, begun = [], own.conductor.taken
    while own.conductor.taken - begun < steps:
        progress = own.advance()
        assert progress is not None
        trace.append((own.conductor.taken - begun, progress.shares))
    return trace


def measured(ranks: Ranks, folder: str, rounds: int, window_s: float) -> dict[str, Any]:
    splits = repeated(64)
    auto, equal = training(splits, Parallel(BATCH, balance=True), ranks), training(splits, Parallel(BATCH), ranks)
    found: dict[str, Any] = {"trace": settle(auto, SETTLE_STEPS), "rounds": []}
    settle(equal, 3)
    for _ in range(rounds):
        row: dict[str, Any] = {"auto": throughput(auto, window_s), "equal": throughput(equal, window_s)}
        share = auto.conductor.shares[ranks.rank]
        alone = training(splits, Parallel(share), OneRank())
        settle(alone, 3)
        ranks.gather(None)
        rate = throughput(alone, window_s)
        row |= {"alone": sum(ranks.gather(rate)), "shares": ranks.gather(share)}
        found["rounds"].append(row)
    ranks.gather(None)
    if ranks.rank == 0:
        (Path(folder) / "switched").touch()
    ranks.gather(None)
    found["trace after the other rank was slowed"] = settle(auto, 6 * SETTLE_STEPS)
    return found


def settled_after(trace: list[tuple[int, tuple[int, ...]]]) -> int:
    """The step from which rank 0's share stays close to where it is in the end."""
    end = median(shares[0] for _, shares in trace[-5:])
    late = [step for step, shares in trace if abs(shares[0] - end) > TOLERANCE * end]
    return next(step for step, _ in trace if not late or step > late[-1])


def main() -> None:
    import tempfile

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--window-s", type=float, default=8.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = on_ranks(2, measured, folder, arguments.rounds, arguments.window_s, beside=Brake(Path(folder)))[0]
    ratios: dict[str, Any] = {
        f"{name} / what both ranks do alone": round(median(row[name] / row["alone"] for row in found["rounds"]), 3)
        for name in ("auto", "equal")
    }
    ratios["steps until the split had settled"] = settled_after(found["trace"])
    after = found["trace after the other rank was slowed"]
    ratios["steps until it had followed the other rank"] = settled_after(after)
    ratios["shares, then and in the end"] = [found["rounds"][-1]["shares"], list(after[-1][1])]
    record.write("unequal", {"ratios": ratios, **found}, vars(arguments) | {"batch": BATCH, "slowed to": SLOW})


if __name__ == "__main__":
    main()
