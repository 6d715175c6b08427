"""The configuration of every command: its schema, and how a file and flags become one.

Gives `load` and a schema for each command; the tables that they share are in `sections`. Imports nothing of raygpu but
`errors`, `redaction` and `storage`, and neither torch, TensorFlow, Ray nor MLflow.
"""

from raygpu.config.loading import OWN_NAMES, fields, load, read_toml, suggestion
from raygpu.config.schemas import (
    NAME_PATTERN,
    BalanceConfig,
    PackConfig,
    ProblemConfig,
    StoredConfig,
    SweepConfig,
    TrainConfig,
)

__all__ = [
    "NAME_PATTERN",
    "OWN_NAMES",
    "BalanceConfig",
    "PackConfig",
    "ProblemConfig",
    "StoredConfig",
    "SweepConfig",
    "TrainConfig",
    "fields",
    "load",
    "read_toml",
    "suggestion",
]
