"""Cross-validation over torch, Keras and fused arrays: a fold trains as the same data cut by hand does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.digits import KerasMlp, Mlp, digits
from raygpu.experiment import Splits
from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from raygpu.training.folds import Folds
from tests.contracts.frameworks import KerasHalves, TorchHalves, halves

HP = {"hidden": 16, "lr": 0.1, "momentum": 0.9, "batch_size": 32}
NUM_FOLDS = 5


@cache
def folds_of(num_samples: int = 403, fraction: float = 1.0) -> Folds:
    """Folds of digits: with 403 samples three of 81 and two of 80."""
    return Folds.of(first(digits(), num_samples), NUM_FOLDS, seed=1, fraction=fraction)


def first(whole: Splits, count: int) -> Splits:
    held = count // 5
    part = whole.first(count - held)
    return replace(
        part, validation_inputs=whole.validation_inputs[:held], validation_targets=whole.validation_targets[:held]
    )


def few_halves() -> Splits:
    """As many samples as `folds_of` has, in two inputs."""
    whole = halves()

    def cut(part: Any, count: int) -> dict[str, Any]:
        return {name: values[:count] for name, values in part.items()}

    return Splits(
        cut(whole.train_inputs, 323), whole.train_targets[:323],
        cut(whole.validation_inputs, 80), whole.validation_targets[:80],
    )  # fmt: skip


def trial(fold: int, seed: int = 7, number: int = 0, **hp: Any) -> Trial:
    name = Trial.repeat_name(Trial.name(number), fold)
    return Trial(name, seed, {**HP, **hp}, repeat=0, fold=fold)


def settings(epochs: int = 3) -> Settings:
    return Settings(epochs, 1, "float32", Path())


def by_hand(fold: int, folds: Folds) -> Splits:
    """The data of a fold, without `Folds.split`: everything outside of its slice, in the pool's order."""
    held = np.zeros(folds.starts[-1], bool)
    held[folds.starts[fold] : folds.starts[fold + 1]] = True
    inputs, targets = np.asarray(folds.inputs), np.asarray(folds.targets)
    return Splits(inputs[~held], targets[~held], inputs[held], targets[held])


@pytest.mark.parametrize(
    ("kind", "fold"),
    [
        *(("torch", 0), ("keras", 2), ("torch", 4)),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in (("keras", 0), ("torch", 2), ("keras", 4))),
    ],
)
def test_a_fold_alone_trains_as_data_cut_by_hand(kind: str, fold: int) -> None:
    pytest.importorskip("torch" if kind == "torch" else "tensorflow")
    if kind == "torch":
        from raygpu.training.torch.solo import TorchSolo as Solo

        experiment: Any = Mlp()
    else:
        from raygpu.training.keras.solo import KerasSolo as Solo  # type: ignore[assignment]

        experiment = KerasMlp()
    folds = folds_of()
    of_fold = Solo(experiment, folds, trial(fold), settings())
    cut = Solo(experiment, by_hand(fold, folds), replace(trial(fold), fold=None), settings())
    for _ in range(3):
        found, expected = of_fold.run_epoch(), cut.run_epoch()
        assert found is not None
        assert expected is not None
        assert found.metrics == expected.metrics
        assert found.num_samples == folds.num_train(fold) == expected.num_samples
    of_fold.close()
    cut.close()


@pytest.mark.parametrize("kind", ["torch", "keras"])
def test_a_fraction_trains_on_a_part_and_validates_on_the_whole_fold(kind: str) -> None:
    pytest.importorskip("torch" if kind == "torch" else "tensorflow")
    if kind == "torch":
        from raygpu.training.torch.solo import TorchSolo as Solo

        experiment: Any = TorchHalves()
    else:
        from raygpu.training.keras.solo import KerasSolo as Solo  # type: ignore[assignment]

        experiment = KerasHalves()
    folds = Folds.of(halves(), NUM_FOLDS, seed=1, fraction=0.25)
    of_fold = Solo(experiment, folds, trial(3), settings())
    cut = Solo(experiment, folds.split(3), replace(trial(3), fold=None), settings())
    found, expected = of_fold.run_epoch(), cut.run_epoch()
    assert found is not None
    assert expected is not None
    assert found.metrics == expected.metrics
    assert found.num_samples == round(0.25 * (1797 - 359))


