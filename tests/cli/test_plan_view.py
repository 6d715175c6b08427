from __future__ import annotations

from raygpu.cli.plan_view import architecture_lines
from raygpu.search.architectures import Architectures


def test_many_signatures_and_what_they_cost() -> None:
    found = Architectures(("layers", "width1"), 11, 24, 14, ())
    assert architecture_lines(found, drawn=True) == [
        "plan: 24 trials have 11 signatures, by layers, width1; [space] makes 14: only equal ones share an array, so"
        " 2.2 trials on average where one signature would allow 24"
    ]
    (line,) = architecture_lines(found, drawn=False)
    assert line.startswith("plan: a generation of 24 trials has about 11 signatures")


def test_no_end_of_values_and_a_few() -> None:
    (line,) = architecture_lines(Architectures(("dropout",), 8, 8, None, ("dropout",)), drawn=True)
    assert line.endswith("; dropout has no end of values, which a short choice would mend")
    assert "[space] makes" not in line
    assert architecture_lines(Architectures(("hidden",), 3, 64, 3, ()), drawn=True) == []
    assert architecture_lines(None, drawn=True) == []
