"""The models that every test of arrays is run with."""

from __future__ import annotations

import pytest

from tests.models import MODELS


@pytest.fixture(params=MODELS)
def model_name(request: pytest.FixtureRequest) -> str:
    return request.param
