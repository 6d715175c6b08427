"""The optimizers of Keras trainings take the steps of torch.optim, in half precision too."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch

from raygpu.training.hyperparameters import OptimizerSettings

pytestmark = pytest.mark.skipif(find_spec("tensorflow") is None, reason="TensorFlow is not installed")
SETTINGS = {
    "sgd": {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01},
    "nesterov": {"lr": 0.05, "momentum": 0.9, "nesterov": True, "clip_norm": 0.5},
    "adam": {"optimizer": "adam", "lr": 0.01, "weight_decay": 0.1},
    "adamw": {"optimizer": "adamw", "lr": 0.01, "weight_decay": 0.1, "clip_norm": 0.5},
}


def by_torch(s: OptimizerSettings, values: np.ndarray, gradients: list[np.ndarray], dtype: str) -> np.ndarray:
    """Return the values after torch.optim's own steps, rounded to this type after each of them."""
    parameter = torch.nn.Parameter(torch.from_numpy(values))
    match s.optimizer:
        case "sgd":
            kind: Any = torch.optim.SGD
            own: dict[str, Any] = {"momentum": s.momentum, "nesterov": s.nesterov}
        case "adam":
            kind, own = torch.optim.Adam, {"betas": s.betas, "eps": s.eps}
        case "adamw":
            kind, own = torch.optim.AdamW, {"betas": s.betas, "eps": s.eps}
    optimizer = kind([parameter], lr=s.lr, weight_decay=s.weight_decay, **own)
    rounded = getattr(torch, dtype)
    for gradient in gradients:
        parameter.grad = torch.from_numpy(gradient).to(rounded).float()
        if s.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_([parameter], s.clip_norm)
        optimizer.step()
        state = optimizer.state[parameter]
        kept = (state[name] for name in ("momentum_buffer", "exp_avg", "exp_avg_sq") if name in state)
        for tensor in (parameter.data, *kept):
            tensor.copy_(tensor.to(rounded))
    return parameter.detach().numpy()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", SETTINGS)
def test_steps_are_those_of_torch(name: str, dtype: str) -> None:
    import keras

    from raygpu.training.keras.optimizers import make_optimizer

    settings = OptimizerSettings.of(SETTINGS[name])
    rng = np.random.default_rng(0)
    values = rng.normal(size=64).astype(np.float32)
    values = torch.from_numpy(values).to(getattr(torch, dtype)).float().numpy()
    gradients = [rng.normal(size=64).astype(np.float32) for _ in range(20)]
    for gradient in gradients:
        gradient[:8] = 0  # of an embedding's row that no sample had
    variable = keras.Variable(values, dtype=dtype)
    optimizer = make_optimizer(settings)
    optimizer.build([variable])
    for gradient in gradients:
        optimizer.apply([keras.ops.cast(gradient, dtype)], [variable])
    assert keras.backend.standardize_dtype(variable.dtype) == dtype
    found = keras.ops.convert_to_numpy(keras.ops.cast(variable, "float32"))
    tolerance = {"float32": 1e-6, "bfloat16": 2**-8, "float16": 2**-11}[dtype]
    wanted = by_torch(settings, values.copy(), gradients, dtype)
    assert np.abs(wanted - values).max() > 0.05, "or nothing was tested"
    np.testing.assert_allclose(found, wanted, rtol=2 * tolerance, atol=tolerance)
