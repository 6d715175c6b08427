"""Random numbers that are drawn before a step are those that the step would draw."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.func import vmap

from raygpu.training.fused.member_generators import DrawRecorder, MemberStreams
from raygpu.training.fused.random_inputs import RandomInputs, traced

SEEDS = (3, 4, 5)
X = torch.rand(3, 6, 4)
STEPS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "dropout": lambda x: torch.dropout(x, 0.4, True),
    "dropout of CUDA": lambda x: torch.native_dropout(x, 0.4, True)[0],
    "all is dropped": lambda x: torch.native_dropout(x, 1.0, True)[0],
    "channels": lambda x: torch.feature_dropout(x[None], 0.5, True)[0],
    "like": lambda x: x + torch.rand_like(x) + torch.randn_like(x),
    "shapes": lambda x: x + torch.randn(6, 4) + torch.randint(5, (6, 4)),
    "in place": lambda x: x + torch.empty_like(x).exponential_(2.0) + torch.empty_like(x).uniform_(-1, 1),
    "permuted memory": lambda x: torch.dropout(x.t(), 0.4, True).t(),
    "permutation": lambda x: x[torch.randperm(6)],
}


@pytest.mark.parametrize("name", STEPS)
def test_drawn_before_as_in_the_step(name: str) -> None:
    step = STEPS[name]
    with DrawRecorder() as recorder:
        step(X[0])
    draws = recorder.draws
    assert draws

    def run() -> torch.Tensor:
        return vmap(step, randomness="different")(X)

    cpu = torch.device("cpu")
    asked, drawn_before = MemberStreams(SEEDS, cpu), MemberStreams(SEEDS, cpu)
    inputs = RandomInputs.of(run, drawn_before.expect(draws))
    for _ in range(2):  # the second step draws other numbers
        with asked.expect(draws):
            expected = run()
        drawn = inputs.draw(drawn_before.expect(draws))
        for _ in range(2):  # supplied numbers stay what they are, whatever a step does with them
            with RandomInputs.supplied(drawn):
                assert torch.allclose(run(), expected, rtol=1e-6, atol=0)

    def supplied(x: torch.Tensor, numbers: list[torch.Tensor]) -> torch.Tensor:
        with RandomInputs.supplied(numbers):
            return vmap(step, randomness="different")(x)

    assert torch.allclose(traced(supplied, (X, drawn))(X, drawn), expected, rtol=1e-6, atol=0)


def test_numbers_that_depend_on_values_cannot_be_drawn_before() -> None:
    streams = MemberStreams(SEEDS, torch.device("cpu"))
    with pytest.raises(ValueError, match="depend on a tensor's values"):
        RandomInputs.of(lambda: vmap(torch.bernoulli, randomness="different")(X), streams)
