"""The device of trainings that tests compare: the CPU, or the one of the environment variable TEST_DEVICE.

TEST_DEVICE=cuda .venv/bin/python -m pytest tests/contracts tests/training -m "not slow"
"""

from __future__ import annotations

import os

import torch

DEVICE = torch.device(os.environ.get("TEST_DEVICE", "cpu"))
