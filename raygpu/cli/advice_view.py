"""The view of an advice: its table, its evidence and its verdict."""

from __future__ import annotations

from raygpu.cli.formatting import aligned, interval
from raygpu.cli.profile_view import NAMES, QUESTION
from raygpu.planning.advice import EFFICIENT, Advice
from raygpu.planning.confidence import Interval, spread_text
from raygpu.planning.profiles import Profile


def table(advice: Advice) -> list[str]:
    """Return a table with a line for each number of devices; empty without speed-ups."""
    if len(advice.scaling.speedups) < 2:
        return []
    bound = "at most " if advice.scaling.evidence == "one_device" else ""
    rows = [["devices", f"{bound}speed-up", f"{bound}efficiency"]]
    rows += [[str(s.devices), _text(s.times, "x"), _text(s.efficiency)] for s in advice.scaling.speedups]
    return aligned(rows)


def evidence(profile: Profile, advice: Advice, *, kept: bool) -> list[str]:
    """Return a line for each source of the advice. kept: whether the profile is an earlier one."""
    source = f"kept profile of {profile.measured_at}, same device and versions" if kept else "measured now"
    lines = [f"evidence, several trainings on one device: {source}{' (synthetic data)' if profile.synthetic else ''}"]
    several = "evidence, one training on several devices: "
    if advice.answer == "share":
        lines.append(f"{several}not measured: the training does not fill one")
    elif advice.scaling.evidence == "measured":
        lines.append(f"{several}measured now, short data-parallel trainings with the same batch")
        if advice.predicted:
            last = advice.scaling.speedups[-1].devices
            lines.append(f"evidence, more than {last} devices: predicted (Universal Scalability Law through these)")
    elif advice.scaling.evidence == "one_device":
        lines.append(
            f"{several}predicted from parts of the batch on one device; the exchange of gradients is not in it, so"
            " these are upper bounds"
        )
    return [*lines, *advice.scaling.notes]


def verdict(profile: Profile, advice: Advice) -> str:
    """Return the answer with its uncertainty, in one line."""
    return f"{QUESTION} {_answer(profile, advice)}"


def _answer(profile: Profile, advice: Advice) -> str:
    point, n = advice.point, advice.devices
    if advice.answer == "too_large":
        return "several GPUs: the training does not fit one (raygpu place says how many hold it)"
    if point is None:
        return "not known: nothing could be measured"
    if advice.answer == "not_known":
        return "not known: the spread exceeds the gain of sharing; measure on an idle machine, or with more --rounds"
    if advice.answer == "share":
        spread = spread_text(point.spread.low, point.spread.high, "{:.1f}")
        many = f"{point.n} {NAMES[point.way]}, {point.spread.middle:.1f}x{spread} the throughput of one"
        return f"several trainings on one GPU, for one is too small for it: {many}"
    if len(advice.scaling.speedups) < 2:
        return "one training on one GPU, which it fills; what more GPUs would gain was not measured"
    two = next(s for s in advice.scaling.speedups if s.devices > 1)
    if advice.answer == "one":
        sure = "" if two.efficiency.high < EFFICIENT else ", within noise of it"
        at_most = "at most " if advice.scaling.evidence == "one_device" else ""
        return (
            f"one training on one GPU, which it fills: {two.devices} have an efficiency of {at_most}"
            f"{_text(two.efficiency)}, below {EFFICIENT:g}{sure}"
        )
    if advice.scaling.evidence == "one_device":
        return (
            f"one training fills this GPU, and is worth {n} at most: the efficiency stays above {EFFICIENT:g} only if"
            " the exchange of gradients costs nothing; measure on several GPUs"
        )
    last = max((s for s in advice.scaling.speedups if s.devices <= n), key=lambda s: s.devices)
    source = "predicted" if advice.predicted else f"{advice.surely} to {advice.at_most} with 95 % confidence"
    return (
        f"several GPUs for one training: {n} before the efficiency falls below {EFFICIENT:g} ({source}); {last.devices}"
        f" measured {_text(last.times, 'x')}, an efficiency of {_text(last.efficiency)}"
    )


def _text(value: Interval, unit: str = "") -> str:
    """Return a number with its interval, if it has one: `1.90x (1.88 to 1.92)`."""
    return f"{value.middle:.2f}{unit}" if value.low == value.high else interval(value, unit)
