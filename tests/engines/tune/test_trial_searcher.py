from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from raygpu.engines.tune.trial_searcher import TrialSearcher
from raygpu.search.trials import Trial


def test_a_search_is_told_the_trial_s_score_and_not_its_last_epoch_s() -> None:
    told: dict[str, Any] = {}
    sampler: Any = SimpleNamespace(tell=lambda name, score: told.update({name: score}))
    places: Any = SimpleNamespace(give_back=lambda name: None)
    live: Any = SimpleNamespace(enlarged={})
    searcher = TrialSearcher(sampler, live, places)
    for index in range(2):
        searcher.given[f"tune{index}"] = Trial(Trial.name(index), index, {})
    searcher.on_trial_complete("tune0", {"score": 0.2, "final_score": 0.9, "failure": None, "unknown_metric": None})
    searcher.on_trial_complete("tune1", {"score": 0.2, "final_score": 0.9, "failure": "Traceback"})
    assert told == {"t0000": 0.9, "t0001": None}