def members(folds: Sequence[int]) -> list[Trial]:
    """Two sets of hyper-parameters in each of these folds, all with seeds of their own."""
    own: list[Mapping[str, Any]] = [{"lr": 0.1}, {"lr": 0.02, "weight_decay": 0.01}]
    return [
        trial(fold, seed=10 * number + fold, number=number, **values)
        for number, values in enumerate(own)
        for fold in folds
    ]


@pytest.mark.parametrize(("fraction", "width"), [(1.0, 4), (0.5, None)])
@pytest.mark.parametrize("experiment", ["one input", "two inputs, dropout and batch norm"])
def test_members_of_several_folds_equal_their_trainings_alone(
    fraction: float, width: int | None, experiment: str
) -> None:
    torch = pytest.importorskip("torch")
    from raygpu.training.fused.model_array import TorchArray
    from raygpu.training.torch.solo import TorchSolo

    cpu = torch.device("cpu")
    code: Any = Mlp() if experiment == "one input" else TorchHalves()
    if experiment == "one input":
        folds = folds_of(fraction=fraction)
    else:
        folds = Folds.of(few_halves(), NUM_FOLDS, seed=1, fraction=fraction)
    same_size = [fold for fold in range(NUM_FOLDS) if folds.num_validation(fold) == folds.num_validation(0)]
    assert len(same_size) == 3
    trials = [
        replace(each, hyperparameters={**each.hyperparameters, "dropout": 0.3, "batch_size": 100})
        for each in members(same_size)
    ]
    array = TorchArray(code, folds, trials, settings(), width=width, device=cpu, dtype=torch.float64)
    fused = [array.run_epoch() for _ in range(3)]
    for each in trials:
        alone = TorchSolo(code, folds, each, settings(), cpu, torch.float64)
        for epoch in range(3):
            expected, results = alone.run_epoch(), fused[epoch]
            assert expected is not None
            assert results is not None
            assert results[each.trial_id].metrics == pytest.approx(expected.metrics, rel=1e-9, abs=1e-12)


def test_members_that_read_each_others_rows_would_differ() -> None:
    """The comparison above can fail: another fold's validation data gives another loss."""
    torch = pytest.importorskip("torch")
    from raygpu.training.torch.solo import TorchSolo

    results = [
        TorchSolo(Mlp(), folds_of(), replace(trial(fold), seed=3), settings(), torch.device("cpu")).run_epoch()
        for fold in (0, 1)
    ]
    assert results[0] is not None
    assert results[1] is not None
    assert results[0].metrics["validation/loss"] != pytest.approx(results[1].metrics["validation/loss"], rel=1e-5)


def test_metrics_that_vmap_cannot_map_see_each_members_own_fold() -> None:
    torch = pytest.importorskip("torch")
    from raygpu.training.fused.model_array import TorchArray
    from raygpu.training.torch.solo import TorchSolo

    class InNumpy(Mlp):
        def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
            hits = outputs.detach().numpy().argmax(axis=1) == targets.numpy()
            return {"accuracy": torch.tensor(hits.mean())}

    trials = members([0, 1, 2])
    array = TorchArray(InNumpy(), folds_of(), trials, settings(), device=torch.device("cpu"))
    results = array.run_epoch()
    assert results is not None
    for each in trials:
        expected = TorchSolo(InNumpy(), folds_of(), each, settings(), torch.device("cpu")).run_epoch()
        assert expected is not None
        assert results[each.trial_id].metrics == pytest.approx(expected.metrics, rel=1e-4)


def test_folds_of_two_sizes_share_no_array() -> None:
    pytest.importorskip("torch")
    from raygpu.training.fused.model_array import TorchArray

    with pytest.raises(ValueError, match=r"folds of one size, and have \[\(322, 81\), \(323, 80\)\]"):
        TorchArray(Mlp(), folds_of(), members([2, 3]), settings())


def test_split_keras_trials_of_several_folds_equal_their_trainings_alone() -> None:
    pytest.importorskip("tensorflow")
    from raygpu.training.keras.solo import KerasSolo
    from raygpu.training.keras.split import KerasSplit

    trials = [trial(fold) for fold in (0, 3)]
    split = KerasSplit(KerasMlp(), folds_of(), trials, settings(), width=1)
    results = split.run_epoch()
    assert results is not None
    for each in trials:
        alone = KerasSolo(KerasMlp(), folds_of(), each, settings()).run_epoch()
        assert alone is not None
        assert results[each.trial_id].metrics == pytest.approx(alone.metrics, rel=1e-5)
    split.close()
