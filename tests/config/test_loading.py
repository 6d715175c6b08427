"""Values of flags whose names a person chooses."""

from __future__ import annotations

from typing import Any

import pytest
import tomli_w
from hypothesis import given, settings
from hypothesis import strategies as st

from raygpu.config import literal

TIMES = (st.datetimes() | st.times()).map(lambda moment: moment.replace(fold=0))
SCALARS = st.one_of(st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(), st.text(), st.dates(), TIMES)


@settings(deadline=None)
@given(st.recursive(SCALARS, lambda inner: st.lists(inner), max_leaves=5))
def test_a_value_written_as_toml_keeps_its_type(value: Any) -> None:
    written = tomli_w.dumps({"value": value}).removeprefix("value = ").strip()
    assert repr(literal(written)) == repr(value)


@pytest.mark.parametrize("text", ["relu", "True", "None", "(1, 2)", "", "a = 1", "'open", "0x"])
def test_other_text_stays(text: str) -> None:
    assert literal(text) == text
