"""A model's score on the test data is that of its best checkpoint, evaluated by hand; torch and Keras."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.digits import KerasMlp, Mlp, digits
from raygpu.config.source import locate
from raygpu.experiment import Splits
from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from raygpu.training.folds import Folds
from raygpu.training.model_scores import model_scores

HP = {"hidden": 16, "lr": 0.1}
SETTINGS = Settings(2, 1, "float32", Path())


def with_test() -> Splits:
    whole = digits()
    pixels, labels = np.asarray(whole.train_inputs), np.asarray(whole.train_targets)
    return Splits(pixels[:300], labels[:300], pixels[300:400], labels[300:400], pixels[400:600], labels[400:600])


def cross_entropy(logits: np.ndarray, labels: np.ndarray) -> float:
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return float(-log_p[np.arange(len(labels)), labels].mean())


def expected(logits: np.ndarray, splits: Splits) -> Any:
    labels = np.asarray(splits.test_targets)
    return pytest.approx(
        {"loss": cross_entropy(logits, labels), "accuracy": float((logits.argmax(axis=1) == labels).mean())}, rel=1e-4
    )


def test_a_torch_model_alone_and_a_member_of_an_array(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from raygpu.training.fused.model_array import TorchArray
    from raygpu.training.torch.models import trained_model
    from raygpu.training.torch.solo import TorchSolo

    source, code = locate("experiments.digits:Mlp", tmp_path)
    splits, trials = with_test(), [Trial("t0000", 3, HP), Trial("t0001", 4, {**HP, "lr": 0.02})]
    solo = TorchSolo(Mlp(), splits, trials[0], SETTINGS, torch.device("cpu"))
    array = TorchArray(Mlp(), splits, trials, SETTINGS, device=torch.device("cpu"))
    solo.run_epoch()
    array.run_epoch()
    tested = splits.for_test()
    assert tested is not None
    for name, save in (("alone", solo.save), ("member", lambda folder: array.save_member("t0001", folder))):
        (tmp_path / name).mkdir()
        save(tmp_path / name)
        trial = trials[name == "member"]
        with torch.no_grad():
            logits = trained_model(Mlp(), Trial(name, 0, HP), tmp_path / name)(
                torch.as_tensor(splits.test_inputs)
            ).numpy()
        assert model_scores(source, code, tested, trial, tmp_path / name, SETTINGS, print) == expected(logits, splits)


def test_a_keras_model_of_a_fold(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    from raygpu.training.keras.solo import KerasSolo, predict

    source, code = locate("experiments.digits:KerasMlp", tmp_path)
    splits, trial = with_test(), Trial("t0000-2", 3, HP, repeat=0, fold=1)
    solo = KerasSolo(KerasMlp(), Folds.of(splits, 4, seed=0), trial, SETTINGS)
    solo.run_epoch()
    solo.save(tmp_path)
    tested = splits.for_test()
    assert tested is not None
    _, outputs = predict(KerasMlp(), Trial("t0000", 0, HP), tmp_path, np.asarray(splits.test_inputs))
    found = model_scores(source, code, tested, trial, tmp_path, SETTINGS, print)
    assert found == expected(np.asarray(outputs), splits)
