from __future__ import annotations

import decimal
import multiprocessing
import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn
import torch

import raygpu
from raygpu.reporting import FUNCTION_VARIABLE, Kept
from raygpu.search.trials import EpochResult, Trial
from raygpu.training.base import Settings
from raygpu.training.callable.function import FunctionTraining
from raygpu.training.modes import torch_modes_kept


def training(function: Any, tmp_path: Path, epochs: int | None = None, **hp: Any) -> FunctionTraining:
    return FunctionTraining(function, Trial("t0000", 7, hp), Settings(epochs, 1, "float32", tmp_path))


def test_it_runs_only_while_it_is_asked_to(tmp_path: Path) -> None:
    seen: list[int] = []

    def train(config: dict[str, Any]) -> None:
        for epoch in range(config["n"]):
            seen.append(epoch)
            raygpu.report(loss=np.float32(epoch))

    run = training(train, tmp_path, n=3)
    assert run.run_epoch().metrics == {"loss": 0.0}
    assert seen == [0]
    assert [run.run_epoch().epoch for _ in range(2)] == [2, 3]
    assert run.run_epoch() is None
    assert run.run_epoch() is None
    run.close()


def test_epochs_bound_it_and_closing_ends_it(tmp_path: Path) -> None:
    ended: list[bool] = []

    def train(config: dict[str, Any]) -> None:
        try:
            while True:
                try:
                    raygpu.report(loss=1)
                except Exception:  # noqa: BLE001 - users write this, and it must not swallow the end
                    pass
        finally:
            ended.append(True)

    run = training(train, tmp_path, epochs=2)
    assert run.run_epoch() is not None
    assert run.run_epoch() is not None
    assert run.run_epoch() is None
    run.close()
    assert ended == [True]


def test_its_thread_has_the_modes_that_its_module_set(tmp_path: Path) -> None:
    def train(config: dict[str, Any]) -> dict[str, float]:
        tensor = torch.empty(1)
        return {"device": tensor.is_meta, "gradients": torch.is_grad_enabled()}

    with torch_modes_kept():
        torch.set_default_device("meta")
        torch.set_grad_enabled(False)
        run = training(train, tmp_path)
        result = run.run_epoch()
        run.close()
    assert result is not None
    assert result.metrics == {"device": 1.0, "gradients": 0.0}


def test_its_thread_has_what_its_module_set_in_other_libraries(tmp_path: Path) -> None:
    def train(config: dict[str, Any]) -> dict[str, float]:
        is_pandas = sklearn.get_config()["transform_output"] == "pandas"
        return {"digits": decimal.getcontext().prec, "raises": np.geterr()["over"] == "raise", "pandas": is_pandas}

    with sklearn.config_context(transform_output="pandas"), np.errstate(all="raise"), decimal.localcontext(prec=60):
        run = training(train, tmp_path)
        result = run.run_epoch()
        run.close()
    assert result is not None
    assert result.metrics == {"digits": 60.0, "raises": 1.0, "pandas": 1.0}


KERAS = """
import keras
from pathlib import Path
from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from raygpu.training.callable.function import FunctionTraining
keras.mixed_precision.set_global_policy("mixed_bfloat16")
def train(config):
    return {"mixed": keras.config.dtype_policy().name == "mixed_bfloat16"}
print(FunctionTraining(train, Trial("t0000", 0, {}), Settings(1, 1, "float32", Path())).run_epoch().metrics)
"""


def test_its_thread_has_the_types_of_keras_that_its_module_set() -> None:
    environment = {**os.environ, "KERAS_BACKEND": "torch"}
    done = subprocess.run([sys.executable, "-c", KERAS], env=environment, capture_output=True, text=True)
    assert done.stdout == "{'mixed': 1.0}\n", done.stderr


def test_what_it_changes_reaches_no_other_training(tmp_path: Path) -> None:
    seen: list[Any] = []

    def train(config: dict[str, Any]) -> None:
        seen.append((list(config["layers"]), dict(config["options"])))
        config["layers"][0].append(10)
        config["options"]["inner"].clear()
        raygpu.report(loss=1.0)

    layers, options = [[64]], {"inner": [1]}
    for _ in range(2):  # trials that have drawn the same choice, or one trial that begins again
        run = training(train, tmp_path, layers=layers, options=options)
        assert run.run_epoch() is not None
        run.close()
    assert seen == [([[64, 10]], {"inner": []})] * 2
    assert (layers, options) == ([[64]], {"inner": [1]})


