"""Export of a trained Keras model as a program that needs none of the experiment's code."""

from __future__ import annotations

from pathlib import Path

from raygpu.experiment import Arrays, Experiment
from raygpu.search.trials import Trial
from raygpu.training.base import Exported
from raygpu.training.keras.data import tensors
from raygpu.training.keras.quiet_import import keras, tf
from raygpu.training.keras.solo import in_float32, no_gpu, trained_model


def export(experiment: Experiment, trial: Trial, checkpoint: Path, inputs: Arrays, folder: Path) -> Exported:
    """Export a checkpoint as a TensorFlow SavedModel. inputs: a few samples. folder: for the program.

    Raises any exception of Keras, and TypeError for a model whose output is not one tensor.
    """
    with no_gpu():
        model = trained_model(experiment, trial, checkpoint, inputs)
        samples = tensors(inputs)
        outputs = model(samples, training=False)
        if not tf.is_tensor(outputs):
            raise TypeError(f"the model's output is {type(outputs).__name__}; one tensor is wanted")
        program = folder / "saved_model"
        spec = tf.nest.map_structure(lambda tensor: tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype), samples)
        archive = keras.export.ExportArchive()
        archive.track(model)
        archive.add_endpoint("serve", lambda inputs: model(inputs, training=False), input_signature=[spec])
        archive.write_out(program, verbose=False)
    return Exported(model, in_float32(outputs).numpy(), program)
