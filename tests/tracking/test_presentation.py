"""How MLflow's pages present a run: descriptions, and the table of a sweep's trials."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

from raygpu.search.trials import Trial
from raygpu.tracking.presentation import DESCRIPTION, LAST_LINE, OWN, VIEW, TrialsView, merged, outdated
from raygpu.tracking.values import LONGEST_TITLE, MAX_TAG, SET_ERROR, SET_SCORE, run_name, set_tags
from tests.repeat_cases import sets_of


def test_a_person_s_text_stays() -> None:
    assert merged("", "New.") == f"New.\n\n{LAST_LINE}"
    assert merged("Mine.", "New.") == f"New.\n\n{LAST_LINE}\n\nMine."
    assert merged(merged("Mine.", "New."), "Newer.") == f"Newer.\n\n{LAST_LINE}\n\nMine."


def test_a_long_description_loses_its_last_lines_and_never_a_person_s() -> None:
    description = merged("Mine.", "first\n" + "a line\n" * 5000)
    assert len(description) <= MAX_TAG
    assert description.startswith("first\na line\n")
    assert description.endswith(f"\n\n{LAST_LINE}\n\nMine.")
    assert merged("x" * MAX_TAG, "New.") == "x" * MAX_TAG


def test_the_columns_are_the_score_and_what_varies() -> None:
    state = json.loads(TrialsView("loss", False, ["lr", "layer size"]).state("abc", 7))
    assert state["selectedColumns"][:3] == ["metrics.`loss`", "params.`lr`", "params.`layer size`"]
    assert state["columnOrder"] == ["attributes.`Run Name`", *state["selectedColumns"]]
    assert state["orderByAsc"] is True


def test_repeats_are_grouped_by_set_and_sorted_by_its_mean() -> None:
    state = json.loads(TrialsView("validation/accuracy", True, ["lr"], in_sets=True).state("abc", 7))
    own = "metrics.`validation/accuracy`"
    assert state["selectedColumns"][:3] == ["metrics.`set/score`", "metrics.`set/standard_error`", own]
    assert state["orderByKey"] == "metrics.`set/score`"
    key = {"mode": "tag", "groupByData": "raygpu.set"}
    assert state["groupBy"] == {"aggregateFunction": "average", "groupByKeys": [key]}


def test_a_repeat_has_tags_of_its_set() -> None:
    assert set_tags(Trial("t0006", 0, {})) == {}
    assert set_tags(Trial("t0006-2", 0, {}, 1)) == {"raygpu.set": "t0006", "raygpu.repeat": 2}
    assert set_tags(Trial("t0006-2", 0, {}, 0, 1)) == {"raygpu.set": "t0006", "raygpu.repeat": 1, "raygpu.fold": 2}


def test_the_set_s_metrics_have_the_names_of_the_columns() -> None:
    (found,) = sets_of([0.5, 0.7, 0.9])
    assert found.metrics().keys() >= {SET_SCORE, SET_ERROR}


def test_views_of_others_are_never_outdated() -> None:
    tags = {f"{VIEW}{OWN}{i}": json.dumps({"raygpu": i + 1}) for i in range(205)} | {f"{VIEW}mine": "{}", "team": "a"}
    tags[f"{VIEW}{OWN}broken"] = "no JSON"
    assert outdated(tags) == [f"{VIEW}{OWN}broken", *(f"{VIEW}{OWN}{i}" for i in range(5))]


def test_the_installed_mlflow_s_pages_know_what_is_written_for_them() -> None:
    """The state of its pages is no public API: this tells when a release calls something by another name."""
    package = find_spec("mlflow")
    assert package is not None
    assert package.origin is not None
    scripts = Path(package.origin).parent / "server" / "js" / "build" / "static" / "js"
    program = "".join(path.read_text(errors="replace") for path in scripts.glob("*.js"))
    state = json.loads(TrialsView("a", True, [], in_sets=True).state("b", 0))
    own = [name for name in state if name != "raygpu"]
    for name in (VIEW, DESCRIPTION, "viewStateShareKey", *own, *state["groupBy"], *state["groupBy"]["groupByKeys"][0]):
        assert name in program, name


def test_a_run_is_named_by_what_varies() -> None:
    trial = Trial("t0006", 0, {"lr": 0.27431, "hidden": 256, "activation": "relu", "batch_size": 32})
    assert run_name(trial, ["lr", "hidden", "width2", "activation"]) == "t0006 lr=0.274 hidden=256 activation=relu"
    assert run_name(trial, []) == "t0006"


def test_a_long_name_ends_with_an_ellipsis() -> None:
    names = [f"hyperparameter{i}" for i in range(20)]
    name = run_name(Trial("t0006", 0, dict.fromkeys(names, 0.125)), names)
    assert len(name) <= LONGEST_TITLE
    assert name.endswith("hyperparameter3=0.125 \N{HORIZONTAL ELLIPSIS}")
