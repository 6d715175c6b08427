"""Whether `gpu.mode = "auto"` takes the fastest way: whole sweeps in every mode, and in the one that auto chose.

    python -m experiments.benchmarks.auto_choice [--rounds 3] [--sweeps mlp,short,cnn,resnet,keras]
    python -m experiments.benchmarks.auto_choice --sweeps mlp,resnet18      (on a GPU)

Each round runs every mode of a sweep once, in turn and every other round in reverse, and auto twice: with no profile,
so that it probes if that repays, and with the profile that this left. What counts is the wall time of the trials
(`wall_s` of summary.json), workers' start included. Runs of equal plans do the same, whether a person or auto chose it:
a plan's wall time is the median of all of them, and auto's choice is measured by its plan's. That one of auto's own
runs alone, and of whole commands with the probe in them, is in the record too.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import tomli_w

from experiments.benchmarks import record

OPTIMIZER: dict[str, Any] = {"lr": {"loguniform": [1e-3, 0.3]}, "momentum": {"uniform": [0.0, 0.9]}, "batch_size": 32}
SWEEPS: dict[str, dict[str, Any]] = {
    "mlp": {"experiment": "experiments.digits:Mlp", "trials": 64, "epochs": 20, "space": {"hidden": 128}},
    "short": {"experiment": "experiments.digits:Mlp", "trials": 4, "epochs": 5, "space": {"hidden": 128}},
    "cnn": {
        "experiment": "experiments.digits:Cnn",
        "trials": 24,
        "epochs": 6,
        "space": {"blocks": 2, "channels": 8, "channels2": 16},
    },
    "resnet": {"experiment": "experiments.resnet:SmallResNet", "trials": 12, "epochs": 3, "space": {"channels": 8}},
    "keras": {"experiment": "experiments.digits:KerasMlp", "trials": 32, "epochs": 20, "space": {"hidden": 128}},
}
ON_GPU: dict[str, dict[str, Any]] = {
    "resnet18": {
        "experiment": "experiments.cifar:ResNet18",
        "trials": 8,
        "epochs": 2,
        "data": {"synthetic": True, "fraction": 0.2},
        "space": {"channels": 64, "batch_size": 128},
    }
}
"""Too large for a CPU."""
PACKED = {
    "one at a time": ["--gpu.mode", "process", "--gpu.fraction", "1"],
    "2 per device": ["--gpu.mode", "process", "--gpu.fraction", "0.5"],
    "4 per device": ["--gpu.mode", "process", "--gpu.fraction", "0.25"],
}
FUSED = {"fused": ["--gpu.mode", "fused"]}
SPLIT = {"split in 2": ["--gpu.mode", "split", "--gpu.width", "2"]}
AUTO, KEPT = "auto, probed", "auto, profile kept"


def modes(sweep: str) -> dict[str, list[str]]:
    """The flags of each mode that a person could try."""
    return PACKED | (SPLIT if sweep == "keras" else FUSED)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sweeps", default=",".join(SWEEPS))
    arguments = parser.parse_args()
    results: dict[str, Any] = {}
    for sweep in arguments.sweeps.split(","):
        with tempfile.TemporaryDirectory(prefix="raygpu-bench-") as folder:
            results[sweep] = measured(sweep, Path(folder), arguments.rounds)
        print(json.dumps(results[sweep]["ratios"], indent=2), flush=True)
    ratios = {sweep: result["ratios"] for sweep, result in results.items()}
    record.write("auto_choice", {"sweeps": results, "ratios": ratios}, vars(arguments))


def measured(sweep: str, folder: Path, rounds: int) -> dict[str, Any]:
    """Every mode of one sweep, and what auto came to against the best of them."""
    path = folder / f"{sweep}.toml"
    configuration = (SWEEPS | ON_GPU)[sweep]
    path.write_text(tomli_w.dumps(configuration | {"metric": "accuracy", "space": OPTIMIZER | configuration["space"]}))
    names = [*modes(sweep), AUTO]
    found = []
    for number in range(rounds):
        order = names if number % 2 == 0 else [*reversed(names)]
        runs: dict[str, Any] = {}
        for name in order:
            profiles = folder / f"profiles-{number}"
            runs[name] = run(path, modes(sweep).get(name, []), folder, profiles if name == AUTO else folder / "none")
            if name == AUTO:
                runs[KEPT] = run(path, [], folder, profiles)
        found.append(runs)
    by_plan: dict[str, list[float]] = {}
    for runs in found:
        for each in runs.values():
            by_plan.setdefault(each["chosen"], []).append(each["wall_s"])
    plans = {plan: round(median(seconds), 2) for plan, seconds in by_plan.items()}
    best = min(plans, key=lambda plan: plans[plan])
    chosen = [runs[name]["chosen"] for runs in found for name in (AUTO, KEPT)]
    predicted = [each["predicted"] for runs in found for name in (AUTO, KEPT) if (each := runs[name])["predicted"]]
    ratios = {
        "best plan": best,
        "auto chose": sorted(set(chosen)),
        "throughput of auto's plan / of the best (goal >= 0.95)": round(
            plans[best] / median(plans[plan] for plan in chosen), 3
        ),
        "throughput of auto's own runs / of the best plan": round(
            plans[best] / median(runs[name]["wall_s"] for runs in found for name in (AUTO, KEPT)), 3
        ),
        "predicted / real wall time of auto's runs": round(median(predicted), 3) if predicted else None,
    }
    wall_s = {name: round(median(runs[name]["wall_s"] for runs in found), 2) for name in found[0]}
    return {"wall_s": wall_s, "wall_s by plan": plans, "rounds": found, "ratios": ratios}


def run(path: Path, flags: list[str], folder: Path, profiles: Path) -> dict[str, Any]:
    """One sweep as a command."""
    started = time.monotonic()
    command = [sys.executable, "-m", "raygpu.sweep", str(path), "--json", "--runs-dir", str(folder / "runs")]
    command += ["--profiles", str(profiles), "--tracking.uri", f"sqlite:///{folder}/mlflow.db", *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    summary = json.loads(done.stdout)
    predicted = summary["predicted"]
    plan = summary["mode"]
    if plan == "process":
        plan += f", {summary['plan']['trials_per_gpu']} per GPU"
    elif plan == "split":
        plan += f" in {summary['plan']['members']}"
    found = {
        "wall_s": summary["wall_s"],
        "command_s": round(time.monotonic() - started, 2),
        "chosen": plan,
        "probe_s": predicted.get("probe_s"),
        "predicted": round(predicted["wall_s"][predicted["chosen"]] / summary["wall_s"], 3) if predicted else None,
    }
    print(f"{found['wall_s']:8.1f} s  {path.stem}: {' '.join(flags) or 'auto'} ({plan})", flush=True)
    return found


if __name__ == "__main__":
    main()
