"""The configuration of every command: its schema, and how a file and flags become one.

Gives `load` and a schema for each command; the tables that they share are in `sections`, and `source` finds the user's
code by its name. Imports `errors`, `storage` and `experiment`; never torch, TensorFlow, Ray or MLflow.
"""

from raygpu.config.loading import fields, laid_over, literal, load, own_place, read_toml, unread_line, validated
from raygpu.config.problem_schema import NAME_PATTERN, ProblemConfig, StoredConfig, TrialsConfig
from raygpu.config.schemas import BalanceConfig, PackConfig, PlaceConfig, TrainConfig
from raygpu.config.sections import TrackingSection
from raygpu.config.slurm_section import SlurmSection, SubmitConfig
from raygpu.config.sweep_schema import SweepConfig

__all__ = [
    "NAME_PATTERN",
    "BalanceConfig",
    "PackConfig",
    "PlaceConfig",
    "ProblemConfig",
    "SlurmSection",
    "StoredConfig",
    "SubmitConfig",
    "SweepConfig",
    "TrackingSection",
    "TrainConfig",
    "TrialsConfig",
    "fields",
    "laid_over",
    "literal",
    "load",
    "own_place",
    "read_toml",
    "unread_line",
    "validated",
]
