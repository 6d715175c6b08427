"""The order that each searcher's command is given."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from experiments.benchmarks.search_quality.problems import PROBLEMS, Problem
from experiments.benchmarks.search_quality.reports import Notebook


@dataclass(frozen=True, slots=True)
class Search:
    """One search. ends: moment at which its time is up, by time.time()."""

    searcher: str
    problem: Problem
    seed: int
    notebook: Notebook
    ends: float

    def words(self) -> list[str]:
        """Return the flags of a command that `read` reads."""
        values = {
            "searcher": self.searcher,
            "problem": self.problem.name,
            "seed": self.seed,
            "notebook": self.notebook.path,
            "began": self.notebook.began,
            "ends": self.ends,
        }
        return [word for name, value in values.items() for word in (f"--{name}", str(value))]


def read() -> Search:
    """Read this command's flags."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--searcher", required=True)
    parser.add_argument("--problem", choices=list(PROBLEMS), required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--notebook", type=Path, required=True)
    parser.add_argument("--began", type=float, required=True)
    parser.add_argument("--ends", type=float, required=True)
    flags = parser.parse_args()
    notebook = Notebook(flags.notebook, flags.began)
    return Search(flags.searcher, PROBLEMS[flags.problem], flags.seed, notebook, flags.ends)
