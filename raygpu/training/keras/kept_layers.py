"""Layers that live longer than a model: those that an experiment keeps, and those that `model(hp)` returns again."""

from __future__ import annotations

import re
import weakref
import zlib
from collections import defaultdict

from raygpu.experiment import Experiment
from raygpu.training.keras.keras_private_api import all_layers
from raygpu.training.keras.quiet_import import keras, tf
from raygpu.training.own_copy import parts_of

GIVEN = "_raygpu_given"
"""Attribute of variables that a training has got: the experiment of the first one, and a checksum of their values then;
None of those that train."""
NUMBERED = re.compile(r"(.+?)(?:_(\d{1,4}))?")
"""Name that Keras gives to a layer: that of its class, from the second one on with a number."""

KEPT_GENERATOR = (
    "self.{name} keeps a keras.random.SeedGenerator, whose random numbers would depend on the trials before it in its"
    " worker: draw by keras.random without a generator, or by a layer, each trial has seeds of its own"
)


def require_new(model: keras.Model, experiment: Experiment) -> None:
    """Raise ValueError if `model(hp)` has returned variables again, of a training by another copy of the experiment,
    that are trained, or that have changed since."""
    for variable in model.weights:
        checksum = None if variable.trainable else zlib.crc32(tf.convert_to_tensor(variable).numpy().tobytes())
        owner, earlier_checksum = getattr(variable, GIVEN, (None, checksum))
        if owner is None:
            setattr(variable, GIVEN, (weakref.ref(experiment), checksum))
        elif owner() is not experiment and (checksum is None or earlier_checksum != checksum):
            raise ValueError(
                f"model(hp) returned the variable {variable.path} again, which an earlier model has: make new ones, or"
                " keep their layer in an attribute of the experiment; each trial has a copy of it if Keras can copy it,"
                " by its get_config()"
            )


def require_no_generator(experiment: Experiment) -> None:
    """Raise ValueError if an experiment that trains several trials keeps a random generator."""
    for name, value in vars(experiment).items():
        parts = () if isinstance(value, keras.layers.Layer) else (value, *parts_of(value))
        if any(isinstance(each, keras.random.SeedGenerator) for each in parts):
            raise ValueError(KEPT_GENERATOR.format(name=name))


def name_after(experiment: Experiment) -> None:
    """Let Keras name new layers as where it has made those that an experiment keeps: no name is given twice."""
    counts: defaultdict[str, int] = defaultdict(int)
    for value in vars(experiment).values():
        for each in (value, *parts_of(value)):
            for layer in all_layers(each) if isinstance(each, keras.layers.Layer) else ():
                match = NUMBERED.fullmatch(layer.name)
                if match is not None:
                    counts[match[1]] = max(counts[match[1]], int(match[2] or 0) + 1)
    for name, count in counts.items():
        while keras.backend.get_uid(name) < count:
            pass
