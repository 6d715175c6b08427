"""Reference GPU Units (RGU): one number for what a GPU is worth, as the Digital Research Alliance of Canada counts it.

Source: https://docs.alliancecan.ca/wiki/Allocations_and_compute_scheduling, "Reference GPU Units (RGUs)":

    RGU = 1.6 x FP32 score + 1.6 x FP16 score + 0.8 x memory score

A score is the card's figure over that of the A100-40gb, which has 4.0 RGU "for historical reasons" (the P100-12gb, once
the unit, comes out near 1). FP32 is "with dense matrices on regular GPU cores", FP16 "with dense matrices on Tensor
cores": so data sheets' figures "with sparsity" are halved here. The P100 has no tensor cores, and its published FP16
score of 0.03 is its FP32 rate over the A100's tensor cores, not the 18.7 TFLOPS of its data sheet.

For the cards of the published table the published value holds, since that is what an allocation is charged by. Its last
digits are rounded both ways: the formula gives 2.256 for the V100-16gb (published 2.2) and 2.576 for the V100-32gb
(2.6). Every other card is computed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

FP32_WEIGHT, FP16_WEIGHT, MEMORY_WEIGHT = 1.6, 1.6, 0.8
A100_FP32, A100_FP16, A100_GB = 19.5, 312.0, 40
# NVML shows somewhat less than the card is sold with: ECC and firmware take up to 8 % (a T4 with 16 GB reads 15.0 GiB).
MEMORY_TOLERANCE = 0.12


@dataclass(frozen=True, slots=True)
class CardType:
    """A GPU product with the figures of its data sheet."""

    pattern: str
    """Regular expression for NVML's whole product name without "NVIDIA" and "Tesla"."""
    fp32_tflops: float
    """FP32 throughput of the regular cores."""
    fp16_tflops: float
    """Dense FP16 throughput of the tensor cores with FP32 sums, as trainings use them (GeForce: half of FP16 sums)."""
    memory_gb: tuple[int, ...]
    """Memory sizes that the product is sold with."""
    source: str
    """Data sheet or paper of the figures."""


FORM = r"(-(SXM\d?|PCIE))?(-\d+GB)?( \d+GB)?( PCIe)?"
V100_SHEET = (
    "V100 data sheet, images.nvidia.com/content/technologies/volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf"
)
H100_SHEET = "H100 data sheet, resources.nvidia.com/en-us-tensor-core/nvidia-tensor-core-gpu-datasheet"
H200_SHEET = "H200 data sheet, nvidia.com/en-us/data-center/h200"
TURING_PAPER = "Turing GPU architecture whitepaper (2018), appendix A"
GA102_PAPER = "Ampere GA102 GPU architecture whitepaper (2021), tables 2 and 3"
ADA_PAPER = "Ada GPU architecture whitepaper (2023), appendix A"
BLACKWELL_PAPER = "RTX Blackwell GPU architecture whitepaper (2025), appendix A"

