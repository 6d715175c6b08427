"""The paired comparison: equal to scipy's, to Holm's worked example, and as seldom wrong as it says."""

import numpy as np
import pytest
from scipy import stats

from raygpu.search.comparison import LEVEL, compare, holm, paired_p, standard_error


def test_the_test_is_scipys_paired_t_test():
    rng = np.random.default_rng(0)
    for count in (2, 3, 5, 20):
        one, other = rng.normal(0, 1, count), rng.normal(0.3, 1, count)
        assert paired_p(list(one), list(other)) == pytest.approx(stats.ttest_rel(one, other).pvalue, rel=1e-9)


def test_equal_differences_count_by_their_sign_and_none_is_no_difference():
    assert paired_p([0.75, 0.5, 1.0], [0.5, 0.25, 0.75]) == paired_p([0.3, 0.2, 0.2 + 1e-17], [0.1, 0.0, 0.0]) == 0.25
    assert paired_p([0.5] * 6, [1.0] * 6) == 2 / 2**6
    assert paired_p([0.5, 0.25, 0.0], [0.5, 0.25, 0.0]) == paired_p([0.0] * 3, [0.0] * 3) == 1.0


@pytest.mark.parametrize("samples", [360, 1797, 10_000])
def test_equal_differences_of_accuracies_in_float32_are_equal(samples):
    def accuracies(*wrong):
        return [float(np.float32((samples - each) / samples)) for each in wrong]

    for wrong in range(10, 50):
        assert paired_p(accuracies(wrong, wrong + 5), accuracies(wrong + 3, wrong + 8)) == 0.5
    one, other = np.float32([0.9, 0.95, 0.99]), np.float32([0.9, 0.95, 0.99]) * np.float32(1 + 1e-7)
    assert paired_p(list(map(float, one)), list(map(float, other))) == 1.0
    other = accuracies(12, 17, 21, 30, 9)
    assert paired_p(accuracies(2, 6, 12, 21, 0), other) < 0.001, "real spread is a t-test's"


def test_scores_of_few_samples_that_differ_alike_by_chance_rule_no_good_set_out():
    rng, wrong = np.random.default_rng(5), 0
    for _ in range(400):
        scores = rng.binomial(100, 0.9, (8, 2)) / 100
        named = {f"t{number:04d}": list(row) for number, row in enumerate(scores)}
        wrong += "t0000" in compare(named, max(named, key=lambda name: np.mean(named[name]))).worse
    assert wrong / 400 < LEVEL


def test_holm_corrects_as_in_the_worked_example():
    # 0.01, 0.02, 0.03, 0.005: times 4, 3, 2, 1 in their order, none below the one before
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_the_variance_over_folds_is_nadeau_and_bengios():
    # 10 differences of 5 folds: t = mean / sqrt((1/10 + 1/4) * variance), with 9 degrees of freedom
    differences, zeros = [0.02, 0.01, 0.03, 0.00, 0.02, 0.01, 0.02, 0.04, -0.01, 0.02], [0.0] * 10
    mean, variance = np.mean(differences), np.var(differences, ddof=1)
    t = mean / np.sqrt((0.1 + 0.25) * variance)
    assert standard_error(differences, 5) == pytest.approx(np.sqrt(0.35 * variance))
    assert paired_p(differences, zeros, 5) == pytest.approx(2 * stats.t.sf(t, 9))
    assert paired_p(differences, zeros, 5) > paired_p(differences, zeros)
    assert compare({"a": differences, "b": zeros}, "a", 5).test.endswith("Nadeau and Bengio's variance")


def test_the_error_of_the_mean():
    assert standard_error([1.0, 2.0, 3.0]) == pytest.approx(stats.sem([1.0, 2.0, 3.0]))
    assert standard_error([1.0]) is None


def test_worse_and_alike_are_told():
    scores = {"best": [0.97, 0.98, 0.96, 0.97, 0.975], "near": [0.96, 0.985, 0.95, 0.97, 0.98], "far": [0.9] * 5}
    found = compare(scores, "best")
    assert (found.worse, found.alike, found.num_pairs) == (["far"], ["near"], 5)
    assert compare({"best": [1.0, 2.0]}, "best") is None
    assert compare({"best": [1.0], "other": [2.0]}, "best") is None


def searches(rng, count, sets, repeats, means=None):
    """Yield comparisons of simulated searches whose sets have these true means, 0 by default."""
    for _ in range(count):
        scores = (
            rng.normal(0, 1, repeats) + rng.normal(0, 1, (sets, repeats)) + (0 if means is None else means[:, None])
        )
        named = {f"t{number:04d}": list(row) for number, row in enumerate(scores)}
        yield compare(named, max(named, key=lambda name: np.mean(named[name])))


def test_with_a_winner_that_was_named_before_the_error_of_any_claim_is_the_level():
    rng = np.random.default_rng(1)
    wrong = 0
    for _ in range(400):
        scores = rng.normal(0, 1, (6, 5))
        wrong += bool(compare({str(number): list(row) for number, row in enumerate(scores)}, "0").worse)
    assert wrong / 400 < LEVEL + 0.03
    assert wrong / 400 > 0.005  # the test is able to decide


def test_a_set_as_good_as_any_is_seldom_ruled_out_though_the_winner_was_chosen_by_its_scores():
    found = list(searches(np.random.default_rng(2), 400, sets=8, repeats=5))
    ruled_out = sum("t0000" in each.worse for each in found)
    single_best = sum(not each.alike for each in found)
    assert ruled_out / 400 < LEVEL
    assert single_best / 400 < LEVEL


def test_a_clear_winner_is_told():
    means = np.array([8.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    found = list(searches(np.random.default_rng(4), 50, sets=6, repeats=8, means=means))
    assert sum(each.winner == "t0000" and not each.alike for each in found) > 40
