from __future__ import annotations

import pytest

from raygpu.cli.plan_view import architecture_lines, plan_lines, search_lines, sweep_lines
from raygpu.config import SweepConfig
from raygpu.planning.gpu_shares import Choice, Node, Share, plan
from raygpu.search.architectures import Architectures
from raygpu.search.space import parse


@pytest.mark.parametrize(
    ("search", "said"),
    [
        ({"algorithm": "random"}, []),
        (
            {"algorithm": "tpe"},
            ["plan: tpe draws each trial by all results so far; --search.generation 8 draws what another run repeats"],
        ),
        (
            {"algorithm": "tpe", "generation": 3},
            [
                "plan: tpe asks for 3 trials at a time, so 3 of 5 slots are used; a larger --search.generation uses"
                " more and learns less"
            ],
        ),
        ({"algorithm": "tpe", "generation": 5}, []),
    ],
)
def test_what_a_search_in_process_mode_knows_when_it_draws(search: dict[str, object], said: list[str]) -> None:
    assert lines_of(search=search) == said


def test_a_stopping_rule_in_process_mode_depends_on_what_comes_first() -> None:
    assert lines_of(search={"algorithm": "tpe"}, stopping={"algorithm": "median"}) == [
        "plan: tpe draws each trial by all results so far"
    ]


def lines_of(**values: object) -> list[str]:
    config = SweepConfig.model_validate({"experiment": "a:b", "metric": "loss", "trials": 9, **values})
    made = plan([Node(8, 1, 100)], {"": Choice(Share(5), "asked for")}, 9)
    return plan_lines(config, made, ["a GPU"])[1:]


def test_many_signatures_and_what_they_cost() -> None:
    found = Architectures(("layers", "width1"), 11, 24, 14, ())
    assert architecture_lines(found, drawn=True) == [
        "plan: 24 trials have 11 signatures, by layers, width1; [space] makes 14: only equal ones share an array, so"
        " 2.2 trials on average where one signature would allow 24"
    ]
    (line,) = architecture_lines(found, drawn=False)
    assert line.startswith("plan: 24 trials drawn at random have about 11 signatures")


def test_no_end_of_values_and_a_few() -> None:
    (line,) = architecture_lines(Architectures(("dropout",), 8, 8, None, ("dropout",)), drawn=True)
    assert line.endswith("; dropout has no end of values, which a choice of few values would fix")
    assert "[space] makes" not in line
    assert architecture_lines(Architectures(("hidden",), 3, 64, 3, ()), drawn=True) == []
    assert architecture_lines(None, drawn=True) == []


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"epochs": 4, "stopping": {"algorithm": "halving"}}, "4 epochs each; random search, stopping by halving"),
        ({"epochs": 1, "stopping": {"algorithm": "halving"}}, "1 epoch each; random search, no early stopping"),
        ({"epochs": 4, "stopping": {"algorithm": "hyperband", "patience": 2, "grace_epochs": 4}}, "no early stopping"),
        (
            {"epochs": 4, "stopping": {"algorithm": "median", "patience": 5}},
            "random search, stopping below the median (grace 1), lowest",
        ),
    ],
)
def test_only_a_rule_that_may_stop_a_trial_is_announced(values: dict[str, object], said: str) -> None:
    config = SweepConfig.model_validate(
        {"experiment": "a:b", "metric": "loss", "trials": 9, **values, "space": {"x": {"uniform": [0, 1]}}}
    )
    (line,) = sweep_lines(config, simulated=False)
    assert said in line
    told = search_lines(config, parse(config.space))
    assert not any(line.startswith("hyperband:") for line in told)
