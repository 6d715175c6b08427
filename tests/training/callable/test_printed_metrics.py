"""Metrics that a script prints as text, by `[script] metrics`."""

from __future__ import annotations

import math

import pytest

from raygpu.training.callable.printed_metrics import PrintedMetrics
from tests.training.callable.conftest import MakePrinting

BOTH = {"loss": r"Average loss: (\S+),", "accuracy": r"Accuracy: \S+ \((\S+)\)"}
TEST_SET = "Test set: Average loss: {loss}, Accuracy: 97/100 ({accuracy}%)"


def taken(metrics: dict[str, str], *lines: str) -> list[dict[str, float]]:
    """The sets that are complete after one of the lines."""
    printed = PrintedMetrics(metrics)
    return [found for line in lines if (found := printed.take(line))]


def test_an_epoch_is_complete_once_each_metric_has_been_found() -> None:
    one_line = [TEST_SET.format(loss=0.5, accuracy=97), TEST_SET.format(loss=0.25, accuracy=98.5)]
    assert taken(BOTH, *one_line) == [{"loss": 0.5, "accuracy": 97.0}, {"loss": 0.25, "accuracy": 98.5}]
    two = {"loss": r"test loss (\S+)", "accuracy": r"test accuracy (\S+)"}
    lines = ["test loss 1", "test accuracy 2", "test loss 3", "test accuracy 4", "test loss 5"]
    assert taken(two, *lines) == [{"loss": 1.0, "accuracy": 2.0}, {"loss": 3.0, "accuracy": 4.0}]


def test_a_later_value_replaces_an_earlier_one_of_the_same_epoch() -> None:
    metrics = {"train_loss": r"Train Epoch.*Loss: (\S+)", "accuracy": r"Accuracy: (\S+)"}
    epoch = [*(f"Train Epoch: 1 [{i}/60000]\tLoss: {9 - i}.0" for i in range(3)), "Accuracy: 97%"]
    again = ["Train Epoch: 2 [0/60000]\tLoss: 1e-3", "Accuracy: 98%"]
    assert taken(metrics, *epoch, *again) == [
        {"train_loss": 7.0, "accuracy": 97.0},
        {"train_loss": 0.001, "accuracy": 98.0},
    ]


def test_numbers_that_are_not_finite_are_read_and_other_text_is_a_fault() -> None:
    (found,) = taken({"loss": r"loss=(\S+)"}, "\x1b[1mloss\x1b[0m=-inf")
    assert found == {"loss": -math.inf}
    assert math.isnan(taken({"loss": r"loss=(\S+)"}, "loss=nan")[0]["loss"])
    for text in ("1,234", "1_234", "n/a"):
        with pytest.raises(
            ValueError, match=rf"metrics: loss: .*found '{text}', which is no number, in the line 'loss="
        ):
            taken({"loss": r"loss=(\S+)"}, f"loss={text}")
    assert taken({"loss": r"loss=(\d+)?"}, "loss=", "loss=3") == [{"loss": 3.0}]


@pytest.mark.parametrize(
    "expression",
    [
        "Average loss: ([0-9.]+)",
        r"loss.*?([0-9.]+)",
        r"(?:loss|cost): (-?[0-9]+\.?[0-9]*)",
        r"loss: ((?:[0-9]+\.)?[0-9]+), Acc",
        r"\(average\) [(]loss: ([0-9.]+)",
    ],
)
def test_the_whole_number_is_read_where_an_expression_finds_its_digits(expression: str) -> None:
    numbers = ["0.25", "5.3e-05", "1e-3", "2E+4", "-0.31", "-2e-5", "nan", "NaN", "inf", "-inf", "Infinity"]
    for text in numbers[: 6 if "*?" in expression else None]:
        line = f"[3/9] (average) (loss: {text}, Acc 97.5%"
        if expression.startswith("Average"):
            line = f"Test set: Average loss: {text}"
        elif "*?" in expression:
            line = f"loss: {text}"
        [value] = PrintedMetrics({"loss": expression}).take(line).values()
        assert value == float(text) or (math.isnan(value) and math.isnan(float(text))), line


def test_an_expression_that_takes_whole_numbers_or_words_alone_is_left_as_it_is() -> None:
    assert PrintedMetrics({"loss": r"step [0-9]0: ([0-9]+)$"}).take("step 10: 0.5") == {}
    assert PrintedMetrics({"loss": r"(?P<mark>loss|cost) ([0-9.]+)"}).expressions["loss"].pattern.groups == 2
    assert PrintedMetrics({"loss": r"^([0-9.]+),"}).take("0.5,0.7") == {"loss": 0.5}
    assert PrintedMetrics({"loss": r"x-([0-9.]+)"}).take("x-0.5") == {"loss": 0.5}
    assert PrintedMetrics({"loss": r"on 2026-11-([0-9.]+)"}).take("on 2026-11-26") == {"loss": 26.0}


@pytest.mark.parametrize(
    ("expression", "line", "value"),
    [
        (r"val.*?(\d+\.\d+)", "validating 10000 samples", None),
        (r"accuracy.*?(\d+\.\d+)", "computing accuracy on 5 folds", None),
        (r"(\d+\.\d+)$", "Epoch 3", None),
        (r"val.*?(\d+\.\d+)", "evaluation: nan values in column 3", None),
        (r"nll: -(\d+\.\d+)", "nll: -0.5", 0.5),
        (r"^(\d+)", "5,100,0.3", 5.0),
        (r"^([0-9.]+)", "5,100,0.3", 5.0),
        (r"((\d)\.\d+) \2", "1.5 1", 1.5),
        (r"(?<=loss )(\d\.\d)", "loss 0.5", 0.5),
    ],
)
def test_lines_that_an_expression_does_not_mean(expression: str, line: str, value: float | None) -> None:
    assert PrintedMetrics({"loss": expression}).take(line) == ({} if value is None else {"loss": value})


def test_thousands_in_a_number_are_a_fault() -> None:
    with pytest.raises(ValueError, match=r"found '1,234', which is no number, in the line 'loss: 1,234\.5'"):
        PrintedMetrics({"loss": "loss: ([0-9.]+)"}).take("loss: 1,234.5")


def test_text_that_is_no_number_fails_the_trial_that_prints_it(printing: MakePrinting) -> None:
    training = printing("print('Accuracy: 9836/10000 (98%)')", {"accuracy": r"Accuracy: (\S+)"})
    with pytest.raises(ValueError, match="found '9836/10000', which is no number, in the line 'Accuracy: 9836/10000"):
        training.run_epoch()


def test_a_script_without_a_metric_says_what_it_printed_and_what_to_do(printing: MakePrinting) -> None:
    with pytest.raises(RuntimeError) as caught:
        printing("print('hello'); print('Accuracy: 97%')", {}).run_epoch()
    text = str(caught.value)
    assert "hello\nAccuracy: 97%\n" in text
    last = text.splitlines()[-1]
    assert last.startswith("no metric was found: its output ends with 'Accuracy: 97%'; give it [script] metrics = ")
    with pytest.raises(RuntimeError, match="no metric was found: it printed nothing; "):
        printing("", {}).run_epoch()


def test_an_incomplete_set_names_the_expression_that_found_nothing(printing: MakePrinting) -> None:
    with pytest.raises(RuntimeError, match=r"correct the expression of accuracy in \[script\] metrics"):
        printing("print('loss 1')", {"loss": r"loss (\S+)", "accuracy": r"accuracy (\S+)"}).run_epoch()
