"""The zoo: small experiments on which every way of training is compared with one trial alone; `entry.py` tells more."""

from tests.contracts.zoo import (
    chance,
    control_flow,
    hooks,
    hugging_face,
    in_place,
    joint_losses,
    layers,
    losses,
    networks,
    reading,
    sequences,
    state,
    structures,
    texts,
    vision,
    weighted_losses,
)
from tests.contracts.zoo.entry import ZOO, Entry, cases

__all__ = [
    "ZOO",
    "Entry",
    "cases",
    "chance",
    "control_flow",
    "hooks",
    "hugging_face",
    "in_place",
    "joint_losses",
    "layers",
    "losses",
    "networks",
    "reading",
    "sequences",
    "state",
    "structures",
    "texts",
    "vision",
    "weighted_losses",
]
