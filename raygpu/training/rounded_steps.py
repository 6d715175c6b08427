"""Steps of an optimizer that half precision rounds away."""

from __future__ import annotations

from collections.abc import Iterable

SHARES = {"bfloat16": 2**-9, "float16": 2**-12}
"""Share of a parameter below which a step always leaves it as it is: half of its last digit at most."""
ROUNDED = (
    "parameters are trained in {dtype}: of a step that moves one by less than {percent:.2g} %, nothing is left; make"
    " the model in float32, and compute in half precision by --gpu.precision bf16"
)


def rounding_lines(dtypes: Iterable[str]) -> list[str]:
    """Return a line if there is half precision among the number types of the parameters that raygpu's optimizer
    changes."""
    return [ROUNDED.format(dtype=each, percent=100 * SHARES[each]) for each in sorted(SHARES.keys() & set(dtypes))][:1]
