"""How many epochs trials train, by the rule and by those so far."""

from __future__ import annotations

import pytest

from raygpu.planning.trial_survival import Survival


def test_without_a_rule_every_trial_trains_to_the_end() -> None:
    survival = Survival.estimate(10, {}, {0: 4})
    assert survival is not None
    assert sum(survival.passed) == 10
    assert survival.draw(0.5, after=7) == 3
    assert [survival.draw(part) for part in (0.0, 0.5, 0.99)] == [10, 10, 10]


def test_the_rule_counts_before_any_trial_has_ended() -> None:
    survival = Survival.estimate(20, {}, {}, {2: 2 / 3, 6: 2 / 3, 18: 2 / 3})
    assert survival is not None
    assert sum(survival.passed) == pytest.approx(2 + 4 / 3 + 12 / 9 + 2 / 27)
    assert survival.draw(0.5) == 2
    assert survival.draw(0.7) == 6
    assert survival.draw(0.5, after=2) == 4, "four more, to the next rung"


def test_what_trials_did_outweighs_the_rule() -> None:
    seen = Survival.estimate(20, {2: 0, 20: 100}, {}, {2: 2 / 3})
    assert seen is not None
    assert seen.share(2) > 0.85


def test_a_running_trial_at_a_rung_has_survived_it() -> None:
    stays = Survival.estimate(20, {}, {2: 94}, {2: 2 / 3})
    assert stays is not None
    assert stays.share(2) == pytest.approx(1 - 20 * (2 / 3) / 114)


def test_unknown_epochs_are_those_of_ended_trials() -> None:
    assert Survival.estimate(None, {}, {3: 2}) is None
    survival = Survival.estimate(None, {10: 3}, {4: 1})
    assert survival is not None
    assert sum(survival.passed) == 10
    assert survival.draw(0.5, after=12) == 1, "it trains longer than any: one more epoch, at least"
