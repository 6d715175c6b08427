"""RGU: the published table is met, and NVML's names find their cards."""

from __future__ import annotations

import re

import pytest

from raygpu.devices.rgu import CARDS, PUBLISHED, formula, rgu

TABLE = [
    ("Tesla P100-PCIE-12GB", 11.9, 1.0),
    ("Tesla P100-PCIE-16GB", 15.9, 1.1),
    ("Tesla T4", 15.0, 1.3),
    ("Tesla V100-SXM2-16GB", 15.8, 2.2),
    ("Tesla V100-SXM2-32GB", 31.7, 2.6),
    ("NVIDIA A100-SXM4-40GB", 40.0, 4.0),
    ("NVIDIA A100-SXM4-80GB", 80.0, 4.8),
    ("NVIDIA H100 80GB HBM3", 79.6, 12.2),
]


@pytest.mark.parametrize(("name", "memory_gib", "published"), TABLE)
def test_the_formula_gives_the_published_table(name: str, memory_gib: float, published: float) -> None:
    short = name.removeprefix("NVIDIA ").removeprefix("Tesla ")
    card = next(card for card in CARDS if re.fullmatch(card.pattern, short))
    memory_gb = min(card.memory_gb, key=lambda gb: abs(gb - memory_gib))
    # The published values are rounded to a tenth, some of them down.
    assert formula(card.fp32_tflops, card.fp16_tflops, memory_gb) == pytest.approx(published, abs=0.06)
    assert rgu(name, memory_gib) == published


def test_the_scores_of_the_published_table() -> None:
    """FP16 is that of dense matrices on tensor cores: no other choice gives these columns."""
    columns = {"P100-PCIE-12GB": (0.48, 0.03), "T4": (0.42, 0.21), "V100-SXM2-16GB": (0.81, 0.40)}
    columns |= {"A100-SXM4-40GB": (1.0, 1.0), "H100 80GB HBM3": (3.44, 3.17)}
    for name, (fp32, fp16) in columns.items():
        card = next(card for card in CARDS if re.fullmatch(card.pattern, name))
        assert card.fp32_tflops / 19.5 == pytest.approx(fp32, abs=0.006)
        assert card.fp16_tflops / 312 == pytest.approx(fp16, abs=0.006)


@pytest.mark.parametrize(
    ("name", "memory_gib", "expected"),
    [
        ("NVIDIA A100 80GB PCIe", 80.0, 4.8),
        ("A100-PCIE-40GB", 39.6, 4.0),
        ("NVIDIA A100-SXM-64GB", 63.5, 3.2 + 0.8 * 63.5 / 40),  # not sold openly: its memory as it reads
        ("Tesla V100-PCIE-16GB", 15.8, 2.2),
        ("Tesla V100S-PCIE-32GB", 31.7, 2.65),
        ("NVIDIA H100 PCIe", 79.6, 9.66),
        ("NVIDIA H200", 140.4, 13.39),
        ("NVIDIA GeForce RTX 4090", 23.99, 8.1),
        ("NVIDIA RTX A6000", 47.5, 4.93),
        ("NVIDIA L4", 22.5, 3.59),
    ],
)
def test_other_cards(name: str, memory_gib: float, expected: float) -> None:
    assert rgu(name, memory_gib) == pytest.approx(expected, abs=0.01)


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA A100-SXM4-40GB MIG 3g.20gb",
        "GRID A100-10C",
        "NVIDIA GeForce RTX 4090 D",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 3080 Ti",
        "Radeon VII",
        "",
    ],
)
def test_a_card_that_is_not_known_has_none(name: str) -> None:
    assert rgu(name, 24.0) is None


def test_a_card_whose_memory_is_not_told_has_none() -> None:
    assert rgu("Tesla T4", 0.0) is None


def test_no_name_is_two_cards() -> None:
    names = [name.removeprefix("NVIDIA ").removeprefix("Tesla ") for name, *_ in TABLE]
    names += ["H200 NVL", "L40S", "A2", "RTX 6000 Ada Generation", "Quadro RTX 6000", "RTX A6000"]
    for name in names:
        assert len([card for card in CARDS if re.fullmatch(card.pattern, name)]) == 1, name
    assert all(any(re.fullmatch(p, n) for n in names) for p, *_ in PUBLISHED)
