from __future__ import annotations

import datetime
import json
import math

import pytest

from raygpu.finish import plain


@pytest.mark.parametrize("value", [1, 0.5, "relu", True, [64, 32], {"a": 1}, None])
def test_what_json_holds_stays(value: object) -> None:
    assert plain(value) == value


@pytest.mark.parametrize("value", [math.inf, math.nan, datetime.date(2026, 1, 2), [math.inf], (object,)])
def test_the_rest_becomes_text(value: object) -> None:
    assert plain(value) == str(value)
    json.dumps(plain(value), allow_nan=False)
