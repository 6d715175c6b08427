from __future__ import annotations

import datetime
import json
import math

import pytest

from raygpu.records.json_files import as_json
from raygpu.workflow.summary import plain


@pytest.mark.parametrize("value", [1, 0.5, "relu", True, [64, 32], {"a": 1}, None])
def test_what_json_holds_stays(value: object) -> None:
    assert plain(value) == value


@pytest.mark.parametrize("value", [math.inf, math.nan, datetime.date(2026, 1, 2), [math.inf], (object,)])
def test_the_rest_becomes_text(value: object) -> None:
    assert plain(value) == str(value)
    json.dumps(plain(value), allow_nan=False)


def test_a_summary_is_valid_json_whatever_is_in_it() -> None:
    summary = {"wall_s": math.inf, "plan": {"rates": [1.0, math.nan]}, "best": None, "name": "x"}
    found = json.loads(json.dumps(as_json(summary), allow_nan=False))
    assert found == {"wall_s": None, "plan": {"rates": [1.0, None]}, "best": None, "name": "x"}
