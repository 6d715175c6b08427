"""Ray Train's state of a run, cut in two while it was written, is replaced by its copy."""

from __future__ import annotations

import inspect
import os
from pathlib import Path

from ray.train.v2._internal.execution import storage

from raygpu.engines.train import run_state
from tests.power_loss import Disk


def test_a_state_that_was_cut_is_replaced_by_its_copy(tmp_path: Path) -> None:
    state = tmp_path / run_state.STATE
    run_state.mend(tmp_path)
    assert not list(tmp_path.iterdir())
    state.write_text('{"number": 1}')
    run_state.mend(tmp_path)
    assert state.read_text() == '{"number": 1}'
    run_state.back_up(tmp_path)
    for cut in ("", '{"num'):
        state.write_text(cut)
        run_state.mend(tmp_path)
        assert state.read_text() == '{"number": 1}'


def test_a_state_that_was_cut_at_its_first_write_is_none(tmp_path: Path) -> None:
    (tmp_path / run_state.STATE).write_text("")
    run_state.mend(tmp_path)
    assert not (tmp_path / run_state.STATE).exists()


def test_the_file_has_ray_train_s_name() -> None:
    from ray.train.v2._internal.constants import CHECKPOINT_MANAGER_SNAPSHOT_FILENAME

    assert run_state.STATE == CHECKPOINT_MANAGER_SNAPSHOT_FILENAME
    assert "checkpoint_manager_snapshot_path" in inspect.getsource(storage)


def test_a_power_loss_leaves_a_copy(losing_disk: Disk) -> None:
    (losing_disk.path / run_state.STATE).write_text('{"number": 1}')
    run_state.back_up(losing_disk.path)
    os.sync()
    run_state.back_up(losing_disk.path)
    losing_disk.lose_power()
    (losing_disk.path / run_state.STATE).write_text("")
    run_state.mend(losing_disk.path)
    assert (losing_disk.path / run_state.STATE).read_text() == '{"number": 1}'
