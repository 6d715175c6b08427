"""Shares of trials that ran out of memory."""

from __future__ import annotations

from raygpu.engines.tune.oom_retry import MOST_RETRIES, RetryShares
from raygpu.planning.gpu_shares import Choice, Node, Plan, Share, plan
from raygpu.search.signature import Signature
from raygpu.search.trials import Trial

SIGNATURE = Signature((("hidden", "16"),))


def planned(**trials_per_gpu: int) -> Plan:
    """One GPU of each type: "big" has 24 GiB, others 8."""
    nodes = [Node(64, 1, 1000, device=name, device_gib=24 if name == "big" else 8) for name in trials_per_gpu]
    shares = zip(nodes, trials_per_gpu.values(), strict=True)
    return plan(nodes, {node.device_type: Choice(Share(n), "") for node, n in shares}, 1000)


SMALL, BIG = "small, 8 GiB", "big, 24 GiB"


def test_shares_grow_and_later_trials_begin_with_what_was_enough() -> None:
    shares = RetryShares(planned(small=5), lambda trial: SIGNATURE if trial.seed < 10 else Signature(()))
    first, second, other = (Trial(str(seed), seed, {}) for seed in (0, 1, 10))
    assert shares.of(first)[SMALL] == Share(5)
    assert shares.enlarge(first, SMALL, Share(5)) == (SMALL, Share(4))
    assert (shares.of(second)[SMALL], shares.of(other)[SMALL]) == (Share(4), Share(5))
    assert shares.enlarge(first, SMALL, Share(4)) == (SMALL, Share(2))
    assert shares.enlarge(first, SMALL, Share(2)) == (SMALL, Share(1))
    assert shares.enlarge(first, SMALL, Share(1)) is None, "the whole GPU was too small"
    assert shares.of(second)[SMALL] == Share(1)
    assert shares.too_small("0") == [(SMALL, Share(5)), (SMALL, Share(4)), (SMALL, Share(2)), (SMALL, Share(1))]


def test_no_trial_is_tried_for_ever() -> None:
    shares = RetryShares(planned(small=64), lambda trial: SIGNATURE)
    trial, share, tries = Trial("t", 0, {}), Share(64), 0
    while (larger := shares.enlarge(trial, SMALL, share)) is not None:
        share, tries = larger[1], tries + 1
    assert (tries, share) == (MOST_RETRIES, Share(15))


def test_each_type_of_device_has_its_own_shares() -> None:
    shares = RetryShares(planned(small=2, big=5), lambda trial: SIGNATURE if trial.seed < 10 else Signature(()))
    first, second, other = (Trial(str(seed), seed, {}) for seed in (0, 1, 10))
    assert shares.enlarge(first, SMALL, Share(2)) == (SMALL, Share(1))
    assert (shares.of(second)[SMALL], shares.of(second)[BIG]) == (Share(1), Share(5)), "enough here, and untried there"
    assert shares.enlarge(first, SMALL, Share(1)) == (BIG, Share(2)), "more than the 8 GiB that were too small"
    assert shares.fitting(second) == [BIG], "no other one of its kind is tried where the whole GPU was too small"
    assert shares.fitting(other) == [BIG, SMALL]
    assert shares.enlarge(first, BIG, Share(2)) == (BIG, Share(1))
    assert shares.enlarge(first, BIG, Share(1)) is None, "there is nothing larger"
    assert shares.fitting(second) == [BIG, SMALL], "it fits nowhere: its result says so"
