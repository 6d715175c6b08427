"""The lines of an advice."""

from __future__ import annotations

import pytest

from raygpu.cli import advice_view
from raygpu.planning.advice import Scaling, advise
from raygpu.planning.profiles import Profile
from tests.planning.test_advice import FULL, profile, scaling

SMALL = profile({1: (1.0, 1.0, 1.0), 3: (2.5, 2.4, 2.6)})
NOISY = profile({1: (1.0, 1.0, 1.0), 2: (1.2, 0.7, 2.0)})


@pytest.mark.parametrize(
    ("measured", "speedups", "text"),
    [
        (SMALL, Scaling(), "several trainings on one GPU, for one is too small for it: 3 packed processes, 2.5x (2.4 to"
         " 2.6) the throughput of one"),
        (FULL, Scaling(), "one training on one GPU, which it fills; what more GPUs would gain was not measured"),
        (FULL, scaling({1: 1.0, 2: 1.2}), "one training on one GPU, which it fills: 2 have an efficiency of 0.60 (0.59"
         " to 0.61), below 0.8"),
        (FULL, scaling({1: 1.0, 2: 1.55}, 0.1), "one training on one GPU, which it fills: 2 have an efficiency of 0.78"
         " (0.70 to 0.85), below 0.8, within noise of it"),
        (FULL, scaling({1: 1.0, 2: 1.9, 4: 2.0}), "several GPUs for one training: 2 before the efficiency falls below"
         " 0.8 (2 to 2 with 95 % confidence); 2 measured 1.90x (1.88 to 1.92), an efficiency of 0.95 (0.94 to 0.96)"),
        (FULL, scaling({1: 1.0, 2: 1.9}, evidence="one_device"), "one training fills this GPU, and is worth 2 at most:"
         " the efficiency stays above 0.8 only if the exchange of gradients costs nothing; measure on several GPUs"),
        (NOISY, Scaling(), "not known: the spread exceeds the gain of sharing; measure on an idle machine, or with more"
         " --rounds"),
        (profile({}, "out of memory"), Scaling(), "several GPUs: the training does not fit one (raygpu place says how"
         " many hold it)"),
        (profile({}, "it broke"), Scaling(), "not known: nothing could be measured"),
    ],
)  # fmt: skip
def test_the_verdict_is_one_line(measured: Profile, speedups: Scaling, text: str) -> None:
    line = advice_view.verdict(measured, advise(measured, speedups))
    assert line == f"one GPU, several trainings on it, or several GPUs? {text}"


def test_evidence_names_its_source() -> None:
    law = scaling({n: n / (1 + (n - 1) / 19) for n in (1, 2, 4)})
    lines = advice_view.evidence(FULL, advise(FULL, law), kept=False)
    assert lines == [
        "evidence, several trainings on one device: measured now",
        "evidence, one training on several devices: measured now, short data-parallel trainings with the same batch",
        "evidence, more than 4 devices: predicted (Universal Scalability Law through these)",
    ]
    assert "kept profile of" in advice_view.evidence(SMALL, advise(SMALL), kept=True)[0]
    assert "does not fill one" in advice_view.evidence(SMALL, advise(SMALL), kept=True)[1]
    note = Scaling(notes=("one training on several devices: not measured: why",))
    assert advice_view.evidence(FULL, advise(FULL, note), kept=False)[-1] == note.notes[0]


def test_the_table_has_a_line_for_each_number_of_devices() -> None:
    lines = advice_view.table(advise(FULL, scaling({1: 1.0, 2: 1.9})))
    assert [line.split() for line in lines[:2]] == [["devices", "speed-up", "efficiency"], ["1", "1.00x", "1.00"]]
    assert lines[2].split()[:2] == ["2", "1.90x"]
    assert advice_view.table(advise(SMALL)) == []
    bound = advice_view.table(advise(FULL, scaling({1: 1.0, 2: 1.9}, evidence="one_device")))
    assert "at most speed-up" in bound[0]
