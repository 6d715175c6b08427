"""Made-up packs, placements and balances for the report: their folders, as the commands leave them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from raygpu.planning.advice import Scaling, Speedup, advise
from raygpu.planning.batch_balancing import BalanceVerdict, MeasuredSplit, PredictedSplit, ThroughputCurve
from raygpu.planning.confidence import Interval
from raygpu.planning.model_placements import MeasuredPlacement, Operation, PlacementTurn, StepProfile, compare
from raygpu.planning.profiles import Point, Profile, Subject
from raygpu.records.device import Device
from raygpu.records.run_data import RunData
from raygpu.records.run_directory import RunDirectory
from raygpu.workflow import balance_results
from tests.report_cases import folder_of

SUBJECT = Subject(
    "my.code:Net", {"batch_size": "32"}, "train float32 1000x64", "float32", "A100", 40.0, 8, {"torch": "2"}
)
POINTS = (
    Point("process", 1, 1000.0, 1.0, 1.0, 1.0, host_gib=0.2, device_gib=1.5),
    Point("process", 2, 1800.0, 1.8, 1.6, 2.0, host_gib=0.2, device_gib=1.5, sm_util_pct=70.0),
    Point("process", 4, fault="out of memory"),
    Point("fused", 8, 6000.0, 6.0, 5.5, 6.6, host_gib=0.1, device_gib=0.4),
    Point("fused", 8, 9000.0, 9.0, 8.8, 9.2, compiled=True),
    Point("fused", 16, 90_000.0, 90.0, 10.0, 200.0, doubt="its windows contradict it"),
)
"""Points of a GPU: process and fused, one compiled, one in doubt, one without memory."""


def pack_folder(folder: Path, *, advised: bool = False) -> RunDirectory:
    """Write the folder of a pack, or of one whose training fills the device, with an advice."""
    run = folder_of(folder, "pack", {"epochs": 5})
    profile = Profile(
        SUBJECT, 1000, POINTS[:1] if advised else POINTS, ("threads: dropped",), "2026-01-02T03:04:05+00:00"
    )
    run.profile.write_text(json.dumps(profile.as_dict()))
    if advised:
        speedups = {1: (1.0, 1.0, 1.0), 2: (1.9, 1.8, 2.0), 4: (2.4, 2.2, 2.6)}
        advice = advise(profile, Scaling(tuple(_speedup(n, *times) for n, times in speedups.items()), "measured"))
        run.advice.write_text(json.dumps(asdict(advice) | {"kept": False}))
    return run


def _speedup(devices: int, *times: float) -> Speedup:
    return Speedup(devices, Interval(*times))


def place_folder(folder: Path) -> RunDirectory:
    """Write the folder of a comparison of placements: on one device, with towers apart, and one that failed."""
    run = folder_of(folder, "place", {})
    step = StepProfile(0.02, 0.005, 4, 2**20, (Operation("aten::mm", 0.008), Operation("copy", 0.005)))
    turns = {
        "one_device": [PlacementTurn(s, 0.5, (2.0, 0.0), profile=step) for s in (2.0, 2.1, 2.2)],
        "towers": [PlacementTurn(s, 0.5, (1.0, 1.1), profile=step) for s in (1.0, 1.05, 1.1)],
        "alternating": [],
    }
    measured = [
        MeasuredPlacement(name, {"user": 1}, turns=tuple(each), fault=None if each else "CUDA out of memory")
        for name, each in turns.items()
    ]
    found = compare(measured)
    placements = {
        each.name: {
            "parts": dict(each.parts),
            "stages": each.stages,
            "bubble": None,
            "fault": each.fault,
            "epoch_s": [turn.epoch_s for turn in each.turns],
            "loss": [turn.loss for turn in each.turns],
            "memory_gib": list(each.memory_gib),
            "speedup": asdict(found.speedups[each.name]) if each.name in found.speedups else None,
            "step": asdict(each.profile) if each.profile is not None else None,
        }
        for each in measured
    }
    summary = {"name": run.name, "devices": 2, "device": "A100", "logical": False, "best": "towers"}
    run.write_summary(summary | {"placements": placements, "verdict": ["verdict: towers is 2.00x as fast"]})
    return run


def balance_folder(folder: Path, *, unequal: bool = True) -> RunDirectory:
    """Write the folder of a balance over an A100 and a T4; of two alike with equal shares alone."""
    run = folder_of(folder, "balance", {"ratios": "equal"})
    curves = [
        ThroughputCurve({16: rate, 32: 1.2 * rate}, "asked", {16: [rate, 1.1 * rate, rate], 32: [1.2 * rate] * 3})
        for rate in (1000.0, 500.0 if unequal else 1000.0)
    ]
    shares = (40, 24) if unequal else (32, 32)
    tried = MeasuredSplit(shares, ((900.0, 500.0), (950.0, 510.0), (910.0, 505.0)))
    equal = MeasuredSplit((32, 32), ((500.0, 500.0), (510.0, 510.0), (505.0, 505.0))) if unequal else None
    verdict = BalanceVerdict(curves, [[0], [1]], PredictedSplit(shares, 1500.0), tried, equal)
    devices = [Device(0, "node", "0", "A100"), Device(1, "node", "1", "T4")]
    summary = balance_results.summary(run.name, 64, devices, verdict, {0: {"power_w": 300.0}})
    run.write_summary(summary | {"lines": ["verdict: balanced is 1.40x the equal split"]})
    return run


def data(run: RunDirectory) -> RunData:
    """Return the data of a folder."""
    return RunData.load(run)
