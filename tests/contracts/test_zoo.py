"""The zoo trained alone and in arrays: equal to the trial alone, or refused with a reason that names the cause."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch

from raygpu.search.signature import Group
from raygpu.training.base import NotAsAlone
from raygpu.training.fused.groups import TorchGrouper
from tests.contracts.zoo import ZOO, cases
from tests.contracts.zoo.check import Outcome, alone, alone_at_start, difference, fingerprint, fused, refused, tensors

WIDTHS = (3, 2)
"""Of arrays of three members: one tile, and tiles of two and of one. In which of them `make test` has, the entries take
turns."""
STOPPED = [name for name, entry in ZOO.items() if entry.alone is None and entry.again is None]
COMPILED = [name for name, entry in ZOO.items() if entry.compiled]
UNDISTURBED: dict[str, Outcome] = {}
"""By entry, the first outcome of the trial alone, in the precision of its model and data."""


def test_the_zoo_is_large() -> None:
    assert len(ZOO) >= 60


@pytest.mark.parametrize("name", cases("test_alone", ZOO))
def test_alone(name: str) -> None:
    """Twice in one process, the trial is the same to the bit, and the data is as it was."""
    entry = ZOO[name]()
    splits, trial = entry.data(), entry.trials()[1]
    before = fingerprint(splits)
    if entry.alone is not None:
        with pytest.raises(Exception, match=entry.alone):
            alone(entry, splits, trial, None)
        return
    first = UNDISTURBED[name] = alone(entry, splits, trial, None)
    if entry.again is not None:
        with pytest.raises(Exception, match=entry.again):
            alone(entry, splits, trial, None)
        return
    again = alone(entry, splits, trial, None)
    assert fingerprint(splits) == before, "the data was changed"
    if entry.repeats:
        assert first[1] == again[1]
        assert all(torch.equal(value.nan_to_num(), again[0][key].nan_to_num()) for key, value in first[0].items())


@lru_cache(maxsize=1)
def grouped(name: str) -> tuple[Any, list[tuple[Group, dict[str, Outcome]]]]:
    """An entry's data, and its groups, each with what the trials that may be fused come to alone."""
    entry = ZOO[name]()
    splits, trials = entry.data(), entry.trials()
    before = fingerprint(splits)
    groups = TorchGrouper(entry, splits).groups(trials)
    assert fingerprint(splits) == before, "the dry run changed the data"
    assert sorted(trial.trial_id for group in groups for trial in group.trials) == [t.trial_id for t in trials]
    return splits, [
        (group, {each.trial_id: alone(ZOO[name](), splits, each, entry.dtype) for each in group.trials})
        if group.reason is None
        else (group, {})
        for group in groups
    ]


@pytest.mark.parametrize("turn", [0, pytest.param(1, marks=pytest.mark.slow)], ids=["one width", "the other width"])
@pytest.mark.parametrize("name", cases("test_fused", ZOO))
def test_fused(name: str, turn: int) -> None:
    """Members of arrays are equal to the trials alone, or the reason says why they cannot be."""
    entry, width = ZOO[name](), WIDTHS[(list(ZOO).index(name) + turn) % 2]
    splits, groups = grouped(name)
    before = fingerprint(splits)
    for group, wanted in groups:
        if group.reason is not None:
            refused(entry, group.reason)
            continue
        try:
            outcomes = fused(ZOO[name](), splits, group.trials, width)
        except NotAsAlone as refusal:  # what no dry run shows, a look at the array does
            refused(entry, str(refusal))
            continue
        for trial_id, outcome in outcomes.items():
            differs = difference(outcome, wanted[trial_id], entry.tolerance)
            assert not differs, f"{trial_id} at width {width}: {differs}"
    assert fingerprint(splits) == before, "the array changed the data"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if ZOO[name].unsaved else pytest.mark.slow) for name in STOPPED]
)
def test_goes_on(name: str, tmp_path: Path) -> None:
    """From a checkpoint, the trial is the one that was never stopped, to the bit; or a line names what is not kept."""
    entry = ZOO[name]()
    stopped = alone_at_start(ZOO[name]())
    first = stopped.run_epoch()
    assert first is not None
    stopped.save(tmp_path)
    going_on = alone_at_start(ZOO[name]())
    going_on.load(tmp_path)
    metrics = [first.metrics, *(result.metrics for result in iter(going_on.run_epoch, None))]
    if entry.unsaved is not None:
        assert any(re.search(entry.unsaved, note) for note in going_on.notes), going_on.notes
        return
    assert not going_on.notes
    if name not in UNDISTURBED:
        UNDISTURBED[name] = alone(ZOO[name](), entry.data(), entry.trials()[1], None)
    wanted = UNDISTURBED[name]
    state = tensors(going_on.state())
    assert repr(metrics) == repr(wanted[1])
    assert all(torch.equal(value.nan_to_num(), state[key].nan_to_num()) for key, value in wanted[0].items())


@pytest.mark.slow
@pytest.mark.parametrize("name", cases("test_compiled", COMPILED))
def test_compiled(name: str) -> None:
    """The compiled step of whole batches beside the eager last one, in a tile of three members, or in tiles of one."""
    entry = ZOO[name]()
    width = 3 if COMPILED.index(name) % 2 else 1  # a compilation takes most of the time
    splits, trials = entry.data(), entry.trials()
    if isinstance(entry.compiled, str):
        with pytest.raises(Exception, match=entry.compiled):
            fused(entry, splits, trials, width, compiled=True)
        return
    for trial_id, outcome in fused(entry, splits, trials, width, compiled=True).items():
        wanted = alone(ZOO[name](), splits, trials[int(trial_id[1:])], entry.dtype)
        differs = difference(outcome, wanted, entry.tolerance)
        assert not differs, f"{trial_id}: {differs}"
