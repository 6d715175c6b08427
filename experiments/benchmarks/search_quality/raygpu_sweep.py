"""raygpu's own search: a sweep whose mode is chosen by measurement, without tracking.

Random search stops trials by halving, as Ray Tune's ASHA here, and `tpe` by the median, as Optuna's here.

python -m experiments.benchmarks.search_quality.raygpu_sweep --searcher raygpu ...
"""

from __future__ import annotations

from typing import Any

from experiments.benchmarks.search_quality.command_line import Search, read
from experiments.benchmarks.search_quality.problems import Score
from raygpu import sweep
from raygpu.cli.sweep_view import SweepConsole
from raygpu.config import SweepConfig
from raygpu.records.snapshot import Snapshot

GRACE_EPOCHS = 2


class Recorder(SweepConsole):
    """Console that notes the best trial each time that it is shown."""

    def __init__(self, order: Search) -> None:
        super().__init__(json=True)
        self.order = order

    def update(self, snapshot: Snapshot, *others: Any) -> None:
        """Note the best trial's present errors."""
        best = snapshot.best
        if best is not None and best.score is not None and "test" in " ".join(best.metrics):
            test = best.metrics.get("validation/test_error", best.metrics.get("test_error"))
            assert test is not None
            self.order.notebook.add("best", Score(best.score, test))
        super().update(snapshot, *others)


def search(order: Search) -> None:
    """Search until the time is up."""
    problem = order.problem
    space = dict(problem.table)
    if not problem.fused:
        space |= {"data_seed": order.seed}
    folder = order.notebook.runs
    algorithm, stopping = {
        "raygpu": ("random", {"algorithm": "halving", "grace_epochs": GRACE_EPOCHS, "reduction": 3}),
        "raygpu_tpe": ("tpe", {"algorithm": "median", "grace_epochs": GRACE_EPOCHS}),
    }[order.searcher]
    config = SweepConfig.model_validate(
        {
            "name": "search",
            "experiment": problem.experiment,
            "epochs": problem.epochs,
            "time_budget_s": order.ends - order.notebook.began,
            "metric": "search_error",
            "direction": "min",
            "seed": order.seed,
            "runs_dir": str(folder),
            "profiles": str(folder / "profiles"),
            "space": space,
            "search": {"algorithm": algorithm},
            "stopping": stopping,
            "tracking": {"enabled": False},
        },
    )
    sweep.run(config, console=Recorder(order))


if __name__ == "__main__":
    search(read())
