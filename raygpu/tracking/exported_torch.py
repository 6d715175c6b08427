"""A torch model with named inputs, as MLflow loads it: a program that torch.export wrote, without the code behind it.

MLflow keeps this file with the model ("models from code") and runs it where the model is loaded; raygpu is not needed.
"""

from __future__ import annotations

from typing import Any

import mlflow.models
import mlflow.pyfunc


class ExportedModel(mlflow.pyfunc.PythonModel):
    """Torch model with named inputs that MLflow loads from a program of torch.export."""

    def load_context(self, context: Any) -> None:
        """Load the exported program of MLflow's artifact `program`."""
        import torch

        self.program = torch.export.load(context.artifacts["program"]).module()

    # MLflow takes types that are named here for a schema, and warns of those that it does not know.
    def predict(self, context, model_input, params=None):  # type: ignore[no-untyped-def]
        """Return the model's output, (samples, ...), for a mapping or table of named arrays."""
        import numpy as np
        import torch

        names = model_input.columns if hasattr(model_input, "columns") else model_input.keys()
        with torch.no_grad():
            inputs = {name: torch.from_numpy(np.ascontiguousarray(model_input[name])) for name in names}
            output = self.program(**inputs)
        return output.numpy()


mlflow.models.set_model(ExportedModel())