@pytest.mark.parametrize("code", [0, None])
def test_a_function_that_exits_well_after_a_report_has_ended(tmp_path: Path, code: int | None) -> None:
    def train(config: dict[str, Any]) -> None:
        raygpu.report(loss=1.0)
        sys.exit(code)

    run = training(train, tmp_path)
    assert run.run_epoch() is not None
    assert run.run_epoch() is None
    run.close()


@pytest.mark.parametrize(("reports", "code"), [(1, 1), (0, 0)])
def test_another_exit_is_a_fault(tmp_path: Path, reports: int, code: int) -> None:
    def train(config: dict[str, Any]) -> None:
        for _ in range(reports):
            raygpu.report(loss=1.0)
        sys.exit(code)

    run = training(train, tmp_path)
    for _ in range(reports):
        assert run.run_epoch() is not None
    with pytest.raises(SystemExit):
        run.run_epoch()
    run.close()


def test_what_it_raises_comes_out(tmp_path: Path) -> None:
    def train(config: dict[str, Any]) -> None:
        raygpu.report(loss=1)
        raise KeyError("lost")

    run = training(train, tmp_path)
    run.run_epoch()
    with pytest.raises(KeyError, match="lost"):
        run.run_epoch()
    run.close()


def test_a_metric_that_is_no_number(tmp_path: Path) -> None:
    def train(config: dict[str, Any]) -> None:
        raygpu.report(loss="low")

    with pytest.raises(TypeError, match="metric 'loss': read 'low'"):
        training(train, tmp_path).run_epoch()


def test_checkpoints_go_on(tmp_path: Path) -> None:
    def train(config: dict[str, Any]) -> None:
        for epoch in range(raygpu.load(0), 4):
            raygpu.checkpoint(epoch + 1)
            raygpu.report(epoch=epoch)

    first = training(train, tmp_path)
    first.run_epoch()
    first.run_epoch()
    first.save(tmp_path)
    first.close()
    second = training(train, tmp_path)
    second.load(tmp_path)
    result = second.run_epoch()
    assert (result.epoch, result.metrics) == (3, {"epoch": 2.0})
    second.close()


def test_a_checkpoint_keeps_what_was_there_when_it_was_made(tmp_path: Path) -> None:
    def train(config: dict[str, Any]) -> None:
        weights = raygpu.load([0])
        while True:
            weights[0] += 1
            raygpu.checkpoint(weights)
            raygpu.report(weight=weights[0])
            weights[0] += 100

    first = training(train, tmp_path)
    first.run_epoch()
    first.run_epoch()
    first.save(tmp_path)
    first.close()
    second = training(train, tmp_path)
    second.load(tmp_path)
    assert second.epoch == 2
    assert second.run_epoch() == EpochResult(3, {"weight": 103.0})
    second.close()


def test_a_rare_checkpoint_goes_on_at_its_own_epoch(tmp_path: Path) -> None:
    def train(config: dict[str, Any]) -> None:
        for epoch in range(raygpu.load(0) + 1, 11):
            if epoch % 3 == 0:
                raygpu.checkpoint(epoch)
            raygpu.report(epoch=epoch)

    first = training(train, tmp_path)
    for _ in range(5):
        first.run_epoch()
    first.save(tmp_path)
    first.close()
    second = training(train, tmp_path)
    second.load(tmp_path)
    assert second.run_epoch() == EpochResult(4, {"epoch": 4.0})
    second.close()


def test_what_follows_the_last_report_runs(tmp_path: Path) -> None:
    def train(config: dict[str, Any]) -> None:
        for epoch in range(config["epochs"]):
            raygpu.report(epoch=epoch)
        (tmp_path / "model.txt").write_text("saved")

    run = training(train, tmp_path, epochs=3)
    while run.run_epoch() is not None:
        pass
    assert (tmp_path / "model.txt").read_text() == "saved"
    run.close()


def test_outside_of_a_sweep_a_report_is_a_line_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    raygpu.checkpoint("gone")
    raygpu.report(loss=0.5, accuracy=1)
    assert capsys.readouterr().out == '{"loss": 0.5, "accuracy": 1.0}\n'
    assert raygpu.load("default") == "default"


def test_metrics_that_it_returns_are_its_one_report(tmp_path: Path) -> None:
    alone = training(lambda config: {"accuracy": 0.5, "loss": np.float32(2)}, tmp_path)
    assert alone.run_epoch() == EpochResult(1, {"accuracy": 0.5, "loss": 2.0})
    assert alone.run_epoch() is None

    def reports(config: dict[str, Any]) -> dict[str, float]:
        raygpu.report(loss=1)
        return {"loss": 0.5}

    both = training(reports, tmp_path)
    assert both.run_epoch() == EpochResult(1, {"loss": 1.0})
    assert both.run_epoch() is None, "what it has reported counts"
    bad = training(lambda config: {"accuracy": "high"}, tmp_path)
    with pytest.raises(TypeError, match="metric 'accuracy': read 'high'; a number is wanted"):
        bad.run_epoch()


