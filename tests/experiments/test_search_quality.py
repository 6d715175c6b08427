"""The rules of the search's benchmark: who knew what when, and regret; and that every searcher trains alike."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from experiments.benchmarks.search_quality import networks, problems, regret
from experiments.benchmarks.search_quality.__main__ import NOTEBOOK_VARIABLE, end_leftovers
from experiments.benchmarks.search_quality.problems import PROBLEMS, Score
from experiments.benchmarks.search_quality.reports import Notebook, Report, incumbent
from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from raygpu.training.torch.solo import TorchSolo


def test_the_incumbent_is_the_best_of_the_trainings_as_they_are() -> None:
    reports = [Report(1, "a", 0.3, 0.4), Report(2, "b", 0.2, 0.5), Report(3, "b", 0.6, 0.6), Report(4, "a", 0.1, 0.2)]
    assert incumbent(reports, 0.5) is None
    assert incumbent(reports, 2) == reports[1]
    assert incumbent(reports, 3) == reports[0], "b has become worse"
    assert incumbent(reports, 9) == reports[3]


def test_a_notebook_gives_back_what_it_got_but_for_a_line_that_a_killed_process_left(tmp_path: Path) -> None:
    notebook = Notebook(tmp_path / "n.jsonl", 0.0)
    notebook.add("a", Score(0.25, 0.5))
    with notebook.path.open("a") as file:
        file.write("[1.0, ")
    [report] = notebook.read()
    assert (report.training, report.validation, report.test) == ("a", 0.25, 0.5)


def test_regret_counts_from_the_smallest_error_of_each_seed() -> None:
    early = {"raygpu": [0.2, 0.3], "asha": [0.5, None]}
    late = {"raygpu": [0.1, 0.3], "asha": [0.3, 0.2]}
    best = regret.references([early, late])
    assert best == [0.1, 0.2]
    assert regret.median_regrets(late, best) == pytest.approx({"raygpu": 0.05, "asha": 0.1})
    assert regret.median_regrets(early, best)["asha"] == pytest.approx(0.25), "no model counts as the worst one known"
    assert regret.over_best_peer({"raygpu": 0.05, "asha": 0.1}, "raygpu") == pytest.approx(0.5)
    assert regret.over_best_peer({"raygpu": 0.05, "asha": 0.0}, "raygpu") is None


def test_validation_and_test_errors_are_those_of_their_own_samples() -> None:
    network, hp = networks.DigitsMlp(), {"hidden": 8, "lr": 0.1, "momentum": 0.5, "weight_decay": 0.0, "batch_size": 64}
    trial = Trial("t0000", 3, hp)
    solo = TorchSolo(network, network.data(), trial, Settings(1, 1, "float32", Path()))
    result = solo.run_epoch()
    assert result is not None
    parts = problems.digits(0)
    for name, part in (("search_error", parts.validation), ("test_error", parts.test)):
        wrong = (solo.model(networks.torch.from_numpy(part[0])).argmax(1).numpy() != part[1]).mean()
        assert result.metrics[f"validation/{name}"] == pytest.approx(wrong, abs=1e-6)


@pytest.mark.parametrize("name", list(PROBLEMS))
def test_a_seed_decides_every_training(name: str) -> None:
    problem = PROBLEMS[name]
    first, second = (next(problem.train(problem.space.draw(1, 0), 5, 1)) for _ in range(2))
    assert first == second


def test_a_training_that_is_pruned_leaves_the_next_one_its_gradients() -> None:
    problem = PROBLEMS["cancer_mlp"]
    pruned = problem.train(problem.space.draw(1, 0), 5, 2)
    next(pruned)
    assert next(problem.train(problem.space.draw(1, 0), 5, 1)) is not None
    pruned.close()


def test_parts_make_up_the_whole() -> None:
    parts = problems.digits(4)
    assert sum(len(part[1]) for part in (parts.train, parts.validation, parts.test)) == 1797


def test_what_a_search_leaves_does_not_slow_down_the_next(tmp_path: Path) -> None:
    left, other = (
        subprocess.Popen(["sleep", "60"], env={NOTEBOOK_VARIABLE: str(tmp_path / name)}) for name in ("a", "b")
    )
    try:
        end_leftovers(tmp_path / "a")
        assert left.wait(5) == -signal.SIGKILL
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()
