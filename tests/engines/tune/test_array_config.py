from __future__ import annotations

from raygpu.engines.tune.array_config import ArrayConfig
from raygpu.planning.gpu_shares import Share
from raygpu.search.trials import Trial


def test_a_trial_that_travels_keeps_its_repeat_and_its_fold() -> None:
    trials = (Trial("t0000-4", 7, {"lr": 0.1}, repeat=1, fold=0), Trial("t0001", 8, {"lr": 0.2}))
    config = ArrayConfig("a0000", ("t0000-4", "t0001"), True, "cpu", Share(2), trials=trials)
    assert ArrayConfig.of(config.as_dict()) == config