def test_a_function_is_told_its_fold() -> None:
    def train(config: dict[str, Any]) -> dict[str, float]:
        return {"fold": config["fold"], "folds": config["folds"]}

    trial = Trial("t0000-3", 0, {}, repeat=0, fold=2)
    result = FunctionTraining(train, trial, Settings(None, 1, "float32", Path(), folds=5)).run_epoch()
    assert result is not None
    assert result.metrics == {"fold": 2, "folds": 5}
    alone = Trial("t0000", 0, {})
    assert "fold" not in FunctionTraining(train, alone, Settings(None, 1, "float32", Path())).config
    again = FunctionTraining(train, alone, Settings(None, 1, "float32", Path(), folds=5))
    assert again.config["fold"] is None, "the best trial, trained again on all data"


def test_a_thread_that_outlives_its_trial_reports_nothing_into_the_next_one(tmp_path: Path) -> None:
    go, ended = threading.Event(), threading.Event()

    def helps() -> None:
        go.wait(60)
        with suppress(BaseException):  # the end of its trial, which is printed otherwise
            raygpu.report(helper=1)
        ended.set()

    def starts(config: dict[str, Any]) -> None:
        threading.Thread(target=helps, daemon=True).start()
        raygpu.report(step=1)

    def quiet(config: dict[str, Any]) -> None:
        go.set()
        assert ended.wait(60)
        raygpu.report(step=2)

    for function, epochs in ((starts, None), (quiet, 1)):
        run = training(function, tmp_path, epochs)
        assert run.run_epoch() == EpochResult(1, {"step": 2.0 if epochs else 1.0})
        run.close()


def test_a_forked_process_cannot_report(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def train(config: dict[str, Any]) -> None:
        pids = []
        for call in (lambda: raygpu.report(loss=1.0), lambda: raygpu.checkpoint(1)):
            pid = os.fork()
            if pid == 0:
                call()
                os._exit(0)
            pids.append(pid)
        raygpu.report(loss=2.0, failed=sum(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids))

    run = training(train, tmp_path)
    assert run.run_epoch().metrics == {"loss": 2.0, "failed": 2.0}
    assert run.run_epoch() is None
    run.close()
    assert (
        capfd.readouterr().err.count("RuntimeError: raygpu.report, raygpu.checkpoint and raygpu.load were called") == 2
    )


def test_a_spawned_process_cannot_report(tmp_path: Path) -> None:
    def train(config: dict[str, Any]) -> None:
        process = multiprocessing.get_context("spawn").Process(target=raygpu.report, kwargs={"loss": 1.0})
        process.start()
        process.join()
        raygpu.report(loss=2.0, failed=process.exitcode)

    run = training(train, tmp_path)
    assert run.run_epoch().metrics == {"loss": 2.0, "failed": 1.0}
    run.close()
    assert FUNCTION_VARIABLE not in os.environ


@pytest.mark.parametrize(("returned", "kind"), [(0.5, "float"), ((0.5, 1), "tuple"), ((x for x in ()), "generator")])
def test_what_a_function_returns_in_the_place_of_metrics_is_named(returned: Any, kind: str, tmp_path: Path) -> None:
    run = training(lambda config: returned, tmp_path)
    with pytest.raises(TypeError, match=f"it returned a {kind} and reported nothing"):
        run.run_epoch()
    run.close()


@pytest.mark.parametrize("epochs", [None, 3])
@pytest.mark.parametrize(("late", "every"), [(True, 1), (False, 1), (True, 2), (False, 2)])
def test_a_state_that_is_saved_after_each_report_is_noticed(
    late: bool, every: int, epochs: int | None, tmp_path: Path
) -> None:
    """A state before each second report also comes after the first one, and a last one may come at the end."""

    def train(config: dict[str, Any]) -> None:
        for epoch in range(1, 4):
            if not late and epoch % every == 0:
                raygpu.checkpoint(epoch)
            raygpu.report(loss=0.0)
            if late and epoch % every == 0:
                raygpu.checkpoint(epoch)
        if not late:
            raygpu.checkpoint("the end")

    run = training(train, tmp_path, epochs)
    while run.run_epoch() is not None:
        pass
    assert run.saves_late == (late and every == 1)
    run.save(tmp_path)
    state = Kept.load(tmp_path)
    assert state is not None
    assert state.epoch == 3, "no later one than the last report"
    run.close()
