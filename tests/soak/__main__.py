"""Run small sweeps under random faults until the time is over, and audit each: nothing lost, doubled or different.

python -m tests.soak --minutes 20
python -m tests.soak --seed 7 --rounds 1       repeats the round of seed 7

Each round runs a sweep without faults, then the same sweep under faults, which goes on by --resume or raygpu.deliver
until it is done. The exit code is 1, and the folder is kept, if an audit finds something.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.soak.audit import (
    EPOCH_METRICS,
    Finding,
    Results,
    audit_experiment,
    audit_files,
    audit_trials,
    compare,
    has_finished,
    read_runs,
    read_trials,
    trial_runs,
)
from tests.soak.faults import OUTLIVES_S, Ended, Family, mounted, run_command, unmount
from tests.soak.plans import Fault, Plan, draw_plan

ROOT = Path(__file__).resolve().parents[2]
MAX_COMMANDS = 8
"""Largest number of commands for a sweep; faults hit the first four at most."""
SHOWN = 5
"""Number of findings that a round prints."""


@dataclass(slots=True)
class Round:
    """A round: the sweep without faults, the sweep under faults, and what the audit finds."""

    plan: Plan
    folder: Path
    database: Path
    faults: Counter[str] = field(default_factory=Counter)
    resumes: int = 0
    """Number of commands that went on with the sweep."""
    restarts: int = 0
    """Number of times that the sweep began anew, because it was ended before it had a state."""
    points: int = 0
    findings: list[Finding] = field(default_factory=list)
    disk: Path | None = None
    families: list[Family] = field(default_factory=list)
    """Processes of each command."""

    def run(self) -> None:
        """Run both sweeps, and audit them."""
        self.folder.mkdir()
        if self.plan.fills_disk:
            self.disk = self.folder / "disk"
            if not mounted(self.disk):
                raise OSError(f"{self.disk}: no disk can be mounted there any more")
        try:
            self._write_config()
            if (ended := self._command(1, ["raygpu.sweep", "sweep.toml", "--name", "reference"])).exit_code:
                self._find(f"the sweep without faults ended with {ended.exit_code}")
            else:
                self._audit(self._run_disturbed())
            self._await_processes()
        finally:
            if self.disk is not None:
                if self.findings:
                    shutil.copytree(self.disk, self.folder / "kept", symlinks=True)
                unmount(self.disk)

    @property
    def _runs_dir(self) -> Path:
        return (self.disk or self.folder) / "runs"

    def _write_config(self) -> None:
        tracking = {"uri": f"sqlite:///{self.database}", "experiment": self.folder.name}
        toml = self.plan.toml(tracking, runs_dir=str(self._runs_dir), profiles=str(self.folder / "profiles"))
        (self.folder / "sweep.toml").write_text(toml)

    def _run_disturbed(self) -> str:
        """Run the sweep under faults, and go on with it until it is done; return the name that it ended under."""
        name = "disturbed"
        words = ["raygpu.sweep", "sweep.toml", "--name", name]
        for number in range(MAX_COMMANDS):
            faults = self.plan.faults[number] if number < len(self.plan.faults) else ()
            ended = self._command(number + 2, words, faults)
            if ended.exit_code in (0, None):
                break
            run = self._runs_dir / name
            if ended.exit_code == 2 and not (run / "run.json").is_file():  # there is nothing to go on with
                self.restarts += 1
                name = f"disturbed-{self.restarts}"
                words = ["raygpu.sweep", "sweep.toml", "--name", name]
                continue
            if not ended.applied:
                self._find(f"{words[0]}, undisturbed, ended with {ended.exit_code}")
            self.resumes += 1
            delivers = ended.exit_code == 3 or (self.plan.delivers and has_finished(run))
            words = ["raygpu.deliver", str(run)] if delivers else ["raygpu.sweep", "--resume", str(run)]
        else:
            self._find(f"not done after {MAX_COMMANDS} commands")
        return name

    def _command(self, number: int, words: list[str], faults: tuple[Fault, ...] = ()) -> Ended:
        """Run a command; its output goes to a file of this number."""
        environment = {"PYTHONPATH": str(ROOT), "PYTHONFAULTHANDLER": "1"}
        if self.disk is not None:
            (self.disk / "tmp").mkdir(exist_ok=True)
            environment["TMPDIR"] = str(self.disk / "tmp")
        log = self.folder / f"{number}-{words[0]}.log"
        began = time.monotonic()
        ended = run_command(words, self.folder, environment, log, faults, self.database, self.disk)
        what = f"{' '.join(words)}: exit code {ended.exit_code} after {time.monotonic() - began:.0f} s"
        print(f"    {what}{''.join(f'; {kind}' for kind in ended.applied.elements())}", flush=True)
        self.faults += ended.applied
        if ended.exit_code is None:
            self._find(f"{words[0]} hung; see {log}")
        if "Traceback (most recent call last)" in log.read_text(errors="replace"):
            self._find(f"{words[0]} printed a traceback; see {log}")
        self.families.append(ended.family)
        return ended

    def _await_processes(self) -> None:
        """Wait for the end of all processes that the round has started."""
        deadline = time.monotonic() + OUTLIVES_S
        for family in self.families:
            for line in family.outlive(deadline):
                self._find(f"the round was outlived by {line}")

    def _audit(self, name: str) -> None:
        runs, sweeps = read_runs(self.database, self.folder.name), ("reference", name)
        self.findings += audit_experiment(runs, sweeps)
        results = []
        for sweep in sweeps:
            folder = self._runs_dir / sweep
            found = Results(read_trials(folder), trial_runs(runs, sweep))
            self.findings += audit_files(folder, self.plan.config["trials"])
            self.findings += audit_trials(found.trials, found.runs)
            results.append(found)
        reference, disturbed = results
        self.findings += compare(disturbed, reference, stops_early=self.plan.stops_early)
        self.points = sum(
            len(run.points.get(metric, []))
            for of_trial in disturbed.runs.values()
            for run in of_trial
            for metric in EPOCH_METRICS
        )

    def _find(self, text: str) -> None:
        self.findings.append(Finding("other", text))


def main() -> int:
    """Run rounds until the time is over; return the exit code."""
    parser = argparse.ArgumentParser("python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0, help="begin no round after this time (default: 20)")
    parser.add_argument("--rounds", type=int, help="run this many rounds, however long they take")
    parser.add_argument("--seed", type=int, help="seed of the first round; each later one has the next number")
    parser.add_argument("--folder", type=Path, help="new folder for all files (default: a temporary one)")
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(10**6)
    if arguments.folder is not None:
        arguments.folder.mkdir(parents=True)
    folder = (arguments.folder or Path(tempfile.mkdtemp(prefix="soak-"))).resolve()
    print(f"seed {seed}, folder {folder}")
    if not (can_fill := mounted(folder / "probe")):
        print("no disk is filled: this user cannot mount one here")
    else:
        unmount(folder / "probe")
    rounds: list[Round] = []
    began = time.monotonic()
    while len(rounds) < arguments.rounds if arguments.rounds else time.monotonic() - began < 60 * arguments.minutes:
        rounds.append(_run_round(seed + len(rounds), folder, can_fill=can_fill))
    _print_totals(rounds)
    if any(each.findings for each in rounds):
        print(f"all files are kept in {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


def _run_round(seed: int, folder: Path, *, can_fill: bool) -> Round:
    """Draw, run and audit a round, and print it."""
    plan = draw_plan(seed, can_fill=can_fill)
    print(f"round {seed}: {plan}")
    print("    faults:", " | ".join(", ".join(map(str, faults)) or "none" for faults in plan.faults), flush=True)
    began = time.monotonic()
    each = Round(plan, folder / f"round-{seed}", folder / "mlflow.db")
    each.run()
    hit = ", ".join(f"{count} x {kind}" for kind, count in sorted(each.faults.items())) or "no fault hit"
    verdict = "ok" if not each.findings else f"{len(each.findings)} FINDINGS"
    again = f", {each.restarts} begun anew" if each.restarts else ""
    print(f"round {seed}: {hit}; {each.resumes} resumes{again}; {time.monotonic() - began:.0f} s: {verdict}")
    for finding in each.findings[:SHOWN]:
        print(f"    {finding.kind}: {finding.text}")
    if len(each.findings) > SHOWN:
        print(f"    and {len(each.findings) - SHOWN} more")
    sys.stdout.flush()
    return each


def _print_totals(rounds: list[Round]) -> None:
    faults: Counter[str] = sum((each.faults for each in rounds), Counter())
    kinds = Counter(finding.kind for each in rounds for finding in each.findings)
    by_kind = ", ".join(f"{kind} {count}" for kind, count in sorted(faults.items()))
    trials = sum(each.plan.config["trials"] for each in rounds)
    print(
        f"{len(rounds)} rounds, {trials} trials, {sum(each.points for each in rounds):,} points,"
        f" {faults.total()} faults ({by_kind}): lost {kinds['lost']}, duplicated {kinds['duplicated']},"
        f" different {kinds['different']}, other {kinds['other']}"
    )


if __name__ == "__main__":
    sys.exit(main())
