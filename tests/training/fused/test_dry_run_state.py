"""State, hooks and random numbers that a dry run refuses by name."""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from raygpu.training.base import Settings
from raygpu.training.fused import member_models
from raygpu.training.fused.model_array import TorchArray
from raygpu.training.torch.solo import TorchSolo
from tests.models import few
from tests.training.fused.refusals import Head, Of, reason, trials, why


class Counting(nn.Module):
    """Puts new buffers in place of old ones, and lets its output depend on them."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(64, 10)
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))
        self.register_buffer("mean", torch.zeros(10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.last(x)
        if self.training:
            self.steps = self.steps + 1
            self.mean = 0.9 * self.mean + 0.1 * y.detach().mean(0)
        return torch.where(self.steps > 1, 2.0, 1.0) * (y - self.mean)


def test_buffers_that_are_replaced_are_kept() -> None:
    experiment = Of(lambda hp: Counting())
    found = trials()
    assert why(experiment, found) is None
    settings = Settings(2, 1, "float32", Path())
    array = TorchArray(experiment, few(), found, settings)
    while array.run_epoch() is not None:
        pass
    for trial in found:
        alone = TorchSolo(experiment, few(), trial, settings)
        while alone.run_epoch() is not None:
            pass
        state = array.member_state(trial.trial_id)["model"]
        assert state["steps"] == alone.model.state_dict()["steps"] > 1
        assert torch.allclose(state["mean"], alone.model.state_dict()["mean"], rtol=1e-4, atol=1e-6)


class Hooked(nn.Linear):
    """Its weight's gradient is nothing, by a hook that vmap does not see."""

    def __init__(self) -> None:
        super().__init__(64, 10)
        self.weight.register_hook(torch.zeros_like)


def test_hooks_are_refused_by_name() -> None:
    assert "the parameter weight has a hook" in reason(Of(lambda hp: Hooked()))


class Swapped(nn.Linear):
    """Another function of the weights than autograd takes the gradient of, by a value that is in no record."""

    def __init__(self, scale: float) -> None:
        super().__init__(64, 10)
        self.__dict__["_scale"] = [scale]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._scale[0] * super().forward(x)


@pytest.mark.parametrize("lr", [1e-8, 1e-2])
def test_small_steps_hide_no_gradient(lr: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member_models, "differing_attributes", lambda *_: [])  # which would find it at once
    experiment = Of(lambda hp: Swapped(getattr(hp, "_values", hp)["scale"]))
    found = trials(own=[{"lr": lr, "scale": 1.0}, {"lr": 2 * lr, "scale": 1.01}])
    assert "of t0001 differs" in reason(experiment, found)


