"""Metrics by `[script] metrics` on a script's two streams."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from raygpu.training.callable.printed_streams import ERROR, OUTPUT, PrintedStreams
from raygpu.training.callable.script import ScriptTraining
from tests.training.callable.conftest import MakePrinting

TWO = {"accuracy": r"accuracy ([0-9.]+)", "loss": r"loss ([0-9.]+)"}


def epochs(training: ScriptTraining) -> list[dict[str, float]]:
    found = []
    while (result := training.run_epoch()) is not None:
        found.append(dict(result.metrics))
    return found


def pairs(*numbers: int) -> list[dict[str, float]]:
    return [{"accuracy": float(number), "loss": float(number)} for number in numbers]


@pytest.mark.parametrize("waits", [False, True])
def test_values_on_both_streams_are_of_one_epoch_though_several_epochs_wait(
    printing: MakePrinting, tmp_path: Path, waits: bool
) -> None:
    body = (
        "import sys, time\n"
        "for i in range(1, 6):\n"
        "    print('accuracy', i); print('loss', i, file=sys.stderr)\n"
        f"    if i == 2 and {waits}: time.sleep(0.5)\n"
        "open('ahead', 'w').close()\n"
    )
    training = printing(body, TWO)
    if not waits:
        training._start()
    else:
        assert training.run_epoch() is not None
    while not (tmp_path / "ahead").exists():
        time.sleep(0.02)
    assert epochs(training) == pairs(1, 2, 3, 4, 5)[waits:]


def test_a_stream_that_prints_all_metrics_is_not_disturbed_by_other_writers_on_the_other_one(
    printing: MakePrinting,
) -> None:
    body = (
        "import sys, threading\n"
        "ended = threading.Event()\n"
        "def log():\n"
        "    while not ended.is_set(): print('seen: loss', 9, file=sys.stderr)\n"
        "threads = [threading.Thread(target=log) for _ in range(2)]\n"
        "for thread in threads: thread.start()\n"
        "for i in range(1, 1001):\n"
        "    print('loss', i); print('accuracy', i)\n"
        "ended.set()\n"
    )
    found = epochs(printing(body, TWO))
    assert found == pairs(*range(1, 1001))


def test_a_progress_bar_without_a_line_end_does_not_join_a_line_of_the_other_stream(printing: MakePrinting) -> None:
    body = (
        "import sys\n"
        "for i in (1, 2):\n"
        "    sys.stderr.write('\\rtrain loss 1.5'); sys.stderr.flush()\n"
        "    print(f'10 samples, accuracy {i}, loss 0.5', flush=True)\n"
    )
    assert epochs(printing(body, TWO)) == [{"accuracy": 1.0, "loss": 0.5}, {"accuracy": 2.0, "loss": 0.5}]


def test_one_epoch_with_a_value_on_each_stream_is_known_at_the_scripts_end(printing: MakePrinting) -> None:
    assert epochs(printing("import sys\nprint('accuracy 1'); print('loss 1', file=sys.stderr)", TWO)) == pairs(1)


def test_streams_that_run_apart_are_refused_before_a_wrong_pair_is_reported(printing: MakePrinting) -> None:
    body = (
        "import sys, time\n"
        "for i in range(1, 4):\n"
        "    for step in range(5):\n"
        "        sys.stderr.write(f'\\rloss {step}'); sys.stderr.flush()\n"
        "    print('accuracy', i, flush=True); time.sleep(0.1)\n"
    )
    training = printing(body, TWO)
    with pytest.raises(ValueError, match="which values are of one epoch is not known; print all metrics on one"):
        training.run_epoch()
    assert training.epoch == 0


def test_a_value_too_many_at_the_end_is_refused(printing: MakePrinting) -> None:
    body = "import sys\nprint('loss 0', file=sys.stderr)\nprint('accuracy 1'); print('loss 1', file=sys.stderr)"
    with pytest.raises(ValueError, match="found loss 2 times on standard error, accuracy 1 times on standard output"):
        printing(body, TWO).run_epoch()


def test_a_metric_on_both_streams_is_refused_where_neither_has_all() -> None:
    printed = PrintedStreams(TWO | {"rate": r"rate ([0-9.]+)"})
    for number in range(2):
        for stream, line in ((OUTPUT, "accuracy 1"), (OUTPUT, "loss 1"), (ERROR, "rate 1")):
            printed.take(stream, f"{line}{number}")
    assert len(printed.settle()) == 2
    with pytest.raises(ValueError, match="loss 2 times on standard output"):
        printed.take(ERROR, "loss 3")


def test_what_is_forgotten_leaves_the_order_of_later_values() -> None:
    printed = PrintedStreams(TWO)
    for number in (1, 2):
        printed.take(OUTPUT, f"accuracy {number}")
        printed.take(ERROR, f"loss {number}")
    assert printed.settle() == pairs(1, 2)
    printed.take(ERROR, "loss 3")
    printed.clear()
    assert printed.take(OUTPUT, "accuracy 3") == pairs(3)


def test_json_on_standard_output_is_a_report_still_and_a_loggers_is_none(printing: MakePrinting) -> None:
    body = (
        "import sys, raygpu\n"
        "print('{\"loss\": 1}', flush=True)\n"
        "print('{\"level\": 20}', file=sys.stderr, flush=True)\n"
        "raygpu.report(loss=2)\n"
    )
    for metrics in ({"loss": r"test loss (\S+)"}, TWO):
        assert sorted(each["loss"] for each in epochs(printing(body, metrics))) == [1.0, 2.0]


def test_one_metric_is_found_on_either_stream_and_the_kept_output_is_in_order(
    printing: MakePrinting, tmp_path: Path
) -> None:
    body = (
        "import sys, time\n"
        "print('loss 1', flush=True); time.sleep(0.1)\n"
        "print('loss 2', file=sys.stderr); time.sleep(0.1)\n"
        "print('loss 3', flush=True)\n"
    )
    found = epochs(printing(body, {"loss": r"loss (\d)"}))
    assert [each["loss"] for each in found] == [1.0, 2.0, 3.0]
    assert (tmp_path / "output.txt").read_text().splitlines() == ["loss 1", "loss 2", "loss 3"]
