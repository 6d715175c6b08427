"""Draw a round from its seed: a small sweep, and the faults that its commands meet."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import tomli_w

FaultKind = Literal["kill worker", "stop worker", "kill driver", "terminate group", "interrupt driver", "lock", "fill"]
MAX_EPOCHS_IN_ALL = 80
"""Largest number of epochs of all trials in process mode, at half a second each and two or three at once."""
START_S, TRAINING_S = (3.0, 20.0, 12.0), (0.0, 24.0, 1.0)
"""Earliest, latest and likeliest fault: of a command that starts, after its start, and of one that trains, after its
first worker's. A worker that begins is hit most often, as it is the least steady."""
LASTS_S = {"stop worker": (2.0, 10.0), "lock": (3.0, 20.0), "fill": (10.0, 20.0)}
"""Shortest and longest duration of the faults that last."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of one command."""

    kind: FaultKind
    trains: bool
    """Whether the time counts from the start of the command's first worker, and not from that of the command."""
    after_s: float
    lasts_s: float = 0.0
    pick: float = 0.0
    """Place of the worker to hit among all workers, 0 to 1."""

    def __str__(self) -> str:
        """Return the fault as it is printed."""
        when = f"{self.after_s:.1f} s after the {'first worker' if self.trains else 'start'}"
        return f"{self.kind} {when}{f' for {self.lasts_s:.1f} s' if self.lasts_s else ''}"


@dataclass(frozen=True, slots=True)
class Plan:
    """A round: the configuration of its sweep, and the faults of each command."""

    seed: int
    config: dict[str, Any]
    faults: tuple[tuple[Fault, ...], ...]
    """Faults of the first command, of the second one, and so on; later commands are undisturbed."""
    delivers: bool
    """Whether a sweep that was killed after its summary is delivered rather than resumed."""

    @property
    def fills_disk(self) -> bool:
        """Whether the round needs a disk of its own."""
        return any(fault.kind == "fill" for each in self.faults for fault in each)

    @property
    def stops_early(self) -> bool:
        """Whether a stopping rule ends trials, which depends on the order in which scores arrive."""
        return bool(self.config["stopping"]["algorithm"] != "none")

    def toml(self, tracking: Mapping[str, str], **settings: str) -> str:
        """Return the sweep's configuration file. tracking: the store. settings: folders."""
        return tomli_w.dumps({**self.config, **settings, "tracking": {**self.config["tracking"], **tracking}})

    def __str__(self) -> str:
        """Return the sweep in a few words."""
        config = self.config
        words = [f"{config['gpu']['mode']}, {config['trials']} trials x {config['epochs']} epochs"]
        words += [f"fraction {config['gpu']['fraction']}", f"stopping {config['stopping']['algorithm']}"]
        words += [f"keep {config['keep']}", f"score {config['score']}", f"checkpoint_s {config['checkpoint_s']}"]
        return ", ".join(words)


def draw_plan(seed: int, *, can_fill: bool) -> Plan:
    """Draw a round. can_fill: whether this process can mount a disk to be filled."""
    rng = random.Random(seed)
    config = _draw_config(rng)
    kinds = [kind for kind in get_args(FaultKind) if can_fill or kind != "fill"]
    faults = [tuple(_draw_fault(rng, kinds) for _ in range(rng.randint(1, 3)))]
    faults += [(_draw_fault(rng, kinds),) if rng.random() < 0.5 else () for _ in range(3)]
    return Plan(seed, config, tuple(faults), delivers=rng.random() < 0.5)


def _draw_config(rng: random.Random) -> dict[str, Any]:
    fused = rng.random() < 0.5
    trials = rng.randint(6, 24 if fused else 10)
    epochs = rng.randint(20, 30) if fused else rng.randint(8, MAX_EPOCHS_IN_ALL // trials)
    return {
        "experiment": "tests.soak.experiment:SlowMlp",
        "trials": trials,
        "epochs": epochs,
        "metric": "accuracy",
        "score": rng.choice(["last", "best"]),
        "seed": rng.randrange(1000),
        "keep": rng.choice(["best", "all"]),
        "checkpoint_s": round(rng.uniform(1, 3), 1),
        "stopping": {"algorithm": rng.choice(["none", "none", "halving"]), "grace_epochs": 3},
        "gpu": {"mode": "fused", "fraction": 0.5, "width": 12}
        if fused  # of a fixed width, so that the same sums are made in the same order
        else {"mode": "process", "fraction": rng.choice([0.5, 0.33])},
        "space": {
            "lr": {"loguniform": [0.001, 0.3]},
            "momentum": {"uniform": [0.0, 0.9]},
            "hidden": {"choice": [32, 64]},
            "batch_size": 64,
        },
        "tracking": {"patience_s": rng.choice([5.0, 60.0])},
        "cluster": {"max_failures": 100},  # a lost worker is never the trial's failure here
    }


def _draw_fault(rng: random.Random, kinds: list[FaultKind]) -> Fault:
    kind = rng.choice(kinds)
    trains = "worker" in kind or rng.random() < 0.7
    after_s = rng.triangular(*(TRAINING_S if trains else START_S))
    lasts_s = rng.uniform(*LASTS_S.get(kind, (0.0, 0.0)))
    return Fault(kind, trains, round(after_s, 1), round(lasts_s, 1), rng.random())