CARDS = (
    CardType(r"P100-PCIE-(12|16)GB", 9.3, 9.3, (12, 16), "P100 PCIe data sheet; FP16 as the module says"),
    CardType(r"P100-SXM2-16GB", 10.6, 10.6, (16,), "P100 data sheet, NVLink; FP16 as the module says"),
    CardType(r"T4", 8.1, 65, (16,), "T4 data sheet, nvidia.com/en-us/data-center/tesla-t4"),
    CardType(r"V100-(SXM[23]|DGXS|FHHL)-(16|32)GB", 15.7, 125, (16, 32), V100_SHEET),
    CardType(r"V100-PCIE-(16|32)GB", 14, 112, (16, 32), V100_SHEET),
    CardType(r"V100S-PCIE-32GB", 16.4, 130, (32,), V100_SHEET),
    CardType(r"A100" + FORM, 19.5, 312, (40, 80), "A100 data sheet, nvidia.com/en-us/data-center/a100"),
    CardType(r"A30", 10.3, 165, (24,), "A30 data sheet, nvidia.com/en-us/data-center/products/a30-gpu"),
    CardType(r"A10", 31.2, 125, (24,), "A10 data sheet, nvidia.com/en-us/data-center/products/a10-gpu"),
    CardType(r"A40", 37.4, 149.7, (48,), "A40 data sheet, nvidia.com/en-us/data-center/a40"),
    CardType(r"A2", 4.5, 18, (16,), "A2 data sheet, nvidia.com/en-us/data-center/products/a2"),
    CardType(r"L4", 30.3, 121, (24,), "L4 data sheet (242 with sparsity), nvidia.com/en-us/data-center/l4"),
    CardType(r"L40", 90.5, 181.05, (48,), "L40 data sheet, nvidia.com/en-us/data-center/l40"),
    CardType(r"L40S", 91.6, 362.05, (48,), "L40S data sheet, nvidia.com/en-us/data-center/l40s"),
    CardType(r"H100 80GB HBM3", 67, 989.5, (80,), f"{H100_SHEET}, SXM (1,979 with sparsity)"),
    CardType(r"H100 PCIe", 51, 756.5, (80,), "H100 PCIe data sheet (1,513 with sparsity)"),
    CardType(r"H100 NVL", 60, 835.5, (94,), f"{H100_SHEET}, NVL (1,671 with sparsity)"),
    CardType(r"GH200 (480GB|120GB)", 67, 989.5, (96,), "GH200 data sheet (1,979 with sparsity)"),
    CardType(r"H200", 67, 989.5, (141,), f"{H200_SHEET}, SXM (1,979 with sparsity)"),
    CardType(r"H200 NVL", 60, 835.5, (141,), f"{H200_SHEET}, NVL (1,671 with sparsity)"),
    CardType(r"B200", 75, 2250, (180,), "HGX data sheet, nvidia.com/en-us/data-center/hgx: an eighth (4.5 PF sparse)"),
    CardType(r"(Quadro )?RTX 6000", 16.3, 130.5, (24,), TURING_PAPER),
    CardType(r"(Quadro )?RTX 8000", 16.3, 130.5, (48,), TURING_PAPER),
    CardType(r"TITAN RTX", 16.3, 130.5, (24,), TURING_PAPER),
    CardType(r"GeForce RTX 2080 Ti", 13.4, 53.8, (11,), TURING_PAPER),
    CardType(r"GeForce RTX 3080", 29.8, 59.5, (10,), GA102_PAPER),
    CardType(r"GeForce RTX 3090", 35.6, 71, (24,), GA102_PAPER),
    CardType(r"RTX A4000", 19.2, 76.7, (16,), "RTX A4000 data sheet (153.4 with sparsity)"),
    CardType(r"RTX A5000", 27.8, 111.1, (24,), "RTX A5000 data sheet (222.2 with sparsity)"),
    CardType(r"RTX A6000", 38.7, 154.8, (48,), "RTX A6000 data sheet (309.7 with sparsity)"),
    CardType(r"RTX 6000 Ada Generation", 91.1, 364.2, (48,), "RTX 6000 Ada data sheet (FP8 with sparsity 1,457)"),
    CardType(r"GeForce RTX 4080", 48.7, 97.5, (16,), ADA_PAPER),
    CardType(r"GeForce RTX 4090", 82.6, 165.2, (24,), ADA_PAPER),
    CardType(r"GeForce RTX 5090", 104.8, 209.5, (32,), BLACKWELL_PAPER),
)

# The Alliance's table for its allocations of 2026. It does not tell a V100 SXM2 from a PCIe one.
PUBLISHED = (
    (r"P100-.*", 12, 1.0),
    (r"P100-.*", 16, 1.1),
    (r"T4", 16, 1.3),
    (r"V100-.*", 16, 2.2),
    (r"V100-.*", 32, 2.6),
    (r"A100" + FORM, 40, 4.0),
    (r"A100" + FORM, 80, 4.8),
    (r"H100 80GB HBM3", 80, 12.2),
)


def rgu(name: str, memory_gib: float) -> float | None:
    """Return the RGU of a GPU by NVML's name and memory; None for an unknown product, a slice or a virtual GPU."""
    short = name.removeprefix("NVIDIA ").removeprefix("Tesla ")
    card = next((card for card in CARDS if re.fullmatch(card.pattern, short)), None)
    if card is None or memory_gib <= 0:
        return None
    memory_gb = _sold_with(card, memory_gib)
    for pattern, published_gb, value in PUBLISHED:
        if re.fullmatch(pattern, short) and published_gb == memory_gb:
            return value
    return formula(card.fp32_tflops, card.fp16_tflops, memory_gb)


def formula(fp32_tflops: float, fp16_tflops: float, memory_gb: float) -> float:
    """Return the worth of a GPU in Reference GPU Units. Formula: see the module; figures: see `CardType`."""
    fp32, fp16, memory = fp32_tflops / A100_FP32, fp16_tflops / A100_FP16, memory_gb / A100_GB
    return FP32_WEIGHT * fp32 + FP16_WEIGHT * fp16 + MEMORY_WEIGHT * memory


def _sold_with(card: CardType, memory_gib: float) -> float:
    """Return the product's size in GB next to a reading in GiB, or the reading if none is near (an A100 with 64 GB)."""
    nearest = min(card.memory_gb, key=lambda gb: abs(gb - memory_gib))
    return nearest if abs(nearest - memory_gib) <= MEMORY_TOLERANCE * nearest else memory_gib
