"""A Keras model, as MLflow loads it: a SavedModel, without the code behind it.

MLflow keeps this file with the model ("models from code") and runs it where the model is loaded; raygpu is not needed.
"""

from __future__ import annotations

from typing import Any

import mlflow.models
import mlflow.pyfunc


class ExportedModel(mlflow.pyfunc.PythonModel):
    """Keras model that MLflow loads from a SavedModel."""

    def load_context(self, context: Any) -> None:
        """Load the SavedModel of MLflow's artifact `program`."""
        import tensorflow as tf

        self.program = tf.saved_model.load(context.artifacts["program"])

    # MLflow takes types that are named here for a schema, and warns of those that it does not know.
    def predict(self, context, model_input, params=None):  # type: ignore[no-untyped-def]
        """Return the model's output, (samples, ...), for an array; for named inputs, a mapping or table of arrays."""
        import numpy as np
        import tensorflow as tf

        if isinstance(model_input, np.ndarray):
            return np.asarray(self.program.serve(tf.constant(model_input)))
        names = model_input.columns if hasattr(model_input, "columns") else model_input.keys()
        return np.asarray(self.program.serve({name: tf.constant(np.asarray(model_input[name])) for name in names}))


mlflow.models.set_model(ExportedModel())