class Unfreezing(Head):
    """Detaches its first layer in the first 20 steps, counted in Python."""

    steps = 0

    def inside(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += self.training
        return x if self.steps > 20 else x.detach()


class OwnGenerator(Head):
    def __init__(self) -> None:
        super().__init__()
        self.generator = np.random.default_rng(0)

    def inside(self, x: torch.Tensor) -> torch.Tensor:
        return x * float(self.generator.random())


class Catching(Head):
    def inside(self, x: torch.Tensor) -> torch.Tensor:
        try:
            return 3 * x if (self.last.weight.mean() - 7).abs() < 1 else x
        except RuntimeError:
            return x


class CatchingNumpy(Head):
    def inside(self, x: torch.Tensor) -> torch.Tensor:
        try:
            return 3 * x if abs(self.last.weight.detach().cpu().numpy().mean() - 7) < 1 else x
        except RuntimeError:
            return x


class Clamping(Head):
    def inside(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.last.weight.clamp_(-0.1, 0.1)
        return x


class Remembering(Head):
    kept: torch.Tensor | None = None

    def inside(self, x: torch.Tensor) -> torch.Tensor:
        if self.kept is None:
            self.kept = x.detach().mean(0)
        return x - self.kept


class Reseeding(Head):
    def inside(self, x: torch.Tensor) -> torch.Tensor:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            return x @ torch.randn(8, 8, dtype=x.dtype)


class HookedActivation(Head):
    def inside(self, x: torch.Tensor) -> torch.Tensor:
        if x.requires_grad:
            x.register_hook(lambda gradient: 2 * gradient)
        return x


@pytest.mark.parametrize(
    ("make", "cause"),
    [
        (Unfreezing, "Unfreezing.steps changes while it trains"),
        (OwnGenerator, "OwnGenerator.generator changes while it trains"),
        (Catching, r"data-dependent control flow.*in Catching.inside .*goes on after the error"),
        (CatchingNumpy, "a NumPy array or a pointer, in CatchingNumpy.inside .*goes on after the error"),
        (Clamping, "a forward pass changes the parameter last.weight in place"),
        (Remembering, "Remembering.kept is set while it trains"),
        (Reseeding, "the model seeds torch's generator"),
        (HookedActivation, "a hook on a tensor does not run in an array, in HookedActivation.inside"),
    ],
)
def test_python_state_and_hidden_errors_are_refused_by_name(make: type[nn.Module], cause: str) -> None:
    assert re.search(cause, reason(Of(lambda hp: make())))


class Gambler(nn.Linear):
    """Draws from random numbers that are not torch's, in a way that shows in few results."""

    def __init__(self, draw: Callable[[], float]) -> None:
        super().__init__(64, 10)
        self.draw = draw

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x) if self.draw() < 1e-9 else super().forward(x)


@pytest.mark.parametrize("draw", [random.random, lambda: random.uniform(0, 1), np.random.rand])
def test_random_numbers_that_are_not_torch_s_are_no_member_s_own(draw: Callable[[], float]) -> None:
    assert "Python's or NumPy's random numbers" in (why(Of(lambda hp: Gambler(draw))) or "")


def test_another_thread_may_draw() -> None:
    over = threading.Event()

    def draws() -> None:
        while not over.wait(0.001):
            random.random()

    other = threading.Thread(target=draws)
    other.start()
    try:
        assert why(Of(lambda hp: nn.Linear(64, 10))) is None
    finally:
        over.set()
        other.join()


COUNTED = [0]


def counted_by_a_helper(training: bool) -> bool:
    COUNTED[0] += training
    return COUNTED[0] > 500


class ByAHelper(Head):
    def inside(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x if counted_by_a_helper(self.training) else x


class ByADefault(Head):
    def inside(self, x: torch.Tensor, counts: list[int] = [0]) -> torch.Tensor:  # noqa: B006 - what is to be found
        counts[0] += 1
        return 2 * x if counts[0] > 500 else x


class ByAnIterator(Head):
    def __init__(self) -> None:
        super().__init__()
        self.scales = iter([1.0] * 500 + [2.0] * 500)

    def inside(self, x: torch.Tensor) -> torch.Tensor:
        return x * next(self.scales)


class Slotted:
    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class BySlots(Head):
    def __init__(self) -> None:
        super().__init__()
        self.slotted = Slotted()

    def inside(self, x: torch.Tensor) -> torch.Tensor:
        self.slotted.count += 1
        return 2 * x if self.slotted.count > 500 else x


@pytest.mark.parametrize(
    ("make", "cause"),
    [
        (ByAHelper, "the global COUNTED changes"),
        (ByADefault, "the default 0 of ByADefault.inside changes"),
        (ByAnIterator, "ByAnIterator.scales changes"),
        (BySlots, "BySlots.slotted changes"),
    ],
)
def test_state_that_lies_deeper_is_found(make: type[nn.Module], cause: str) -> None:
    assert cause in reason(Of(lambda hp: make()))


def test_a_cache_that_all_trials_share_is_no_obstacle() -> None:
    cache: dict[int, torch.Tensor] = {}

    class Cached(Head):
        def inside(self, x: torch.Tensor) -> torch.Tensor:
            if len(x) not in cache:
                cache[len(x)] = torch.arange(8)
            return x + cache[len(x)].to(x)

    assert why(Of(lambda hp: Cached())) is None


class Deferred(nn.Module):
    """A loss that counts its calls, and has a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.register_buffer("weight", torch.ones(10))

    def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return nn.functional.cross_entropy(outputs * (2 if self.calls > 100 else 1), targets, self.weight.to(outputs))


class Moving(Deferred):
    """Changes its buffer in place of the count."""

    def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        self.weight += 1e-3
        return nn.functional.cross_entropy(outputs, targets, self.weight.to(outputs))


class Keeps(Of):
    """Has an object of its own, by which its loss is computed."""

    def __init__(self, own: Any, loss: Callable[[Any, Any, Any], Any]) -> None:
        super().__init__(lambda hp: nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10)))
        self.own, self.by = own, loss

    def loss(self, outputs: Any, targets: Any) -> Any:
        return self.by(self.own, outputs, targets)


def called(own: Any, outputs: Any, targets: Any) -> Any:
    return own(outputs, targets)


def scaled(own: Iterator[float], outputs: Any, targets: Any) -> Any:
    return next(own) * nn.functional.cross_entropy(outputs, targets)


def schedule() -> Iterator[float]:
    yield from [1.0] * 500 + [2.0] * 500  # the same at each step of a dry run


def counting() -> Callable[[Any, Any], Any]:
    count = 0

    def loss(outputs: Any, targets: Any) -> Any:
        nonlocal count
        count += 1
        return nn.functional.cross_entropy(outputs * (2 if count > 100 else 1), targets)

    return loss


@pytest.mark.parametrize(
    ("own", "loss", "cause"),
    [
        (counting, called, "the variable count of Keeps.own changes"),
        (
            lambda: [counting(), counting()],
            lambda own, *both: own[0](*both),
            r"variable count of Keeps.own\[0\] changes",
        ),
        (Deferred, called, "Keeps.own.calls changes"),
        (Moving, called, "Keeps.own.weight changes"),
        (lambda: {"losses": [Deferred()]}, lambda own, *both: own["losses"][0](*both), r"own\['losses'\]\[0\].calls"),
        (lambda: nn.ModuleList([Deferred()]), lambda own, *both: own[0](*both), "Keeps.own.0.calls changes"),
        (schedule, scaled, "Keeps.own changes"),
        (lambda: zip(schedule(), strict=True), lambda own, *both: scaled(iter(next(own)), *both), "Keeps.own changes"),
    ],
)
def test_state_of_a_module_a_generator_or_a_function_that_the_experiment_keeps_is_refused_by_name(
    own: Callable[[], Any], loss: Callable[..., Any], cause: str
) -> None:
    assert re.search(cause, reason(Keeps(own(), loss)))


GLOBAL = Deferred()


def test_state_of_a_global_module_is_refused_by_name() -> None:
    assert "the global GLOBAL.calls changes" in reason(Keeps(None, lambda own, *both: GLOBAL(*both)))


class KeepsTheModel(Of):
    def model(self, hp: Any) -> nn.Module:
        self.model_again = super().model(hp)
        return self.model_again


@pytest.mark.parametrize(
    "own",
    [
        lambda: nn.CrossEntropyLoss(weight=torch.ones(10)),
        lambda: nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)),
        schedule,
        threading.Lock,
    ],
)
def test_what_an_experiment_keeps_and_no_step_changes_is_no_obstacle(own: Callable[[], Any]) -> None:
    def loss(own: Any, outputs: Any, targets: Any) -> Any:
        return nn.functional.cross_entropy(outputs, targets)

    assert why(Keeps(own(), loss)) is None


def test_a_model_that_the_experiment_keeps_is_no_state_of_its_own() -> None:
    assert why(KeepsTheModel(lambda hp: nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10)))) is None


class Accuracy(Of):
    """Has its accuracy by an object that adds up batches, too."""

    def __init__(self) -> None:
        super().__init__(lambda hp: nn.Linear(64, 10))
        self.accuracy = pytest.importorskip("torchmetrics").Accuracy("multiclass", num_classes=10)

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        return {"accuracy": self.accuracy(outputs, targets)}


def test_a_metric_of_torchmetrics_that_gives_a_batch_s_value_is_no_obstacle() -> None:
    assert why(Accuracy()) is None
