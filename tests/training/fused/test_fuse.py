"""`raygpu.fuse`, and an array that looks after itself while it trains."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import raygpu
from raygpu.search.trials import Trial
from raygpu.training.base import NotAsAlone, Settings
from raygpu.training.fused.model_array import TorchArray
from raygpu.training.torch.solo import TorchSolo
from tests.models import Mlp, few
from tests.torch_device import DEVICE


def trials(own: list[dict[str, Any]]) -> list[Trial]:
    return [
        raygpu.Trial(f"t{i}", seed=i, hyperparameters={"hidden": 8, "batch_size": 25, **o}) for i, o in enumerate(own)
    ]


LRS: list[dict[str, Any]] = [{"lr": 0.1}, {"lr": 0.05}, {"lr": 0.2}]


def test_an_array_from_python() -> None:
    array = raygpu.fuse(Mlp(), trials(LRS), epochs=2)
    names = []
    while (results := array.run_epoch()) is not None:
        names.append(list(results))
    assert names == [["t0", "t1", "t2"]] * 2
    Mlp().model({"hidden": 8}).load_state_dict(array.member_state("t1")["model"])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (trials(LRS)[:1] * 2, "t0 given more than once"),
        (trials([{"hidden": 8}, {"hidden": 16}]), "differ in hidden"),
        (trials([{"batch_size": 8}, {"batch_size": 16}]), "differ in batch_size"),
        ([], "none given"),
    ],
)
def test_trials_that_cannot_share_an_array(given: list[Trial], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        raygpu.fuse(Mlp(), given, epochs=2)


class Moving(Mlp):
    """A model that assigns a buffer in an evaluation, too."""

    def model(self, hp: raygpu.Hyperparameters) -> nn.Module:
        class Shifted(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = Mlp().model(hp)
                self.register_buffer("shift", torch.zeros(()))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                outputs: torch.Tensor = self.inner(x)
                self.shift = self.shift * 0.9 + outputs.detach().mean(0)
                return outputs + self.shift

        return Shifted()


@pytest.mark.parametrize(("experiment", "own"), [(Mlp(), {"micro_batch_size": 5}), (Moving(), {})])
def test_one_trial_alone_is_checked_as_several_are(experiment: Mlp, own: dict[str, Any]) -> None:
    with pytest.raises(NotAsAlone):
        raygpu.fuse(experiment, trials([{"lr": 0.1, **own}]), epochs=2, splits=few(100))
    array = raygpu.fuse(Mlp(), trials(LRS[:1]), epochs=2, splits=few(100))
    assert [list(array.run_epoch() or ()) for _ in range(3)] == [["t0"], ["t0"], []]


def run_to_the_end(array: TorchArray) -> None:
    while array.run_epoch() is not None:
        pass


class Later(nn.Linear):
    """Does something else from its n-th step on; the count is out of every look's sight."""

    def __init__(self, count: io.BytesIO, effect: Any) -> None:
        super().__init__(64, 10)
        self.__dict__["hidden_from_looks"] = count.write
        self.effect = effect

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.hidden_from_looks(b"1" * self.training)
        return super().forward(x if self.hidden_from_looks.__self__.tell() <= 40 else self.effect(x))


class Changing(Mlp):
    """The first model of the process counts its steps; others begin anew, as trainings alone do."""

    def __init__(self, effect: Any) -> None:
        self.effect = effect

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return Later(io.BytesIO(), self.effect)


def test_what_only_later_steps_do_is_found_while_the_array_trains() -> None:
    experiment = Changing(lambda x: 2 * x)
    array = raygpu.fuse(experiment, trials(LRS), epochs=16, splits=few(100))
    with pytest.raises(NotAsAlone, match=r"after epoch 8: .*differ from the same steps of the trial alone"):
        run_to_the_end(array)


def test_random_numbers_of_later_steps_are_found() -> None:
    experiment = Changing(lambda x: nn.functional.dropout(x, 0.5))
    array = raygpu.fuse(experiment, trials(LRS), epochs=16, splits=few(100))
    array.audits = False
    with pytest.raises(NotAsAlone, match="random numbers in some steps only"):
        run_to_the_end(array)


def test_a_name_that_later_steps_read_is_found() -> None:
    class Reading(Changing):
        def model(self, hp: Mapping[str, Any]) -> nn.Module:
            return Later(io.BytesIO(), lambda x: x * hp["lr"])

    array = raygpu.fuse(Reading(None), trials(LRS), epochs=16, splits=few(100))
    array.audits = False
    with pytest.raises(NotAsAlone, match="the members differ in lr, which"):
        run_to_the_end(array)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_an_audit_leaves_no_trace(precision: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def trained() -> list[dict[str, float]]:
        array = TorchArray(Mlp(), few(100), trials(LRS), Settings(4, 1, precision, Path()), device=DEVICE)
        found = []
        while (results := array.run_epoch()) is not None:
            found += [dict(result.metrics) for result in results.values()]
        return found

    audited = trained()
    monkeypatch.setattr("raygpu.training.fused.model_array.is_due", lambda epoch: False)
    assert trained() == audited


class Pretrained(Mlp):
    """Frozen layers with statistics of batches, which the experiment holds; their code names a number type."""

    def __init__(self) -> None:
        torch.manual_seed(5)
        self.backbone = nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8)).requires_grad_(False)

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        class Single(nn.Module):
            def __init__(self, backbone: nn.Module) -> None:
                super().__init__()
                self.backbone, self.head = backbone, nn.Linear(8, 10)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.head(self.backbone(x.to(torch.float32)))

        return Single(self.backbone)


def test_the_layers_of_an_experiment_are_those_that_it_was_given() -> None:
    experiment, settings = Pretrained(), Settings(2, 1, "float32", Path())
    fresh = {name: value.clone() for name, value in experiment.backbone.state_dict().items()}
    wanted = TorchSolo(Pretrained(), few(100), trials(LRS)[0], settings, DEVICE)
    results = [wanted.run_epoch() for _ in range(2)]
    for _ in range(2):  # the first one is audited
        array = raygpu.fuse(experiment, trials(LRS), epochs=2, splits=few(100), device=DEVICE)
        for result in results:
            assert result is not None
            found = array.run_epoch()
            assert found is not None
            assert found["t0"].metrics == pytest.approx(result.metrics, rel=1e-5)
    assert all(torch.equal(value, fresh[name]) for name, value in experiment.backbone.state_dict().items())


def test_layers_of_an_experiment_that_train_are_each_members_own() -> None:
    class Trained(Mlp):
        def __init__(self) -> None:
            torch.manual_seed(5)
            self.first = nn.Linear(64, 8)

        def model(self, hp: Mapping[str, Any]) -> nn.Module:
            return nn.Sequential(self.first, nn.ReLU(), nn.Linear(8, 10))

    experiment, settings = Trained(), Settings(2, 1, "float32", Path())
    array = raygpu.fuse(experiment, trials(LRS), epochs=2, splits=few(100), device=DEVICE)
    run_to_the_end(array)
    for trial in trials(LRS):
        alone = TorchSolo(Trained(), few(100), trial, settings, DEVICE)
        while alone.run_epoch() is not None:
            pass
        state = array.member_state(trial.trial_id)["model"]
        for name, value in alone.model.state_dict().items():
            torch.testing.assert_close(state[name], value, rtol=1e-4, atol=1e-5)
