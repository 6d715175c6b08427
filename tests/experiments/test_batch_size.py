"""The batch size's study, on trials that are made up."""

from __future__ import annotations

from pathlib import Path

from experiments.studies.batch_size import Trial, plot, rows, table


def test_each_size_has_its_own_learning_rate(tmp_path: Path) -> None:
    found = rows(
        [
            Trial(10, 0.1, [0.5, 0.9, 0.96], [1.0, 0.5, 0.1], 100.0),
            Trial(10, 0.2, [0.96, 0.9, 0.9], [1.0, 0.6, 0.4], 300.0),
            Trial(40, 0.2, [0.2, 0.3, 0.4], [2.0, 1.9, 1.8], 700.0),
        ],
        num_train=102,
        target=0.95,
    )
    first, second = found
    assert (first.batch_size, first.lr, first.samples_per_s) == (10, 0.2, 200.0)
    assert first.steps_to_target == 11, "one epoch: ten batches, and one of the two that are left"
    assert (first.train_loss, first.lr_at_the_end) == (0.1, 0.1)
    assert round(first.validation_error, 9) == 0.04
    assert (second.steps_to_target, second.lr) == (None, 0.2)
    assert "never" in table(found, 0.95)[2]
    plot(found, 0.95, "made up", tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 10_000
