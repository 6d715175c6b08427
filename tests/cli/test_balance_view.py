"""What a balance says: nothing that its spread does not carry, and what it changes in the training."""

from __future__ import annotations

import pytest

from raygpu.cli import balance_view
from raygpu.cli.balance_view import Step
from raygpu.planning.batch_balancing import BalanceVerdict, MeasuredSplit, PredictedSplit, ThroughputCurve
from raygpu.records.device import Device

DEVICES = [Device(0, "node", "0", "A100"), Device(1, "node", "1", "T4")]


def verdict(turns: list[float], equal: list[float] | None, **values: object) -> BalanceVerdict:
    rates = {16: [900.0, 950.0, 1000.0], 32: [1800.0, 1700.0, 2000.0]}
    curves = [ThroughputCurve({size: each[0] for size, each in rates.items()}, "asked", dict(rates)) for _ in DEVICES]
    shares = (42, 22) if equal is not None else (32, 32)
    job = MeasuredSplit(shares, tuple((0.6 * rate, 0.4 * rate) for rate in turns))
    other = MeasuredSplit((32, 32), tuple((0.5 * rate, 0.5 * rate) for rate in equal)) if equal is not None else None
    groups = values.pop("groups", [[0], [1]])
    return BalanceVerdict(curves, groups, PredictedSplit(shares, 4000.0), job, other, **values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "last"),
    [
        (verdict([3000.0], None, groups=[[0, 1]]),
         "verdict: equal shares; within noise: no device is shown to be faster than another"),
        (verdict([3000.0], None),
         "verdict: equal shares: the devices differ in speed by less than a sample of a step"),
        (verdict([1310.0, 1300.0, 1290.0], [1000.0, 1005.0, 995.0]),
         "verdict: balanced is 1.30x (1.28 to 1.32) the equal split"),
        (verdict([1560.0, 800.0, 1400.0], [1000.0, 1005.0, 995.0]),
         "verdict: equal shares; within noise: the unequal ones were 1.41x (0.49 to 2.96) the equal split"),
        (verdict([705.0, 700.0, 695.0], [1000.0, 1005.0, 995.0]),
         "verdict: equal shares; the unequal ones are slower: 0.70x (0.69 to 0.71) the equal split"),
        (verdict([900.0, 1100.0], [1000.0, 1000.0], asked=True),
         "verdict: within noise: equal shares would do; yours are 0.99x (0.28 to 3.56) the equal split"),
        (verdict([900.0], None, fits=False), "equal shares: out of memory"),
    ],
)  # fmt: skip
def test_the_last_line_is_carried_by_the_spread(found: BalanceVerdict, last: str) -> None:
    assert balance_view.lines(found)[-1] == last


def test_what_changes_in_the_training_is_said() -> None:
    same, larger = Step(64, 0.1), Step(870, 0.1)
    assert balance_view.training(same, same, 1400) == [
        "the training is as configured: 64 samples a step, 22 steps an epoch, learning rate 0.1"
    ]
    assert balance_view.training(same, larger, 1400) == [
        "this changes the training: 870 samples a step in place of 64, 2 steps an epoch in place of 22, learning rate"
        " 0.1 as it was (--lr-scaling linear makes it 1.359)",
        "warning: a step takes 62 % of the 1,400 training samples of an epoch; scores may suffer",
    ]
    (line,) = balance_view.training(Step(64, 0.2), Step(128, 0.4), 1400)
    assert line.endswith("learning rate 0.4 in place of 0.2")


def test_the_table_shows_the_spread() -> None:
    found = verdict([1300.0, 1310.0, 1290.0], [1000.0, 1005.0, 995.0])
    head, first, _ = balance_view.table(DEVICES, found, {1: {"power_w": 250.0}})
    assert "speed over the mean" in head
    assert "1.00 (1.00 to 1.00)" in first
