"""The rule of racing decides as Optuna's Wilcoxon pruner does, given the same numbers."""

import numpy as np
import optuna
import pytest

from raygpu.search import racing
from raygpu.search.racing import is_worse


def optuna_prunes(scores, leading, maximize, p_value):
    study = optuna.create_study(
        direction="maximize" if maximize else "minimize",
        pruner=optuna.pruners.WilcoxonPruner(p_threshold=p_value, n_startup_steps=0),
    )
    best = optuna.create_trial(value=sum(leading.values()) / len(leading), intermediate_values=leading)
    study.add_trial(best)
    trial = study.ask()
    for number, score in scores.items():
        trial.report(score, number)
    return trial.should_prune()


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning", "ignore:WilcoxonPruner finds steps")
@pytest.mark.parametrize("maximize", [True, False])
def test_it_decides_as_optunas_pruner(maximize, monkeypatch):
    rng = np.random.default_rng(3)
    decisions = []
    for _ in range(60):
        digits = int(rng.integers(1, 4))  # few digits make ties and differences of 0
        leading = {n: round(float(value), digits) for n, value in enumerate(rng.normal(0.9, 0.05, 10))}
        shift = rng.normal(-0.05 if maximize else 0.05, 0.05)
        numbers = rng.permutation(12)[: int(rng.integers(1, 11))]
        scores = {int(n): round(leading.get(int(n), 0.9) + shift + rng.normal(0, 0.04), digits) for n in numbers}
        p_value = float(rng.choice([0.02, 0.05, 0.1, 0.3]))
        monkeypatch.setattr(racing, "P_VALUE", p_value)
        own = is_worse(scores, leading, maximize=maximize)
        assert own == optuna_prunes(scores, leading, maximize, p_value), (scores, leading, p_value)
        decisions.append(own)
    assert 3 < sum(decisions) < 57  # both answers came


def test_five_pairs_decide_and_four_do_not():
    leading = dict.fromkeys(range(10), 0.9)
    assert not is_worse({number: 0.8 + number / 100 for number in range(4)}, leading, maximize=True)
    assert is_worse({number: 0.8 + number / 100 for number in range(5)}, leading, maximize=True)
    assert not is_worse({number: 1.0 + number / 100 for number in range(5)}, leading, maximize=True)
    assert is_worse({number: 1.0 + number / 100 for number in range(5)}, leading, maximize=False)


def test_equal_sets_are_not_worse():
    equal = dict.fromkeys(range(10), 0.5)
    assert not is_worse(equal, equal, maximize=True)
