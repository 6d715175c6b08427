"""The architectures of a search in lines: how many there are, and what that costs arrays."""

from __future__ import annotations

from raygpu.search.architectures import Architectures

FEW = 6
"""Number of signatures that need no line: the plan lists their arrays one by one."""


def architecture_lines(found: Architectures | None, *, drawn: bool) -> list[str]:
    """Return a line on the signatures of a search; empty for a few.

    drawn: whether these are all trials of the sweep; otherwise they are a sample as large as a generation.
    """
    if found is None or (max(found.num_signatures, found.possible or 0) <= FEW and not found.endless):
        return []
    trials = f"{found.num_trials} trials" if drawn else f"a generation of {found.num_trials} trials"
    have = "have" if drawn else "has about"
    by = ", ".join(found.names)
    possible = f"; [space] makes {found.possible:,}" if found.possible is not None else ""
    width = f"{found.mean_width:.1f}".removesuffix(".0")
    endless = ""
    if found.endless:
        verb = "has" if len(found.endless) == 1 else "have"
        endless = f"; {', '.join(found.endless)} {verb} no end of values, which a short choice would mend"
    return [
        f"plan: {trials} {have} {found.num_signatures} signatures, by {by}{possible}: only equal ones share an array,"
        f" so {width} trials on average where one signature would allow {found.num_trials}{endless}"
    ]
